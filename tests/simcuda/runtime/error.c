/*
 * The last error of a thread, and the names of codes.
 *
 * A call that fails sets the last error, a call that succeeds leaves it alone; cudaGetLastError
 * clears it. Errors that end the device's context ("This leaves the process in an inconsistent
 * state and any further CUDA work will return the same error", driver_types.h, at each of the codes
 * below) are not cleared: they stay until a cudaDeviceReset has given the device a new context.
 */
#include "rt.h"

static _Thread_local cudaError_t last;
static _Thread_local unsigned last_generation; /* resets there had been when `last` was set */

static bool is_sticky(cudaError_t e)
{
    switch (e) {
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
        return true;
    default:
        return false;
    }
}

/* The first error of a dead context stays the one that is told. "Not ready" is an answer and no
 * error: hardware does not remember it (tests/gpu/results). */
cudaError_t rt_done(cudaError_t e)
{
    unsigned now = rt_reset_generation();
    if (e != cudaSuccess && e != cudaErrorNotReady &&
        !(is_sticky(last) && last_generation == now)) {
        last = e;
        last_generation = now;
    }
    return e;
}

/* Initialises the driver: h200-580.json, first_call/cudaGetLastError. */
RT_EXPORT cudaError_t cudaGetLastError(void)
{
    (void)rt_init();
    cudaError_t e = last;
    if (!is_sticky(e) || last_generation != rt_reset_generation())
        last = cudaSuccess;
    return e;
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
