/*
 * The last error of a thread, and the names of codes.
 *
 * A call that fails sets the last error, a call that succeeds leaves it alone; cudaGetLastError
 * clears it, whatever it is. What ended the device's context comes back with the next call that
 * needs that (tests/gpu/results/h200-580.json, sticky/kernel).
 */
#include "rt.h"

static _Thread_local cudaError_t last;

/* "Not ready" is an answer and no error: hardware does not remember it (tests/gpu/results). */
cudaError_t rt_done(cudaError_t e)
{
    if (e != cudaSuccess && e != cudaErrorNotReady)
        last = e;
    return e;
}

/* Initialises the driver: h200-580.json, first_call/cudaGetLastError; its end: teardown. */
RT_EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    (void)rt_init();
    last = cudaSuccess;
    return rt_unloading() ? cudaErrorCudartUnloading : e;
}

RT_EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

RT_EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define X(name, text)                                                                              \
    case name:                                                                                     \
        return #name;
#include "errors.def"
#undef X
    default:
        return "unrecognized error code";
    }
}

RT_EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define X(name, text)                                                                              \
    case name:                                                                                     \
        return text;
#include "errors.def"
#undef X
    default:
        return "unrecognized error code";
    }
}
