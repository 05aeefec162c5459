/* Finding and calling an unwinder.
 *
 * Knows nothing of interning. On x86-64 our own comes first (unwind_words.h): it takes some ten
 * nanoseconds a frame, opens nothing, takes no lock, reads nothing but the stack and what is
 * loaded, and stops where it is lost. What it does not know is asked of others: code made at run
 * time, above all. They are opened when the first such frame is met, which takes the loader's lock,
 * and that may be held by a thread that waits for this one (a library's constructor): most programs
 * never come there. Not beyond a signal handler, which may have come amid the loader or malloc.
 *
 * libunwind makes sure of what it reads. Its fast path goes by a cache of each thread's, of what to
 * do at each return address, which is never emptied: where another library took the place of one
 * that was unloaded it would read anywhere, and end the host. So a thread that has such a cache
 * from before something was unloaded unwinds step by step from then on, by the cache that can be
 * emptied, which takes microseconds.
 *
 * glibc's backtrace, where libunwind is not installed, makes sure of nothing: it follows a return
 * address that leads nowhere, as libraries for coroutines put at the end of a stack. It is asked
 * only where our own came upon code that is there.
 *
 * On other processors the others are all there is, and are opened at the start. */
#include "registry/unwind.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

#include "config/cancel.h"
#include "config/clock.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/mutation.h"
#include "registry/memo_tables.h"
#include "registry/unload.h"
#include "registry/unwind_words.h"

/* How long a thread waits for another one that opens them: many times what that takes, and short
 * where the opener waits for the loader's lock, which the waiting thread may hold. */
#define OPENING_NS 100000000u

/* unw_backtrace and backtrace have one signature. */
typedef int ca_backtrace_t(void **frames, int max);

/* The others. Set before `state` says so; NULL is what there is not. */
static struct {
    ca_backtrace_t *fast;    /* libunwind's, by a thread's cache */
    ca_backtrace_t *careful; /* libunwind's, right whatever was unloaded */
    ca_backtrace_t *glibc;
} others;

enum { UNTRIED, OPENING, TRIED };
static _Atomic int state;
static _Atomic bool started, waited_in_vain;
static bool without_libunwind;
static bool ended; /* in the child of a process that had started */

static _Thread_local bool inside;
static _Thread_local uint64_t cached_since; /* an epoch of unload.h, 0 without such a cache */

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

static void forget(void)
{
    if (steps.flush)
        steps.flush(*steps.space, 0, 0);
}
#else
static ca_backtrace_t *find_steps(void *library)
{
    (void)library;
    return NULL;
}

static void forget(void)
{
}
#endif

/* --- the others ------------------------------------------------------------------------------- */

static void *open_libunwind(void)
{
    /* libunwind frees a thread's cache in the last round of the thread's destructors, which is
     * when ThreadSanitizer has already taken the thread's state away: its mutex interceptor then
     * crashes the host. */
    if (without_libunwind || dlsym(RTLD_DEFAULT, "__tsan_init"))
        return NULL;
#if defined(__aarch64__)
    /* Where return addresses are signed it follows them as they are, or crashes. */
    if (getauxval(AT_HWCAP) & HWCAP_PACA)
        return NULL;
#endif
    /* Not RTLD_DEEPBIND: sanitizer runtimes end the process over it. Not RTLD_GLOBAL: libunwind
     * exports _Unwind_* and would take the host's C++ exceptions over. */
    int wrong = CA_MUTATED(unwinder_deepbind) ? RTLD_DEEPBIND
                : CA_MUTATED(unwinder_global) ? RTLD_GLOBAL
                                              : 0;
    return dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL | wrong);
}

/* By its version: a program may have a function of that name. */
static ca_backtrace_t *open_backtrace(void)
{
#if defined(__x86_64__)
    static const char version[] = "GLIBC_2.2.5";
#else
    static const char version[] = "GLIBC_2.17";
#endif
    void *frames[4];
    ca_backtrace_t *function = (ca_backtrace_t *)dlvsym(RTLD_DEFAULT, "backtrace", version);
    if (function)
        function(frames, 4); /* opens another library */
    return function;
}

/* Before 1.5 it told the addresses of the calls and not of the returns. */
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
        others.careful = find_steps(library);
        uint64_t epoch = ca_unload_epoch();
        forget(); /* what it knows by the program's own use may be older */
        cached_since = others.careful && epoch != CA_UNLOAD_UNDER_WAY ? epoch : CA_UNLOAD_NONE;
        if (others.fast && !tells_return_addresses(others.fast))
            others.fast = NULL;
    }
    if (!others.careful)
        others.glibc = open_backtrace();
    atomic_store_explicit(&state, TRIED, memory_order_release);
    return true;
}

/* Once that took too long nobody waits any more. */
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

static bool are_opened(void)
{
    return atomic_load_explicit(&state, memory_order_acquire) == TRIED;
}

/* Before they are opened there is nothing to forget. */
void ca_unwind_forget(void)
{
    if (are_opened())
        forget();
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
        cached_since = others.careful ? epoch : CA_UNLOAD_NONE;
    return cached_since == epoch;
}

/* The one to ask, or NULL. */
static ca_backtrace_t *other_unwinder(bool may_be_lost)
{
    if (!open_others() && !wait_for_others())
        return NULL;
    if (others.fast && may_use_cache())
        return others.fast;
    return others.careful ? others.careful : may_be_lost ? NULL : others.glibc;
}

#if defined(__x86_64__)

/* --- our own ---------------------------------------------------------------------------------- */

#define OTHERS_MOST 128 /* frames */

/* What glibc's looks at, where it finds no description: whether that is a signal's return. */
static bool is_code_there(uintptr_t address)
{
    return ca_words_readable_end(address, 16) >= address + 16;
}

/* How many bytes of a stack are looked for first, of which nothing else is known, and at most. Most
 * captures need the page or two that the last frames lie in. */
#define EXTENT_FIRST ((uintptr_t)4096)
#define EXTENT_MOST (64 * EXTENT_FIRST)

/* The frames of a stack that is not the thread's own, of a coroutine or a signal handler: it is
 * asked for how far it goes as far as that matters. */
static size_t foreign_frames(ca_unwind_start_t *start, ca_rules_t *rules, void **frames, size_t max,
                             ca_words_end_t *end)
{
    uintptr_t high = 0;
    size_t count = 0;
    start->stack_low = start->frame;
    for (uintptr_t bytes = EXTENT_FIRST; bytes <= EXTENT_MOST;
         bytes *= EXTENT_MOST / EXTENT_FIRST) {
        start->stack_high = ca_words_readable_end(start->frame, bytes);
        if (start->stack_high == high)
            break; /* there is no more of it */
        high = start->stack_high;
        count = ca_words_frames(start, rules, frames, max, end);
        if (*end == CA_WORDS_ENDED || *end == CA_WORDS_UNKNOWN)
            break;
    }
    return count;
}

/* What another one finds from `first` on, where it gets further than `count` frames: else 0, and
 * `frames` are as they were. */
static __attribute__((noinline)) size_t others_frames(void *first, size_t count, bool may_be_lost,
                                                      void **frames, size_t max)
{
    void *all[OTHERS_MOST];
    ca_backtrace_t *function = other_unwinder(may_be_lost);
    int found = function ? function(all, (int)(max + 4 < OTHERS_MOST ? max + 4 : OTHERS_MOST)) : 0;
    size_t end = found > 0 ? (size_t)found : 0, at = 0;
    while (at < end && all[at] != first)
        at++;
    if (end - at <= count)
        return 0;
    count = end - at < max ? end - at : max;
    memcpy(frames, all + at, count * sizeof *frames);
    return count;
}

/* Begins with the caller of this. */
static __attribute__((noinline)) size_t find_frames(void **frames, size_t max)
{
    ca_memo_table_t *table = ca_memo_table();
    ca_unwind_start_t start = {
        .caller = (uintptr_t)__builtin_return_address(0),
        .frame = (uintptr_t)__builtin_frame_address(0),
    };
    /* A signal may have come while the memo was at them. */
    ca_rules_t *rules = table && !table->busy ? &table->rules : NULL;
    ca_words_end_t end = CA_WORDS_LOST;
    size_t count;
    if (table && start.frame >= table->stack_low && start.frame < table->stack_high) {
        start.stack_low = table->stack_low;
        start.stack_high = table->stack_high;
        count = ca_words_frames(&start, rules, frames, max, &end);
    } else {
        start.own_low = table ? table->stack_low : 0;
        start.own_high = table ? table->stack_high : 0;
        count = foreign_frames(&start, rules, frames, max, &end);
    }
    if (end == CA_WORDS_ENDED || count == 0 || (end == CA_WORDS_AMID && !are_opened()))
        return count;
    bool nothing_there = !is_code_there((uintptr_t)frames[count - 1]);
    size_t more =
        others_frames(frames[0], count, nothing_there || end != CA_WORDS_UNKNOWN, frames, max);
    if (more)
        return more;
    return nothing_there && count > 1 ? count - 1 : count;
}

#else

static size_t find_frames(void **frames, size_t max)
{
    ca_backtrace_t *function = other_unwinder(false);
    int count = function ? function(frames, (int)max) : 0;
    return count > 0 ? (size_t)count : 0;
}

#endif

/* --- both ------------------------------------------------------------------------------------- */

void ca_unwind_without_libunwind(bool without)
{
    without_libunwind = without;
}

void ca_unwind_start(void)
{
    if (ended)
        return;
    int saved = errno;
    int cancel = ca_cancel_hold();
    inside = true;
    atomic_store_explicit(&started, true, memory_order_release);
    if (!ca_words_usable()) {
        open_others();
        if (!others.fast && !others.careful && others.glibc)
            ca_info("libunwind.so.8 is not usable here: call stacks come from backtrace, slower");
        else if (!others.fast && !others.careful)
            ca_warn("neither libunwind.so.8 nor backtrace is usable here: no call stacks");
    }
    inside = false;
    ca_cancel_resume(cancel);
    errno = saved;
}

size_t ca_unwind(void **frames, size_t max)
{
    ca_lock_assert_none("unwinding"); /* it may take the loader's lock and call malloc */
    if (inside || !atomic_load_explicit(&started, memory_order_acquire))
        return 0;
    int saved = errno;
    /* libunwind makes sure of an address by writing it to a pipe, with a lock of its own held: a
     * thread that is cancelled there would leave that to all others. */
    int cancel = ca_cancel_hold();
    inside = true;
    size_t count = find_frames(frames, max);
    inside = false;
    ca_cancel_resume(cancel);
    errno = saved;
    return count;
}

const char *ca_unwind_name(void)
{
    if (!atomic_load_explicit(&started, memory_order_acquire))
        return "none";
    if (ca_words_usable())
        return "eh_frame";
    if (!are_opened())
        return "none";
    return others.fast || others.careful ? "libunwind" : others.glibc ? "backtrace" : "none";
}

void ca_unwind_reset_after_fork(void)
{
    ended = ended || atomic_load_explicit(&started, memory_order_relaxed);
    atomic_store_explicit(&started, false, memory_order_relaxed);
    inside = false;
}
