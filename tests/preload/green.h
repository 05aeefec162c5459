/* A green context of device 0 with a default stream, for programs that link libcuda. */
#ifndef CA_TESTS_PRELOAD_GREEN_H
#define CA_TESTS_PRELOAD_GREEN_H

#include <cuda.h>
#include "check.h"

static inline CUgreenCtx green_handle(void)
{
    CUdevResource all, part;
    CUdevResourceDesc resources;
    unsigned groups = 1;
    CUgreenCtx green;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 8));
    OK(cuDevResourceGenerateDesc(&resources, &part, 1));
    OK(cuGreenCtxCreate(&green, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static inline CUcontext green_context(void)
{
    CUcontext context;
    OK(cuCtxFromGreenCtx(&context, green_handle()));
    return context;
}

#endif
