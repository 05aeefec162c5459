/* Calling an unwinder.
 *
 * Knows nothing of interning. On x86-64 it is our own (unwind_words.h): it takes some ten
 * nanoseconds a frame, opens nothing, takes no lock, reads nothing but the stack and what is
 * loaded, and stops where it is lost. Nothing else is asked there: libunwind and glibc's backtrace
 * trust what they read of an object, and one byte of it that is wrong ends the process. On other
 * processors they are all that there is (unwind_others.h). */
#include "registry/stack/unwind.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/thread_state.h"
#include "base/lock.h"
#include "registry/stack/stack_cache_tables.h"
#include "registry/stack/readable.h"
#include "registry/stack/unwind_others.h"
#include "registry/stack/unwind_words.h"

static _Atomic bool started;
static bool ended; /* in the child of a process that had started */

static _Thread_local bool inside;

#if defined(__x86_64__)

/* How many bytes of a stack are looked for first, of which nothing else is known, and at most. Most
 * captures need the page or two that the last frames lie in. */
#define EXTENT_FIRST ((uintptr_t)4096)
#define EXTENT_MOST (64 * EXTENT_FIRST)

/* The frames of a stack that is not the thread's own, of a coroutine or a signal handler. How far
 * it goes is asked once, as far as that matters: from then on descriptions lead from one live frame
 * to the next. */
static size_t foreign_frames(ca_unwind_start_t *start, ca_stack_cache_table_t *table, void **frames,
                             size_t max, ca_unwound_t *unwound)
{
    ca_rules_t *rules = table ? &table->rules : NULL;
    uintptr_t high = table ? ca_stack_cache_extent(table, start->frame) : 0;
    size_t count = 0;
    start->stack_low = start->stack_high = start->frame;
    if (high) {
        start->stack_high = high;
        count = ca_words_frames(start, rules, frames, max, unwound);
    }
    start->sure = true;
    high = 0;
    for (uintptr_t bytes = EXTENT_FIRST; !unwound->ended && bytes <= EXTENT_MOST;
         bytes *= EXTENT_MOST / EXTENT_FIRST) {
        start->stack_high = ca_readable_end(start->frame, bytes);
        if (start->stack_high == high)
            break; /* there is no more of it */
        high = start->stack_high;
        count = ca_words_frames(start, rules, frames, max, unwound);
    }
    if (table && high)
        ca_stack_cache_set_extent(table, start->frame, high);
    return count;
}

static size_t frames_from(ca_unwind_start_t *start, ca_stack_cache_table_t *table, void **frames,
                          size_t max, ca_unwound_t *unwound)
{
    if (start->frame < start->own_low || start->frame >= start->own_high)
        return foreign_frames(start, table, frames, max, unwound);
    start->stack_low = start->own_low;
    start->stack_high = start->own_high;
    start->sure = true;
    return ca_words_frames(start, table ? &table->rules : NULL, frames, max, unwound);
}

/* Begins with the caller of this. */
static __attribute__((noinline)) size_t find_frames(void **frames, size_t max,
                                                    ca_unwound_t *unwound)
{
    ca_stack_cache_table_t *table = ca_stack_cache_table();
    ca_unwind_start_t start = {
        .caller = (uintptr_t)__builtin_return_address(0),
        .frame = (uintptr_t)__builtin_frame_address(0),
        .own_low = table ? table->stack_low : 0,
        .own_high = table ? table->stack_high : 0,
    };
    /* A signal may have come while the table was in use, or come now. */
    ca_stack_cache_table_t *usable = table && !table->busy ? table : NULL;
    if (usable)
        ca_stack_cache_set_busy(usable, true);
    size_t count = frames_from(&start, usable, frames, max, unwound);
    if (usable)
        ca_stack_cache_set_busy(usable, false);
    return count;
}

#else

static size_t find_frames(void **frames, size_t max, ca_unwound_t *unwound)
{
    if (unwound->sps)
        memset(unwound->sps, 0, max * sizeof *unwound->sps); /* they do not tell */
    return ca_others_frames(frames, max);
}

#endif

void ca_unwind_start(void)
{
    if (ended)
        return;
    int saved = errno;
    int cancel = ca_cancel_hold();
    inside = true;
    atomic_store_explicit(&started, true, memory_order_release);
    if (!ca_words_usable())
        ca_others_start();
    inside = false;
    ca_cancel_resume(cancel);
    errno = saved;
}

size_t ca_unwind(void **frames, size_t max, ca_unwound_t *unwound)
{
    ca_lock_assert_none("unwinding"); /* it may take the loader's lock and call malloc */
    if (inside || !atomic_load_explicit(&started, memory_order_acquire))
        return 0;
    int saved = errno;
    /* libunwind makes sure of an address by writing it to a pipe, with a lock of its own held: a
     * thread that is cancelled there would leave that to all others. */
    int cancel = ca_cancel_hold();
    inside = true;
    size_t count = find_frames(frames, max, unwound);
    inside = false;
    ca_cancel_resume(cancel);
    errno = saved;
    return count;
}

const char *ca_unwind_name(void)
{
    if (!atomic_load_explicit(&started, memory_order_acquire))
        return "none";
    return ca_words_usable() ? "eh_frame" : ca_others_name();
}

void ca_unwind_reset_after_fork(void)
{
    ended = ended || atomic_load_explicit(&started, memory_order_relaxed);
    atomic_store_explicit(&started, false, memory_order_relaxed);
    inside = false;
}
