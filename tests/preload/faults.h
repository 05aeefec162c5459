/* The fault of tests/preload/faults.c: which of the driver's calls fails next, and what the program
 * may be answered then. */
#ifndef CA_TESTS_PRELOAD_FAULTS_H
#define CA_TESTS_PRELOAD_FAULTS_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

#define FAILURES_MOST 6 /* of the program's calls, for one of the driver's */

#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuCtxCreate_v2)                                                                              \
    X(cuCtxAttach)                                                                                 \
    X(cuCtxDestroy_v2)                                                                             \
    X(cuCtxDetach)                                                                                 \
    X(cuCtxDestroy)                                                                                \
    X(cuCtxPopCurrent_v2)                                                                          \
    X(cuCtxPushCurrent_v2)                                                                         \
    X(cuCtxEnablePeerAccess)                                                                       \
    X(cuDevResourceGenerateDesc)                                                                   \
    X(cuCtxFromGreenCtx)                                                                           \
    X(cuDeviceGetDefaultMemPool)                                                                   \
    X(cuDeviceGetDevResource)                                                                      \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease_v2)                                                                \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuDevicePrimaryCtxReset_v2)                                                                  \
    X(cuDevicePrimaryCtxReset)                                                                     \
    X(cuGetProcAddress)                                                                            \
    X(cuGetProcAddress_v2)                                                                         \
    X(cuGraphCreate)                                                                               \
    X(cuGraphDestroy)                                                                              \
    X(cuGreenCtxDestroy)                                                                           \
    X(cuGreenCtxCreate)                                                                            \
    X(cuMemAlloc_v2)                                                                               \
    X(cuMemAllocFromPoolAsync)                                                                     \
    X(cuMemAllocFromPoolAsync_ptsz)                                                                \
    X(cuMemAllocAsync_ptsz)                                                                        \
    X(cuMemFree_v2)                                                                                \
    X(cuMemFreeAsync_ptsz)                                                                         \
    X(cuMemGetAddressRange_v2)                                                                     \
    X(cuMemGetInfo_v2)                                                                             \
    X(cuMemsetD8_v2)                                                                               \
    X(cuPointerSetAttribute)                                                                       \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamBeginCapture_ptsz)                                                                   \
    X(cuStreamBeginCapture_v2)                                                                     \
    X(cuStreamBeginCapture_v2_ptsz)                                                                \
    X(cuStreamBeginCaptureToGraph)                                                                 \
    X(cuStreamBeginCaptureToGraph_ptsz)                                                            \
    X(cuStreamEndCapture)                                                                          \
    X(cuStreamEndCapture_ptsz)

/* The program's own calls go through the wrappers, as those of a program linked with -lcuda. */
static struct {
#define X(name) __typeof__(name) *name;
    DRIVER_FUNCTIONS(X)
#undef X
    int (*simcuda_fail)(const char *, const char *, uint64_t, int);
    uint64_t (*simcuda_calls)(const char *);
} drv;

/* Calls of a wrapped function all go through the shim; of the others, its own count. */
static const struct function {
    const char *name, *caller;
} functions[] = {
#define CA_DRIVER(symbol, ...) {#symbol, NULL},
#define CA_DRIVER_USED(symbol) {#symbol, "libcachealloc.so"},
#define CA_SUBMISSION(...)
#include "shim/hooks/hooks.def"
    /* Of those that are wrapped for the order of work what the shim calls itself. */
    {"cuCtxRecordEvent", "libcachealloc.so"},    {"cuCtxSynchronize", "libcachealloc.so"},
    {"cuEventRecord", "libcachealloc.so"},       {"cuMemcpyDtoHAsync_v2", "libcachealloc.so"},
    {"cuMemsetD8Async", "libcachealloc.so"},     {"cuStreamQuery", "libcachealloc.so"},
    {"cuStreamSynchronize", "libcachealloc.so"}, {"cuStreamWaitEvent", "libcachealloc.so"},
};
#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

/* The fault of this round. */
static const struct function *victim;
static uint64_t nth, calls_before;
static int error, failures;
static bool sticky; /* everything may fail until the contexts are gone */
static char label[128] = "no fault\n";

#define BROKEN(...)                                                                                \
    do {                                                                                           \
        fprintf(stderr, "%s: ", label);                                                            \
        FAIL(__VA_ARGS__);                                                                         \
    } while (0)
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            BROKEN("%s does not hold", #condition);                                                \
    } while (0)

static void on_signal(int number)
{
    char text[] = ": ended by signal 00\n";
    text[18] = (char)('0' + number / 10);
    text[19] = (char)('0' + number % 10);
    if (write(STDERR_FILENO, label, strlen(label)) < 0 ||
        write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
        _exit(2);
    _exit(3);
}

/* --- the fault -------------------------------------------------------------------------------- */
static void ask(uint64_t at)
{
    if (drv.simcuda_fail(victim->name, victim->caller, at, error) != 0)
        OK(drv.simcuda_fail(victim->name, NULL, at, error)); /* no shim */
}

static uint64_t calls_so_far(void)
{
    return victim ? calls_before + drv.simcuda_calls(victim->name) : 0;
}

static bool happened(void)
{
    return nth != 0 && calls_so_far() >= nth;
}

static void arm(void)
{
    if (victim)
        ask(nth > calls_before ? nth - calls_before : 0);
}

/* While the program looks at what is left. */
static void pause_fault(void)
{
    calls_before = calls_so_far();
    if (victim)
        ask(0);
}

/* What a call may answer when one of the driver's calls failed: that error, or what the pool makes
 * of it when it has no memory to give. */
static bool legal(int code)
{
    return happened() && (code == error || code == CUDA_ERROR_OUT_OF_MEMORY || sticky);
}

/* Whether the call succeeded. */
static bool worked(int code, const char *call)
{
    if (code == 0)
        return true;
    if (!legal(code))
        BROKEN("%s answered %d", call, code);
    if (++failures > FAILURES_MOST && !sticky)
        BROKEN("%s answered %d, and %d calls before it failed", call, code, failures - 1);
    (void)cudaGetLastError();
    return false;
}
#define WORKED(call) worked((int)(call), #call)

/* What must not be left undone: once more. */
#define RETRIED(call) (WORKED(call) || WORKED(call))

#endif
