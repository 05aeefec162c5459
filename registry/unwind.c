/* Finding and calling an unwinder.
 *
 * Knows nothing of interning. libunwind's cached fast path takes about 130 ns for 10 frames and
 * gets through everything. Where it is not installed, as in most containers, our own is as quick,
 * and glibc's backtrace, which takes microseconds, stands in where that gives up.
 *
 * libunwind's fast path goes by a cache of each thread's, of what to do at each return address,
 * which is never emptied, and it reads wherever that leads: where another library took the place of
 * one that was unloaded it would read anywhere, and end the host. So a thread that has such a cache
 * from before something was unloaded unwinds step by step from then on, by the cache that can be
 * emptied, which takes microseconds. */
#include "registry/unwind.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "config/cancel.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/mutation.h"
#include "registry/memo_tables.h"
#include "registry/unload.h"
#include "registry/unwind_words.h"

/* How long a thread waits for another one that opens the unwinder: many times what that takes, and
 * short where the opener waits for the loader's lock, which the waiting thread may hold. */
#define OPENING_MS 100

/* unw_backtrace and backtrace have one signature. */
typedef int ca_backtrace_t(void **frames, int max);

static _Atomic(ca_backtrace_t *) unwinder;
static ca_backtrace_t *careful; /* right whatever was unloaded. Set before `unwinder` */
static const char *_Atomic unwinder_name = "none";
static _Atomic enum { UNTRIED, OPENING, TRIED } state;

static bool own_only;

static _Thread_local bool inside;
static _Thread_local uint64_t cached_since; /* an epoch of unload.h, 0 without such a cache */

static ca_backtrace_t *opened(void)
{
    return atomic_load_explicit(&unwinder, memory_order_acquire);
}

#if defined(__x86_64__)
#define CONTEXT_WORDS 256 /* of a ucontext_t, 121 */
#define CURSOR_WORDS 256  /* of an unw_cursor_t, 127 */
#define REG_INSTRUCTION 16

/* libunwind's step by step: its names for this architecture, where its headers are not needed. */
static struct {
    int (*context)(void *context);
    int (*init)(void *cursor, void *context);
    int (*step)(void *cursor);
    int (*get)(void *cursor, int, uintptr_t *);
    void (*flush)(void *space, uintptr_t low, uintptr_t high);
    void **space;
} steps;

static int step_by_step(void **frames, int max);

/* NULL where it lacks something. */
static ca_backtrace_t *find_steps(void *library)
{
    steps.context = (int (*)(void *))dlsym(library, "_Ux86_64_getcontext");
    steps.init = (int (*)(void *, void *))dlsym(library, "_ULx86_64_init_local");
    steps.step = (int (*)(void *))dlsym(library, "_ULx86_64_step");
    steps.get = (int (*)(void *, int, uintptr_t *))dlsym(library, "_ULx86_64_get_reg");
    steps.flush = (void (*)(void *, uintptr_t, uintptr_t))dlsym(library, "_Ux86_64_flush_cache");
    steps.space = dlsym(library, "_ULx86_64_local_addr_space");
    bool all = steps.context && steps.init && steps.step && steps.get && steps.flush && steps.space;
    steps.flush = all ? steps.flush : NULL;
    return all ? step_by_step : NULL;
}

/* Returns twice, like setjmp, to some: apart from what has variables to lose. */
static __attribute__((noinline)) int step_by_step(void **frames, int max)
{
    uintptr_t context[CONTEXT_WORDS], cursor[CURSOR_WORDS], address;
    int count = 0;
    if (steps.context(context) != 0 || steps.init(cursor, context) < 0)
        return 0;
    while (count < max && steps.step(cursor) > 0 &&
           steps.get(cursor, REG_INSTRUCTION, &address) == 0 && address != 0)
        frames[count++] = (void *)address;
    return count;
}

/* Before it is opened there is nothing to forget. */
static bool can_forget(void)
{
    return opened() && steps.flush;
}

void ca_unwind_forget(void)
{
    if (can_forget())
        steps.flush(*steps.space, 0, 0);
}
#else
static ca_backtrace_t *find_steps(void *library)
{
    (void)library;
    return NULL;
}

static bool can_forget(void)
{
    return false;
}

void ca_unwind_forget(void)
{
}
#endif

/* Begins with the caller of this, as the others do. Where a frame is not to be unwound so, glibc
 * may know more: of code made at run time, of signal frames. */
static __attribute__((noinline)) int own_steps(void **frames, int max)
{
    ca_memo_table_t *table = ca_memo_table();
    size_t count = 0;
    if (table) {
        const ca_unwind_start_t start = {
            .caller = (uintptr_t)__builtin_return_address(0),
            .frame = (uintptr_t)__builtin_frame_address(0),
            .stack_low = table->stack_low,
            .stack_high = table->stack_high,
        };
        /* A signal may have come while the memo was at them. */
        ca_rules_t *rules = table->busy ? NULL : &table->rules;
        count = ca_words_frames(&start, rules, frames, (size_t)max);
    }
    return count || !careful ? (int)count : careful(frames, max);
}

static void *open_libunwind(void)
{
    /* libunwind frees a thread's cache in the last round of the thread's destructors, which is
     * when ThreadSanitizer has already taken the thread's state away: its mutex interceptor then
     * crashes the host. */
    if (own_only || dlsym(RTLD_DEFAULT, "__tsan_init"))
        return NULL;
    /* Not RTLD_DEEPBIND: sanitizer runtimes end the process over it. Not RTLD_GLOBAL: libunwind
     * exports _Unwind_* and would take the host's C++ exceptions over. */
    int wrong = CA_MUTATED(unwinder_deepbind) ? RTLD_DEEPBIND
                : CA_MUTATED(unwinder_global) ? RTLD_GLOBAL
                                              : 0;
    return dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL | wrong);
}

static ca_backtrace_t *open_backtrace(void)
{
    void *frames[4];
    ca_backtrace_t *function = (ca_backtrace_t *)dlsym(RTLD_DEFAULT, "backtrace");
    if (function)
        function(frames, 4); /* opens another library */
    return function;
}

static void use(ca_backtrace_t *function, const char *name)
{
    atomic_store_explicit(&unwinder_name, name, memory_order_relaxed);
    atomic_store_explicit(&unwinder, function, memory_order_release);
}

void ca_unwind_set_own(bool own)
{
    own_only = own;
}

void ca_unwind_start(void)
{
    if (atomic_load_explicit(&state, memory_order_relaxed) != UNTRIED)
        return;
    ca_lock_assert_none("opening an unwinder");
    int saved = errno;
    int cancel = ca_cancel_hold();
    inside = true; /* the loader may call malloc, and that us */
    atomic_store_explicit(&state, OPENING, memory_order_release);
    void *library = open_libunwind();
    ca_backtrace_t *function = library ? (ca_backtrace_t *)dlsym(library, "unw_backtrace") : NULL;
    careful = function ? find_steps(library) : NULL;
    if (!careful)
        careful = open_backtrace();
    if (function) {
        use(function, "libunwind");
    } else if (ca_words_usable()) {
        use(own_steps, "eh_frame");
    } else if ((function = careful) != NULL) {
        ca_info("libunwind.so.8 is not usable here: call stacks come from backtrace, slower");
        use(function, "backtrace");
    } else {
        ca_warn("neither libunwind.so.8 nor backtrace is usable here: no call stacks");
    }
    inside = false;
    void *frames[4];
    ca_unwind(frames, 4);
    atomic_store_explicit(&state, TRIED, memory_order_release);
    ca_cancel_resume(cancel);
    errno = saved;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The unwinder, if another thread is opening one just now, else NULL. */
static ca_backtrace_t *wait_for_unwinder(void)
{
    if (atomic_load_explicit(&state, memory_order_acquire) == OPENING) {
        uint64_t end = now_ms() + OPENING_MS;
        while (!opened() && atomic_load_explicit(&state, memory_order_acquire) == OPENING &&
               now_ms() < end)
            sched_yield();
    }
    return opened();
}

/* Whether the thread's cache, which there is from now on, leads nowhere but where the code does. */
static bool may_use_cache(void)
{
    uint64_t epoch = ca_unload_epoch();
    if (CA_MUTATED(unload_cached))
        return true;
    if (epoch == CA_UNLOAD_UNDER_WAY) {
        ca_unwind_forget();
        return false;
    }
    if (cached_since == 0) /* what all threads share may be older */
        cached_since = can_forget() ? epoch : CA_UNLOAD_NONE;
    return cached_since == epoch;
}

size_t ca_unwind(void **frames, size_t max)
{
    ca_lock_assert_none("unwinding"); /* it may take the loader's lock and call malloc */
    ca_backtrace_t *function = opened();
    if (inside || (!function && !(function = wait_for_unwinder())))
        return 0;
    int saved = errno;
    /* libunwind makes sure of an address by writing it to a pipe, with a lock of its own held: a
     * thread that is cancelled there would leave that to all others. */
    int cancel = ca_cancel_hold();
    inside = true;
    if (function != own_steps && !may_use_cache())
        function = careful;
    int count = function ? function(frames, (int)max) : 0;
    inside = false;
    ca_cancel_resume(cancel);
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
    if (atomic_load_explicit(&state, memory_order_relaxed) == OPENING)
        atomic_store_explicit(&state, TRIED, memory_order_relaxed);
    inside = false;
}
