/* An upstream without a device, for the pool's unit tests. It hands out addresses of a made-up
 * space, and its fences pass when the test says so.
 *
 * Fences are numbered in the order they are recorded; they pass in that order. The fake remembers
 * for every granule how many fences there were when it was freed: it may be used again only when a
 * later one has passed. So it catches early reuse, overlap, and use of memory that was given back,
 * without luck. All calls are logged as letters:
 *
 *   A a   alloc, refused        R r   fence recorded, refused      S s   synchronized, refused
 *   F f   free, refused         Q q   query: passed, not           C     reclaim
 *   J j   stream joined, refused  W w   wait: passed, not
 *
 * Header-only, because every unit program is linked alone. */
#ifndef FAKE_UPSTREAM_H
#define FAKE_UPSTREAM_H

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "pool/arena.h"
#include "pool/cache/cache.h"

#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)
#define FAKE_BASE ((uint64_t)0x7f0000000000)
#ifndef FAKE_RANGES /* segments at a time */
#define FAKE_RANGES 65536
#endif

typedef enum {
    FAKE_ALLOC,
    FAKE_FREE,
    FAKE_RECORD,
    FAKE_QUERY,
    FAKE_WAIT,
    FAKE_SYNC,
    FAKE_JOIN
} fake_call_t;
#define FAKE_CALLS 7

typedef struct fake_range {
    uint64_t base;
    size_t bytes;
} fake_range_t;

typedef struct fake {
    pthread_mutex_t mutex;

    /* what the test sets */
    size_t limit;    /* bytes the device has */
    size_t others;   /* of which somebody else caches this much, until asked by reclaim */
    size_t misalign; /* added to every address */
    bool auto_pass;  /* a fence passes as soon as `lag` newer ones were recorded */
    uint64_t lag;
    uint64_t stuck;   /* this fence never passes; 0: none */
    bool wait_passes; /* a bounded wait is long enough */
    bool in_order;    /* what is in flight may be handed out: see pool/fence/order.h */
    bool quiet;       /* nothing was submitted since the newest fence was recorded */
    bool capturing;   /* no fence, no wait: -EAGAIN */
    bool no_fences;   /* -ENOSYS */
    int fail_rc[FAKE_CALLS];
    uint64_t fail_at[FAKE_CALLS]; /* the nth call from now on fails once; 0: none */
    bool retires; /* a thread retires the arena: its addresses leave the index at any time */
    void (*on_call[FAKE_CALLS])(void); /* runs inside the call, before it takes effect */
    void (*on_release)(void);          /* when a fence was released */

    /* what the test reads */
    size_t used;
    uint64_t recorded, passed;
    uint64_t fences; /* not released */
    uint64_t calls[FAKE_CALLS];
    uint64_t looks;           /* at what is available */
    uint64_t placed, nowhere; /* calls of `placed`: the address was in the index, or was not */
    uint64_t unbounded_waits, waiting_frees;
    uint64_t waited_ns; /* at most, in the latest bounded wait */
    _Atomic unsigned errors;
    char log[256];
    size_t log_length;

    /* its own */
    fake_range_t ranges[FAKE_RANGES];
    size_t range_count;
    uint32_t *stamps; /* a granule each: 0 clean, LIVE, or 1 + fences recorded when it was freed */
    size_t stamp_count;
    size_t stamps_used; /* the others are clean */
} fake_t;

#define FAKE_LIVE UINT32_MAX
#define FAKE_SEEN                                                                                  \
    (FAKE_LIVE - 1) /* freed, and seen by another process: goes back, is not given                 \
                     */

static fake_t fake;

static void fake_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (fake.errors++ < 10) {
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
    }
    va_end(args);
}

/* `space`: bytes of addresses whose use is checked. */
static void fake_reset(size_t limit, size_t space)
{
    size_t count = space / CA_GRANULE;
    uint32_t *stamps = count == fake.stamp_count ? fake.stamps : NULL;
    if (stamps)
        memset(stamps, 0, fake.stamps_used * sizeof *stamps);
    else
        free(fake.stamps);
    memset(&fake, 0, sizeof fake);
    pthread_mutex_init(&fake.mutex, NULL);
    fake.limit = limit;
    fake.stamp_count = count;
    fake.stamps = stamps ? stamps : count ? calloc(count, sizeof *stamps) : NULL;
}

/* Calls since the last look. */
static inline const char *fake_log(void)
{
    static char copy[sizeof fake.log];
    memcpy(copy, fake.log, sizeof copy);
    memset(fake.log, 0, sizeof fake.log);
    fake.log_length = 0;
    return copy;
}

static void fake_note(char letter)
{
    if (fake.log_length + 1 < sizeof fake.log)
        fake.log[fake.log_length++] = letter;
}

static void fake_pass(uint64_t number)
{
    if (fake.passed < number)
        fake.passed = number;
}

static inline void fake_pass_all(void)
{
    fake_pass(fake.recorded);
}

/* From now on no call fails, nothing is captured, and all work passes. */
static inline void fake_calm_down(void)
{
    memset(fake.fail_at, 0, sizeof fake.fail_at);
    fake.capturing = false;
    fake.auto_pass = true;
    fake_pass_all();
}

/* Takes the lock and counts the call. The error it is to fail with, or 0. */
static int fake_enter(fake_call_t call)
{
    if (fake.on_call[call])
        fake.on_call[call]();
    pthread_mutex_lock(&fake.mutex);
    fake.calls[call]++;
    if (fake.fail_at[call] && --fake.fail_at[call] == 0)
        return fake.fail_rc[call];
    return 0;
}

static bool fake_stamps_of(uint64_t address, size_t bytes, uint32_t **begin, uint32_t **end)
{
    size_t first = (address - FAKE_BASE) / CA_GRANULE;
    size_t last = (address + bytes + CA_GRANULE - 1 - FAKE_BASE) / CA_GRANULE;
    if (!fake.stamps)
        return false;
    if (last > fake.stamp_count)
        last = fake.stamp_count;
    *begin = fake.stamps + first;
    *end = fake.stamps + (last < first ? first : last);
    return first < fake.stamp_count;
}

/* These go over many stamps, whose bounds were looked at, with the mutex held: as fast as they can,
 * in a program that is compiled without optimisation, too. */
#ifdef __clang__
#define FAKE_FAST
#else
#define FAKE_FAST optimize("O3"),
#endif
#define FAKE_QUICK __attribute__((FAKE_FAST no_sanitize("address", "undefined", "thread")))

FAKE_QUICK static void fake_stamps_look(const uint32_t *stamp, const uint32_t *end, bool *live,
                                        bool *waits)
{
    uint32_t passed = fake.passed < FAKE_SEEN ? (uint32_t)fake.passed : FAKE_SEEN - 1;
    uint32_t most = 0;
    for (; stamp < end; stamp++)
        most = *stamp > most ? *stamp : most;
    *live = most == FAKE_LIVE;
    *waits = most > passed;
}

FAKE_QUICK static void fake_stamps_set(uint32_t *stamp, const uint32_t *end, uint32_t value)
{
    if (end > fake.stamps + fake.stamps_used)
        fake.stamps_used = (size_t)(end - fake.stamps);
    while (stamp < end)
        *stamp++ = value;
}

/* The lowest gap that is large enough, as a driver would. */
static uint64_t fake_place(size_t bytes, size_t *at)
{
    uint64_t base = FAKE_BASE;
    for (*at = 0; *at < fake.range_count; ++*at) {
        fake_range_t *range = &fake.ranges[*at];
        if (range->base - base >= bytes)
            break;
        base = (range->base + range->bytes + CA_SEGMENT_UNIT - 1) & ~(CA_SEGMENT_UNIT - 1);
    }
    return base;
}

static int fake_alloc(void *context, size_t bytes, uint64_t *address)
{
    (void)context;
    int rc = fake_enter(FAKE_ALLOC);
    if (rc == 0 && (bytes > fake.limit || fake.used + fake.others > fake.limit - bytes ||
                    fake.range_count == FAKE_RANGES))
        rc = -ENOMEM;
    if (rc == 0) {
        size_t at;
        uint64_t base = fake_place(bytes + fake.misalign, &at);
        memmove(fake.ranges + at + 1, fake.ranges + at,
                (fake.range_count++ - at) * sizeof *fake.ranges);
        fake.ranges[at] = (fake_range_t){base, bytes + fake.misalign};
        fake.used += bytes;
        *address = base + fake.misalign;
    }
    fake_note(rc ? 'a' : 'A');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static void fake_placed(void *context, uint64_t address)
{
    (void)context;
    pthread_mutex_lock(&fake.mutex);
    ++*(ca_pool_owns(address) ? &fake.placed : &fake.nowhere);
    pthread_mutex_unlock(&fake.mutex);
}

static int fake_free(void *context, uint64_t address, size_t bytes, ca_free_t how)
{
    (void)context;
    (void)how;
    bool owned = ca_pool_owns(address) || ca_pool_owns(address + bytes - 1);
    int rc = fake_enter(FAKE_FREE);
    if (owned)
        fake_error("upstream free of memory that is still in the index");
    size_t at = 0;
    while (at < fake.range_count && fake.ranges[at].base != address - fake.misalign)
        at++;
    if (at == fake.range_count || fake.ranges[at].bytes != bytes + fake.misalign) {
        fake_error("upstream free of what was not obtained: %#" PRIx64, address);
    } else if (rc == 0) {
        uint32_t *stamp, *end;
        bool live = false, waits = false;
        if (fake_stamps_of(address, bytes, &stamp, &end)) {
            if (end > fake.stamps + fake.stamps_used)
                end = fake.stamps + fake.stamps_used;
            fake_stamps_look(stamp, end, &live, &waits);
            fake_stamps_set(stamp, end, 0);
        }
        if (live)
            fake_error("upstream free of live memory");
        fake.waiting_frees += waits;
        fake.used -= bytes;
        memmove(fake.ranges + at, fake.ranges + at + 1,
                (--fake.range_count - at) * sizeof *fake.ranges);
    }
    fake_note(rc ? 'f' : 'F');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static int fake_fence_record(void *context, bool all, void **fence)
{
    (void)context;
    (void)all;
    int rc = fake_enter(FAKE_RECORD);
    if (rc == 0)
        rc = fake.no_fences ? -ENOSYS : fake.capturing ? -EAGAIN : 0;
    if (rc == 0) {
        uintptr_t number = ++fake.recorded;
        *fence = (void *)number;
        fake.fences++;
        if (fake.auto_pass && number > fake.lag)
            fake_pass(number - fake.lag);
    }
    fake_note(rc ? 'r' : 'R');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

/* A stream's fence stands in the same order as all others. */
static int fake_fence_record_on(void *context, void *queue, void **fence)
{
    (void)queue;
    return fake_fence_record(context, false, fence);
}

static int fake_fence_join(void *context, void *queue, void *fence)
{
    (void)context;
    (void)queue;
    (void)fence;
    int rc = fake_enter(FAKE_JOIN);
    fake_note(rc ? 'j' : 'J');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static int fake_fence_query(void *context, void *fence)
{
    (void)context;
    int rc = fake_enter(FAKE_QUERY);
    if (rc == 0)
        rc = (uintptr_t)fence <= fake.passed && (uintptr_t)fence != fake.stuck;
    fake_note(rc == 1 ? 'Q' : 'q');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static int fake_fence_wait(void *context, void *fence, uint64_t nanoseconds)
{
    (void)context;
    int rc = fake_enter(FAKE_WAIT);
    if (rc == 0 && fake.capturing)
        rc = -EAGAIN;
    if (rc == 0) {
        if (nanoseconds == CA_WAIT_OWN)
            fake.unbounded_waits++;
        else
            fake.waited_ns = nanoseconds;
        if (nanoseconds == CA_WAIT_OWN || fake.wait_passes)
            fake_pass((uintptr_t)fence);
        rc = (uintptr_t)fence <= fake.passed;
    }
    fake_note(rc == 1 ? 'W' : 'w');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static void fake_fence_release(void *context, void *fence)
{
    (void)context;
    pthread_mutex_lock(&fake.mutex);
    if (!fence || (uintptr_t)fence > fake.recorded || fake.fences-- == 0)
        fake_error("release of what is no fence");
    pthread_mutex_unlock(&fake.mutex);
    if (fake.on_release)
        fake.on_release();
}

static int fake_synchronize(void *context, bool all)
{
    (void)context;
    (void)all;
    int rc = fake_enter(FAKE_SYNC);
    if (rc == 0 && fake.capturing)
        rc = -EAGAIN;
    if (rc == 0)
        fake_pass(++fake.recorded);
    fake_note(rc ? 's' : 'S');
    pthread_mutex_unlock(&fake.mutex);
    return rc;
}

static size_t fake_reclaim(void *context, size_t bytes)
{
    (void)context;
    (void)bytes;
    pthread_mutex_lock(&fake.mutex);
    size_t given = fake.others;
    fake.others = 0;
    fake_note('C');
    pthread_mutex_unlock(&fake.mutex);
    return given;
}

static size_t fake_available(void *context)
{
    (void)context;
    pthread_mutex_lock(&fake.mutex);
    fake.looks++;
    size_t taken = fake.used + fake.others;
    size_t available = taken < fake.limit ? fake.limit - taken : 0;
    pthread_mutex_unlock(&fake.mutex);
    return available;
}

static const ca_upstream_t fake_upstream = {
    .available = fake_available,
    .alloc = fake_alloc,
    .free = fake_free,
    .placed = fake_placed,
    .fence_record = fake_fence_record,
    .fence_record_on = fake_fence_record_on,
    .fence_join = fake_fence_join,
    .fence_query = fake_fence_query,
    .fence_wait = fake_fence_wait,
    .fence_release = fake_fence_release,
    .synchronize = fake_synchronize,
    .reclaim = fake_reclaim,
};

/* Where pages are mapped (fake_pages.h): how many of the bytes lie in one piece, and where that is.
 * NULL: addresses are places. */
static size_t (*fake_piece)(uint64_t address, size_t bytes, uint64_t *place);

/* Told of addresses that are taken into use, and that are about to be freed. */
static void (*fake_told)(uint64_t address, size_t bytes, bool used);

static void fake_in_pieces(uint64_t address, size_t bytes, void (*then)(uint64_t, size_t))
{
    while (bytes) {
        uint64_t place = address;
        size_t piece = fake_piece ? fake_piece(address, bytes, &place) : bytes;
        then(place, piece);
        address += piece;
        bytes -= piece;
    }
}

static inline void fake_use_place(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake.mutex);
    size_t at = 0;
    while (at < fake.range_count && fake.ranges[at].base + fake.ranges[at].bytes < address + bytes)
        at++;
    if (at == fake.range_count || address < fake.ranges[at].base + fake.misalign)
        fake_error("handed out %#" PRIx64 ", which was never obtained", address);
    uint32_t *stamp, *end;
    if (fake_stamps_of(address, bytes, &stamp, &end)) {
        bool live, waits;
        fake_stamps_look(stamp, end, &live, &waits);
        if (live)
            fake_error("handed out twice: %#" PRIx64, address);
        else if (waits && !fake.in_order)
            fake_error("early reuse: %#" PRIx64 ", passed %" PRIu64, address, fake.passed);
        fake_stamps_set(stamp, end, FAKE_LIVE);
    }
    pthread_mutex_unlock(&fake.mutex);
}

/* The program takes memory into use, or is about to free it. */
static inline void fake_use(uint64_t address, size_t bytes)
{
    if (address % (bytes >= CA_PAGE_FROM ? CA_PAGE : CA_GRANULE))
        fake_error("badly aligned: %#" PRIx64 " for %zu bytes", address, bytes);
    fake_in_pieces(address, bytes, fake_use_place);
    if (fake_told)
        fake_told(address, bytes, true);
}

static inline void fake_stay_seen(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake.mutex);
    uint32_t *stamp, *end;
    if (fake_stamps_of(address, bytes, &stamp, &end))
        fake_stamps_set(stamp, end, FAKE_SEEN);
    pthread_mutex_unlock(&fake.mutex);
}

static inline void fake_unuse_place(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake.mutex);
    uint32_t *stamp, *end;
    if (fake_stamps_of(address, bytes, &stamp, &end))
        fake_stamps_set(stamp, end, (uint32_t)fake.recorded + 1);
    pthread_mutex_unlock(&fake.mutex);
}

static inline void fake_unuse(uint64_t address, size_t bytes)
{
    fake_in_pieces(address, bytes, fake_unuse_place);
    if (fake_told)
        fake_told(address, bytes, false);
}

/* --- what the tests hold -------------------------------------------------------------------- */

typedef struct held {
    ca_block_t *block;
    uint64_t address;
    size_t bytes;
    bool reused;
} held_t;

/* Allocates and checks what came. Returns the pool's code. With `thread_cache` in the parameters
 * the calling thread has a cache. */
static inline int hold(ca_arena_t *arena, size_t bytes, held_t *held)
{
    *held = (held_t){.bytes = bytes};
    int rc =
        ca_cached_alloc(arena, NULL, bytes, false, &held->block, &held->address, &held->reused);
    if (rc == 0) {
        fake_use(held->address, bytes);
        if (!fake.retires && !ca_pool_owns(held->address))
            fake_error("a live address is not in the index");
    } else {
        held->block = NULL;
    }
    return rc;
}

static inline void let_go_by(held_t *held, void (*free_block)(ca_block_t *))
{
    ca_block_t *block = held->block;
    if (!block)
        return;
    held->block = NULL;
    fake_unuse(held->address, held->bytes);
    free_block(block);
}

static inline void let_go(held_t *held)
{
    let_go_by(held, ca_cached_free);
}

/* Straight to the heap, as by a thread that has no cache. */
static inline void let_go_past_the_cache(held_t *held)
{
    let_go_by(held, ca_arena_free);
}

#define FAKE_SEGMENT ((size_t)8 << 20) /* the first one */
static const ca_arena_params_t fake_params = {.max_split = SIZE_MAX,
                                              .limit = SIZE_MAX,
                                              .reuse_wait_ns = 1000 * 1000,
                                              .all_come_home = true,
                                              .oom_wait_ns = 1000 * 1000 * 1000,
                                              .segment_first = FAKE_SEGMENT};

#endif
