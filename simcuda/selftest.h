/* Checks for plain test programs on the driver API, and a gate that holds a stream. */
#ifndef SIMCUDA_SELFTEST_H
#define SIMCUDA_SELFTEST_H

#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

extern int failures;

#define ON_BOTH(name) void name(void);
#define SIM_ONLY(name, keys) void name(void);
#include "selftest.def"
#undef ON_BOTH
#undef SIM_ONLY

static inline const char *code_name(CUresult rc)
{
    const char *s = NULL;
    cuGetErrorName(rc, &s);
    return s ? s : "?";
}

#define IS(want, call)                                                                             \
    do {                                                                                           \
        CUresult got_ = (call);                                                                    \
        if (got_ != (want)) {                                                                      \
            fprintf(stderr, "  %s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #call,                \
                    code_name(got_), #want);                                                       \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)
#define OK(call) IS(CUDA_SUCCESS, call)
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "  %s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                   \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

typedef struct gate {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool open, reached;
} gate_t;

/* For a static gate: the stream's thread may still be leaving it when the case has ended. */
#define GATE                                                                                       \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false                          \
    }

static inline void gate_fn(void *arg)
{
    gate_t *g = arg;
    pthread_mutex_lock(&g->mu);
    g->reached = true;
    pthread_cond_broadcast(&g->cv);
    while (!g->open) {
        pthread_cond_wait(&g->cv, &g->mu);
    }
    pthread_mutex_unlock(&g->mu);
}

static inline void gate_hold(gate_t *g, CUstream s)
{
    g->open = g->reached = false;
    OK(cuLaunchHostFunc(s, gate_fn, g));
    pthread_mutex_lock(&g->mu);
    while (!g->reached) {
        pthread_cond_wait(&g->cv, &g->mu);
    }
    pthread_mutex_unlock(&g->mu);
}

static inline void gate_open(gate_t *g)
{
    pthread_mutex_lock(&g->mu);
    g->open = true;
    pthread_cond_broadcast(&g->cv);
    pthread_mutex_unlock(&g->mu);
}

static inline CUcontext primary(void)
{
    CUcontext c = NULL;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&c, 0));
    OK(cuCtxSetCurrent(c));
    return c;
}

#endif
