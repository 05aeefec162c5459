/* What the simulated driver offers test programs beside CUDA. All functions are weak here: on real
 * hardware they are NULL, and the macros below do nothing.
 *
 * SIMCUDA=racecheck:strict orders host threads by these tokens alone: a thread that hands something
 * on calls release before it does (unlock, post, pthread_create, the end of a thread), the thread
 * that takes over calls acquire after it has (lock, wait, the start of a thread, pthread_join). Any
 * address will do as a token. Host functions may call them too. Under racecheck:1 all host threads
 * share one clock and both do nothing. Neither needs a context; both may be called from any thread
 * at any time. */
#ifndef SIMCUDA_SIMCUDA_H
#define SIMCUDA_SIMCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

extern void simcuda_acquire(const void *token) __attribute__((weak));
extern void simcuda_release(const void *token) __attribute__((weak));

/* From now on counts the calls of the driver function `link_name` ("cuMemAlloc_v2") that come from
 * the shared object whose file is named `caller` (NULL: from anywhere), and lets the nth of them
 * fail with `error`, a CUresult, and do nothing. nth 0 only counts. Replaces an earlier request for
 * the same function. Returns 0, or -1 where there is no such function or no such object. */
extern int simcuda_fail(const char *link_name, const char *caller, uint64_t nth, int error)
    __attribute__((weak));
/* The calls that were counted since. */
extern uint64_t simcuda_calls(const char *link_name) __attribute__((weak));

/* What a kernel does, in tests: launches of `function` (CUfunction or CUkernel) run body(argument)
 * in the order of their stream, argument being the kernel's first parameter, a pointer. Returns 0,
 * or -1 where there is no such function. A body may block, and calls no CUDA function. */
extern int simcuda_body(void *function, void (*body)(void *argument)) __attribute__((weak));

/* For bodies and host functions: the running kernel or host function accesses device memory, which
 * no other thread of a program can. The race check treats it as an access of that operation, which
 * may be ordered behind operations submitted before it and before those submitted since. Return 0,
 * or -1 after an illegal address or outside of both. */
extern int simcuda_store(uint64_t address, const void *from, size_t bytes) __attribute__((weak));
extern int simcuda_load(void *to, uint64_t address, size_t bytes) __attribute__((weak));

/* For bodies: cudaTriggerProgrammaticLaunchCompletion and cudaGridDependencySynchronize. */
extern void simcuda_trigger(void) __attribute__((weak));
extern void simcuda_grid_sync(void) __attribute__((weak));

/* What another device does with a dma-buf descriptor of cuMemGetHandleForAddressRange: writes or
 * reads those bytes. Returns 0, or -1 where the memory behind the range is not the same as when the
 * descriptor was made. */
extern int simcuda_dma(int fd, size_t offset, void *bytes, size_t size, int write)
    __attribute__((weak));

/* The memory of cuMemCreate, which does not end with a context: handles that are not released,
 * mappings, reserved addresses. Physical memory is counted in bytes once, mapped memory as often as
 * it is mapped. */
typedef struct simcuda_vmm {
    uint64_t handles, mappings, peak_mappings, reservations;
    uint64_t bytes, mapped_bytes, reserved_bytes;
} simcuda_vmm_t;
extern void simcuda_vmm(simcuda_vmm_t *out) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#define SIMCUDA_ACQUIRE(token) (simcuda_acquire ? simcuda_acquire(token) : (void)0)
#define SIMCUDA_RELEASE(token) (simcuda_release ? simcuda_release(token) : (void)0)

#endif
