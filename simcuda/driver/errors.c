/* Error names, both ways. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
#define SIM_ERROR(name, text) {name, #name, text},
#include "errors.def"
#undef SIM_ERROR
};

enum { COUNT = sizeof(errors) / sizeof(errors[0]) };

int sim_error_code(const char *name)
{
    char *end;
    long n = strtol(name, &end, 10);
    if (end != name && *end == 0 && n >= 0) {
        return (int)n;
    }
    for (int i = 0; i < COUNT; i++) {
        if (strcmp(errors[i].name, name) == 0) {
            return errors[i].code;
        }
    }
    return -1;
}

static int find(CUresult error)
{
    for (int i = 0; i < COUNT; i++) {
        if (errors[i].code == (int)error) {
            return i;
        }
    }
    return -1;
}

/* cuda.h, both: an unknown code gives INVALID_VALUE and sets *pStr to NULL. No cuInit needed. */
SIM_API CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    SIM_ENTER_IF(cuGetErrorName, false);
    int i = find(error);
    if (!pStr || atomic_load(&sim_state) == 3) { /* at the end: h200-580.json, teardown */
        return pStr ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_INVALID_VALUE;
    }
    *pStr = i < 0 ? NULL : errors[i].name;
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    SIM_ENTER_IF(cuGetErrorString, false);
    int i = find(error);
    if (!pStr || atomic_load(&sim_state) == 3) { /* at the end: h200-580.json, teardown */
        return pStr ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_INVALID_VALUE;
    }
    *pStr = i < 0 ? NULL : errors[i].text;
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
