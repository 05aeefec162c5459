/* Finding them, and choosing.
 *
 * libunwind's fast path goes by a cache of each thread's, of what to do at each return address,
 * which is never emptied: where another library took the place of one that was unloaded it would
 * read anywhere. So it is not used any more from then on, and glibc's is. */
#include "registry/stack/unwind_others.h"

#if !defined(__x86_64__)

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/auxv.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "registry/stack/unload.h"

/* How long a thread waits for another one that opens them: many times what that takes, and short
 * where the opener waits for the loader's lock, which the waiting thread may hold. */
#define OPENING_NS 100000000u

/* unw_backtrace and backtrace have one signature. */
typedef int ca_backtrace_t(void **frames, int max);

/* The others. Set before `state` says so; NULL is what there is not. */
static struct {
    ca_backtrace_t *fast; /* libunwind's, by a thread's cache */
    ca_backtrace_t *glibc;
} others;

enum { UNTRIED, OPENING, TRIED };
static _Atomic int state;
static _Atomic bool waited_in_vain;

static void *open_libunwind(void)
{
    /* libunwind frees a thread's cache in the last round of the thread's destructors, which is
     * when ThreadSanitizer has already taken the thread's state away: its mutex interceptor then
     * crashes the host. */
    if (dlsym(RTLD_DEFAULT, "__tsan_init"))
        return NULL;
#if defined(__aarch64__)
    /* Where return addresses are signed it follows them as they are, or crashes. */
    if (getauxval(AT_HWCAP) & HWCAP_PACA)
        return NULL;
#endif
    /* Not RTLD_DEEPBIND: sanitizer runtimes end the process over it. Not RTLD_GLOBAL: libunwind
     * exports _Unwind_* and would take the host's C++ exceptions over. */
    return dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
}

/* By its version: a program may have a function of that name. */
static ca_backtrace_t *open_backtrace(void)
{
    void *frames[4];
    ca_backtrace_t *function = (ca_backtrace_t *)dlvsym(RTLD_DEFAULT, "backtrace", "GLIBC_2.17");
    if (function)
        function(frames, 4); /* opens another library */
    return function;
}

/* Before 1.5 it gave the addresses of the calls and not of the returns. */
static __attribute__((noinline)) bool tells_return_addresses(ca_backtrace_t *function)
{
    void *frames[4], *here = __builtin_return_address(0);
    int count = function(frames, 4);
    for (int i = 0; i < count; i++)
        if (frames[i] == here)
            return true;
    return false;
}

/* Whether it is done. Not a second time where that brings us here again: the loader may call
 * malloc, and that us. While another thread is at it, it is waited for. */
static bool open_others(void)
{
    int was = UNTRIED;
    if (atomic_load_explicit(&state, memory_order_acquire) == TRIED)
        return true;
    if (!atomic_compare_exchange_strong(&state, &was, OPENING))
        return was == TRIED;
    ca_lock_assert_none("opening an unwinder");
    void *library = open_libunwind();
    if (library) {
        others.fast = (ca_backtrace_t *)dlsym(library, "unw_backtrace");
        if (others.fast && !tells_return_addresses(others.fast))
            others.fast = NULL;
    }
    others.glibc = open_backtrace();
    atomic_store_explicit(&state, TRIED, memory_order_release);
    return true;
}

/* Once that took too long no thread waits any more. */
static bool wait_for_others(void)
{
    if (atomic_load_explicit(&waited_in_vain, memory_order_relaxed))
        return false;
    uint64_t end = ca_clock_ns() + ca_bound(OPENING_NS);
    while (atomic_load_explicit(&state, memory_order_acquire) == OPENING) {
        if (ca_clock_ns() >= end) {
            atomic_store_explicit(&waited_in_vain, true, memory_order_relaxed);
            return false;
        }
        sched_yield();
    }
    return true;
}

/* The one to ask, or NULL. */
static ca_backtrace_t *other_unwinder(void)
{
    if (!open_others() && !wait_for_others())
        return NULL;
    return others.fast && ca_unload_epoch() == CA_UNLOAD_NONE ? others.fast : others.glibc;
}

size_t ca_others_frames(void **frames, size_t max)
{
    ca_backtrace_t *function = other_unwinder();
    int count = function ? function(frames, (int)max) : 0;
    return count > 0 ? (size_t)count : 0;
}

void ca_others_start(void)
{
    if (!open_others() && !wait_for_others())
        return; /* what there is is not known yet */
    if (!others.fast && others.glibc)
        ca_info("libunwind.so.8 is not usable here: call stacks come from backtrace, slower");
    else if (!others.fast)
        ca_warn("neither libunwind.so.8 nor backtrace is usable here: no call stacks");
}

const char *ca_others_name(void)
{
    if (atomic_load_explicit(&state, memory_order_acquire) != TRIED)
        return "none";
    return others.fast ? "libunwind" : others.glibc ? "backtrace" : "none";
}

#else

size_t ca_others_frames(void **frames, size_t max)
{
    (void)frames;
    (void)max;
    return 0;
}

void ca_others_start(void)
{
}

const char *ca_others_name(void)
{
    return "none";
}

#endif
