/* Finding and calling an unwinder.
 *
 * Knows nothing of interning. The order of the attempts is by cost of a capture: libunwind's
 * cached fast path takes about 130 ns for 10 frames, glibc's backtrace ten times that. */
#include "registry/unwind.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "config/log.h"

/* unw_backtrace and backtrace have one signature. */
typedef int ca_backtrace_t(void **frames, int max);

static _Atomic(ca_backtrace_t *) unwinder;
static const char *_Atomic unwinder_name = "none";
static bool started;

static _Thread_local bool inside;

static ca_backtrace_t *open_libunwind(void)
{
    /* libunwind frees a thread's cache in the last round of the thread's destructors, which is
     * when ThreadSanitizer has already taken the thread's state away: its mutex interceptor then
     * crashes the host. */
    if (dlsym(RTLD_DEFAULT, "__tsan_init"))
        return NULL;
    /* Not RTLD_DEEPBIND: sanitizer runtimes end the process over it. Not RTLD_GLOBAL: libunwind
     * exports _Unwind_* and would take the host's C++ exceptions over. */
    void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    return library ? (ca_backtrace_t *)dlsym(library, "unw_backtrace") : NULL;
}

static void use(ca_backtrace_t *function, const char *name)
{
    atomic_store_explicit(&unwinder_name, name, memory_order_relaxed);
    atomic_store_explicit(&unwinder, function, memory_order_release);
}

void ca_unwind_start(void)
{
    if (started)
        return;
    started = true;
    int saved = errno;
    ca_backtrace_t *function = open_libunwind();
    if (function) {
        use(function, "libunwind");
    } else if ((function = (ca_backtrace_t *)dlsym(RTLD_DEFAULT, "backtrace")) != NULL) {
        ca_info("libunwind.so.8 is not usable here: call stacks come from backtrace, slower");
        use(function, "backtrace");
    } else {
        ca_warn("neither libunwind.so.8 nor backtrace is usable here: no call stacks");
    }
    void *frames[4];
    ca_unwind(frames, 4);
    errno = saved;
}

size_t ca_unwind(void **frames, size_t max)
{
    ca_backtrace_t *function = atomic_load_explicit(&unwinder, memory_order_acquire);
    if (!function || inside)
        return 0;
    int saved = errno;
    inside = true;
    int count = function(frames, (int)max);
    inside = false;
    errno = saved;
    return count > 0 ? (size_t)count : 0;
}

const char *ca_unwind_name(void)
{
    return atomic_load_explicit(&unwinder_name, memory_order_relaxed);
}

void ca_unwind_reset_after_fork(void)
{
    use(NULL, "none");
    inside = false;
}
