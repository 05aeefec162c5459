/* Somebody else's dlsym, without a version, as what limits the memory of containers has one. It
 * answers for the driver's allocation, and for a name of its own. Tells at the end how often that
 * allocation was called. */
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
#include "check.h"

#if defined(__x86_64__)
#define VERSION "GLIBC_2.2.5"
#else
#define VERSION "GLIBC_2.17"
#endif

static CUresult (*next_alloc)(CUdeviceptr *, size_t);
static unsigned allocations;

static CUresult alloc(CUdeviceptr *pointer, size_t bytes)
{
    allocations++;
    return next_alloc(pointer, bytes);
}

static int somebodys(void)
{
    return 7;
}

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name)
{
    void *(*real)(void *, const char *) =
        (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", VERSION);
    if (strcmp(name, "somebodys") == 0)
        return (void *)somebodys;
    if (strcmp(name, "cuMemAlloc_v2") != 0)
        return real(handle, name);
    next_alloc = (CUresult(*)(CUdeviceptr *, size_t))real(handle, name);
    return next_alloc ? (void *)alloc : NULL;
}

__attribute__((destructor)) static void tell(void)
{
    if (allocations)
        printf("allocations: %u\n", allocations);
}
