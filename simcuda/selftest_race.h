/* SIM: what most programs of the race check's self test begin with. Each file has its own. */
#ifndef SELFTEST_RACE_H
#define SELFTEST_RACE_H

#include <pthread.h>
#include "selftest.h"

enum { BYTES = 4096 };

static CUstream a, b, c; /* non-blocking */
static CUevent e, f;
static CUdeviceptr p;
static CUcontext ctx;

static inline void start(void)
{
    ctx = primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&f, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&p, BYTES));
}

static inline void writes(CUstream s)
{
    OK(cuMemsetD8Async(p, 1, BYTES, s));
}

static inline void reads(CUstream s)
{
    CUdeviceptr to;
    OK(cuMemAlloc(&to, BYTES));
    OK(cuMemcpyDtoDAsync(to, p, BYTES, s));
}

static inline void in_thread(void *(*fn)(void *), void *arg)
{
    pthread_t t;
    pthread_create(&t, NULL, fn, arg);
    pthread_join(t, NULL);
}

static inline CUcontext second_device(void)
{
    CUcontext other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxSetCurrent(other));
    return other;
}

#endif
