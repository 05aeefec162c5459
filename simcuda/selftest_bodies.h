/* SIM: kernels with bodies, launched in the order of a stream or programmatically. */
#ifndef SELFTEST_BODIES_H
#define SELFTEST_BODIES_H

#include "selftest.h"
#include "simcuda.h"

#include <string.h>

static inline CUfunction kernel(const char *name, void (*body)(void *))
{
    CUmodule module;
    CUfunction f;
    OK(cuModuleLoadData(&module, "any image"));
    OK(cuModuleGetFunction(&f, module, name));
    CHECK(simcuda_body(f, body) == 0);
    return f;
}

static inline void launches(CUfunction f, void *arg, CUstream s)
{
    void *params[] = {&arg};
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
}

static inline void launches_programmatically(CUfunction f, void *arg, CUstream s)
{
    void *params[] = {&arg};
    CUlaunchAttribute a;
    memset(&a, 0, sizeof(a));
    a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig c = {.gridDimX = 1,
                        .gridDimY = 1,
                        .gridDimZ = 1,
                        .blockDimX = 1,
                        .blockDimY = 1,
                        .blockDimZ = 1,
                        .hStream = s,
                        .attrs = &a,
                        .numAttrs = 1};
    OK(cuLaunchKernelEx(&c, f, params, NULL));
}

#endif
