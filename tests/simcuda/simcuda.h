/* What the simulated driver offers test programs beside CUDA. All functions are weak here: on real
 * hardware they are NULL, and the macros below do nothing.
 *
 * SIMCUDA=racecheck:strict orders host threads by these tokens alone: a thread that hands something
 * on says release before it does (unlock, post, pthread_create, the end of a thread), the thread
 * that takes over says acquire after it has (lock, wait, the start of a thread, pthread_join). Any
 * address will do as a token. Host functions may call them too. Under racecheck:1 all host threads
 * share one clock and both do nothing. Neither needs a context; both may be called at any time. */
#ifndef SIMCUDA_SIMCUDA_H
#define SIMCUDA_SIMCUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

extern void simcuda_acquire(const void *token) __attribute__((weak));
extern void simcuda_release(const void *token) __attribute__((weak));

/* From now on the calls of the driver function `link_name` ("cuMemAlloc_v2") are counted that come
 * from the shared object whose file is named `caller` (NULL: from anywhere), and the nth of them
 * fails with `error`, a CUresult, and does nothing. nth 0 only counts. Replaces what was asked for
 * the same function before. Returns 0, or -1 where there is no such function or no such object. */
extern int simcuda_fail(const char *link_name, const char *caller, uint64_t nth, int error)
    __attribute__((weak));
/* How many were counted since. */
extern uint64_t simcuda_calls(const char *link_name) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#define SIMCUDA_ACQUIRE(token) (simcuda_acquire ? simcuda_acquire(token) : (void)0)
#define SIMCUDA_RELEASE(token) (simcuda_release ? simcuda_release(token) : (void)0)

#endif
