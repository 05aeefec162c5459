/* The arena's contract, one property each. Every step checks every invariant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/counters.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "one_arena.h"
#include "pool/growth/grow.h"
#include "pool/blocks/span.h"
#include "pool/state.h"

static ca_arena_params_t params;

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    params = fake_params;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    return arena ? 0 : -1;
}

/* Nothing may be left upstream: all that is live is freed by now. */
static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

static void with(ca_arena_params_t wanted)
{
    ca_arena_retire(arena);
    arena = ca_arena_create(&fake_upstream, NULL, &wanted);
    assert_non_null(arena);
}

/* The memory that earlier frees gave is ready. */
static void settle(void)
{
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, 0), 0); /* closes the open epoch */
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, 0), 0);
    assert_int_equal(stats().pending_bytes, 0);
    sound();
    fake_log();
}

static void small_blocks_are_aligned_to_granules(void **state)
{
    (void)state;
    held_t a = get(1), b = get(513), c = get(512);
    assert_int_equal(b.address - a.address, 512);
    assert_int_equal(c.address - b.address, 1024);
    assert_int_equal(stats().live_bytes, 2048);
    put(&a), put(&b), put(&c);
}

static void blocks_from_64_kib_are_aligned_to_pages(void **state)
{
    (void)state;
    held_t a = get(512), b = get(64 * KIB), c = get(64 * KIB - 1), d = get(MIB + 1);
    assert_int_equal(b.address % CA_PAGE, 0);
    assert_int_equal(d.address % CA_PAGE, 0);
    put(&a), put(&b), put(&c), put(&d);
}

static void any_upstream_alignment_is_handled(void **state)
{
    (void)state;
    static const size_t offsets[] = {512, 4096, 3584, 1, 4095};
    for (unsigned i = 0; i < 5; i++) {
        fake.misalign = offsets[i];
        held_t a = get(512), b = get(64 * KIB), c = get(16 * MIB), d = get(100 * MIB);
        put(&a), put(&b), put(&c), put(&d);
        settle();
        assert_true(ca_arena_trim(arena, SIZE_MAX) > 0);
        sound();
        assert_int_equal(fake.used, 0);
    }
}

static void the_first_segment_is_small(void **state)
{
    (void)state;
    held_t a = get(1);
    assert_int_equal(stats().reserved_bytes, FAKE_SEGMENT);
    put(&a);
}

static void segments_grow_with_the_reserve(void **state)
{
    (void)state;
    fake.limit = 16384 * MIB; /* of which that is little: see pool/blocks/mixed.h */
    held_t a = get(100 * MIB), b = get(2 * MIB);
    assert_int_equal(stats().reserved_bytes, 100 * MIB + 16 * MIB);
    held_t c = get(500 * MIB - 1), d = get(30 * MIB);
    assert_int_equal(stats().reserved_bytes, 616 * MIB + 90 * MIB); /* three times 30, no rest */
    put(&a), put(&b), put(&c), put(&d);
}

/* Until there are many of them. */
static void what_is_little_beside_the_others_makes_it_grow_by_little(void **state)
{
    (void)state;
    enum { FIT = 2048 / 10 };
    fake.auto_pass = true;
    held_t large = get(100 * MIB), one = get(100 * MIB / CA_GROW_TRIFLE), many[FIT + 1];
    assert_int_equal(stats().reserved_bytes, 100 * MIB + CA_SEGMENT_UNIT);
    put(&one);
    for (unsigned i = 0; i < FIT; i++)
        many[i] = get(10 * KIB);
    assert_int_equal(stats().reserved_bytes, 100 * MIB + CA_SEGMENT_UNIT);
    many[FIT] = get(10 * KIB);
    assert_in_range(stats().reserved_bytes, 116 * MIB, 120 * MIB);
    for (unsigned i = 0; i <= FIT; i++)
        put(&many[i]);
    put(&large);
}

static void a_large_request_gets_a_segment_of_its_size(void **state)
{
    (void)state;
    held_t a = get(65 * MIB + 1);
    assert_int_equal(stats().reserved_bytes, 66 * MIB);
    put(&a);
}

static void impossible_sizes_are_refused_without_a_call(void **state)
{
    (void)state;
    held_t a;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2, ((size_t)1 << 56) + 1};
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(hold(arena, sizes[i], &a), -ENOMEM);
    assert_string_equal(fake_log(), "");
    sound();
}

static void fresh_memory_is_not_called_reused(void **state)
{
    (void)state;
    held_t a = get(MIB), b = get(MIB);
    assert_false(a.reused);
    assert_false(b.reused);
    put(&a), put(&b);
    settle();
    held_t c = get(512), d = get(512); /* cut from one of them */
    assert_true(c.reused);
    assert_true(d.reused);
    put(&c), put(&d);
}

static void merged_memory_is_called_reused_when_a_part_was(void **state)
{
    (void)state;
    held_t a = get(512);
    put(&a);
    settle(); /* now one block with the rest of the segment */
    held_t b = get(FAKE_SEGMENT);
    assert_string_equal(fake_log(), "");
    assert_true(b.reused);
    put(&b);
}

static void merged_memory_is_called_reused_when_its_upper_part_was(void **state)
{
    (void)state;
    held_t a = get(512), b = get(64 * KIB); /* 3.5 KiB between them were skipped */
    put(&b);
    settle();
    held_t c = get(8 * KIB);
    assert_int_equal(c.address, a.address + 512);
    assert_true(c.reused);
    put(&a), put(&c);
}

static void freed_neighbours_become_one_block(void **state)
{
    (void)state;
    held_t held[8];
    for (unsigned i = 0; i < 8; i++)
        held[i] = get(MIB);
    static const unsigned order[] = {1, 3, 0, 2, 7, 5, 4, 6};
    for (unsigned i = 0; i < 8; i++) {
        put(&held[order[i]]);
        settle();
    }
    assert_int_equal(stats().blocks, 1);
    assert_int_equal(stats().largest_ready, FAKE_SEGMENT);
}

static void statistics_add_up(void **state)
{
    (void)state;
    held_t a = get(MIB), b = get(2 * MIB);
    put(&a);
    ca_arena_stats_t now = stats();
    assert_int_equal(now.live_bytes, 2 * MIB);
    assert_int_equal(now.live_peak, 3 * MIB);
    assert_int_equal(now.pending_bytes, MIB);
    assert_int_equal(now.ready_bytes, 5 * MIB);
    assert_int_equal(now.largest_ready, 5 * MIB);
    assert_int_equal(now.reserved_bytes, 8 * MIB);
    assert_int_equal(now.segments, 1);
    assert_int_equal(now.blocks, 3);
    put(&b);
}

static void hits_and_misses_are_counted(void **state)
{
    (void)state;
    uint64_t hits = ca_counter_read(pool_hits), misses = ca_counter_read(pool_misses);
    held_t a = get(MIB), b = get(MIB), c = get(20 * MIB);
    assert_int_equal(ca_counter_read(pool_misses) - misses, 2);
    assert_int_equal(ca_counter_read(pool_hits) - hits, 1);
    put(&a), put(&b), put(&c);
}

static void oversize_blocks_are_never_split(void **state)
{
    (void)state;
    params.max_split = 4 * MIB;
    with(params);
    held_t high = get(60 * MIB); /* a peak, so that nothing below it is given back */
    put(&high);
    settle();
    ca_arena_trim(arena, SIZE_MAX);
    held_t a = get(20 * MIB);
    assert_int_equal(stats().reserved_bytes, 20 * MIB);
    put(&a);
    settle();
    held_t b = get(MIB); /* not from the idle 20 MiB */
    assert_true(b.address < a.address || b.address >= a.address + 20 * MIB);
    put(&b);
}

static void oversize_blocks_serve_only_close_requests(void **state)
{
    (void)state;
    params.max_split = 4 * MIB;
    with(params);
    held_t big = get(80 * MIB);
    put(&big);
    settle();
    held_t near = get(73 * MIB); /* 7 MiB unused, within an eighth */
    assert_string_equal(fake_log(), "");
    assert_int_equal(near.address, big.address);
    put(&near);
    settle();
    held_t far = get(60 * MIB);
    assert_non_null(strchr(fake_log(), 'A'));
    put(&far);
}

static void the_limit_is_kept(void **state)
{
    (void)state;
    params.limit = 20 * MIB;
    with(params);
    held_t a = get(16 * MIB), b = get(MIB), c;
    assert_true(stats().reserved_bytes <= 20 * MIB);
    assert_int_equal(hold(arena, 4 * MIB, &c), -ENOMEM);
    sound();
    assert_int_equal(hold(arena, 21 * MIB, &c), -ENOMEM);
    held_t d = get(2 * MIB);
    assert_true(stats().reserved_bytes <= 20 * MIB);
    put(&a), put(&b), put(&d);
}

static void trim_gives_back_idle_segments_only(void **state)
{
    (void)state;
    held_t a = get(30 * MIB), b = get(40 * MIB), c = get(512);
    put(&a), put(&b);
    fake_pass_all();
    fake_log();
    assert_int_equal(ca_arena_trim(arena, 1), 40 * MIB); /* largest first */
    sound();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 30 * MIB);
    sound();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    put(&c);
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0); /* its fence is recorded only now */
    fake_pass_all();
    assert_true(ca_arena_trim(arena, SIZE_MAX) > 0);
    assert_int_equal(fake.used, 0);
    assert_int_equal(fake.fences, 0);
    sound();
}

static void ours_is_what_lies_in_a_segment(void **state)
{
    (void)state;
    held_t a = get(512);
    uint64_t base = a.address;
    assert_true(ca_pool_owns(base));
    assert_true(ca_pool_owns(base + FAKE_SEGMENT - 1));
    assert_false(ca_pool_owns(base + FAKE_SEGMENT));
    assert_false(ca_pool_owns(base - 1));
    put(&a);
    settle();
    ca_arena_trim(arena, SIZE_MAX);
    assert_false(ca_pool_owns(base));
}

static void two_arenas_do_not_mix(void **state)
{
    (void)state;
    int context;
    ca_arena_t *other = ca_arena_create(&fake_upstream, &context, &params);
    held_t a = get(512), b;
    assert_int_equal(hold(other, 512, &b), 0);
    assert_ptr_equal(ca_block_arena(a.block), arena);
    assert_ptr_equal(ca_block_arena(b.block), other);
    assert_ptr_equal(ca_arena_context(other), &context);
    let_go(&b);
    put(&a);
    assert_null(ca_arena_check(other));
    uint64_t address = b.address;
    ca_arena_retire(other);
    assert_false(ca_pool_owns(address));
}

/* The driver gives an address away before we are told that its context has ended. */
static void a_range_that_comes_again_is_the_later_arenas(void **state)
{
    (void)state;
    int context;
    uint64_t base = UINT64_C(0x10000000000);
    ca_arena_t *later = ca_arena_create(&fake_upstream, &context, &params);
    assert_int_equal(ca_span_add(base, MIB, arena), 0);
    assert_int_equal(ca_span_add(base, MIB, later), 0);
    ca_span_remove(base, MIB, arena);
    assert_ptr_equal(ca_span_arena(base), later);
    ca_span_remove(base, MIB, later);
    assert_null(ca_span_arena(base));

    /* Or other ranges there, over some and within one. The others are looked at until it is told.
     */
    for (int i = 0; i < 4; i++)
        assert_int_equal(ca_span_add(base + 4 * i * MIB, 3 * MIB, arena), 0);
    assert_int_equal(ca_span_add(base + 2 * MIB, 8 * MIB, later), 0);
    assert_int_equal(ca_span_add(base + 13 * MIB, MIB, later), 0);
    const char owners[] = "aalllllllla-ala";
    for (int i = 0; i < 15; i++)
        assert_ptr_equal(ca_span_arena(base + i * MIB), owners[i] == 'a'   ? arena
                                                        : owners[i] == 'l' ? later
                                                                           : NULL);
    for (int i = 0; i < 4; i++)
        ca_span_remove(base + 4 * i * MIB, 3 * MIB, arena);
    for (int i = 0; i < 15; i++)
        assert_ptr_equal(ca_span_arena(base + i * MIB),
                         (i >= 2 && i < 10) || i == 13 ? later : NULL);
    ca_span_remove(base + 2 * MIB, 8 * MIB, later);
    ca_span_remove(base + 13 * MIB, MIB, later);
    for (int i = 0; i < 15; i++)
        assert_null(ca_span_arena(base + i * MIB));
    ca_arena_retire(later);
}

static void an_arena_whose_addresses_another_has_serves_nothing(void **state)
{
    (void)state;
    int context;
    held_t a, b;
    ca_arena_t *later = ca_arena_create(&fake_upstream, &context, &params);
    assert_int_equal(hold(arena, 512, &a), 0);
    assert_int_equal(ca_span_add(a.address, CA_PAGE, later), 0);
    ca_span_remove(a.address, CA_PAGE, later);
    assert_null(ca_arena_check(arena)); /* its context died; nothing in it is wrong */
    assert_int_equal(hold(arena, 64 * MIB, &b), -EIO);
    let_go(&a);
    ca_arena_retire(later);
}

static void retire_now(void)
{
    ca_arena_retire(arena);
}

/* Between the two a context that is about to end waits for the thread. */
static void upstream_is_told_when_its_memory_is_in_the_index(void **state)
{
    (void)state;
    held_t a;
    assert_int_equal(hold(arena, 512, &a), 0);
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
    assert_int_equal(fake.placed, 1);
    let_go(&a);

    fake.on_call[FAKE_ALLOC] = retire_now; /* as well where it goes nowhere */
    assert_int_equal(hold(arena, 64 * MIB, &a), -EIO);
    assert_int_equal(fake.placed, 1);
    assert_int_equal(fake.nowhere, 1);
}

static void a_retired_arena_calls_nothing(void **state)
{
    (void)state;
    held_t a = get(30 * MIB), b = get(20 * MIB), c;
    put(&a);
    fake_log();
    ca_arena_retire(arena);
    ca_arena_retire(arena);
    assert_false(ca_pool_owns(b.address));
    let_go(&b);
    assert_int_equal(hold(arena, 512, &c), -EIO);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    assert_int_equal(stats().reserved_bytes, 0);
    assert_string_equal(fake_log(), "");
    sound();
}

static void the_reserve_of_the_process_counts_what_is_held_together(void **state)
{
    (void)state;
    size_t before, peak_before, now, peak;
    held_t high = get(900 * MIB); /* above all that other tests reserved */
    ca_pool_reserved(false, &before, &peak_before);
    assert_true(before >= 900 * MIB && peak_before == before);
    for (unsigned i = 0; i < 5; i++) { /* one at a time */
        ca_arena_t *other = ca_arena_create(&fake_upstream, NULL, &params);
        held_t a;
        assert_int_equal(hold(other, 30 * MIB, &a), 0);
        ca_pool_reserved(false, &now, &peak);
        assert_int_equal(now, before + 30 * MIB);
        ca_arena_retire(other);
        ca_arena_retire(other);
        fake.used -= 30 * MIB; /* gone with its context */
    }
    ca_pool_reserved(false, &now, &peak);
    assert_int_equal(now, before);
    assert_int_equal(peak, peak_before + 30 * MIB);
    put(&high);
    settle();
    ca_arena_trim(arena, SIZE_MAX);
    ca_pool_reserved(false, &now, &peak);
    assert_int_equal(now, before - 900 * MIB);
}

static void a_retired_arena_has_no_statistics(void **state)
{
    (void)state;
    static const ca_arena_stats_t none;
    get(30 * MIB);
    ca_arena_retire(arena);
    ca_arena_stats_t now = stats();
    assert_memory_equal(&now, &none, sizeof none);
}

/* The record of such a free was erased before the context went. */
static void a_free_may_come_after_any_number_of_contexts(void **state)
{
    (void)state;
    ca_arena_t *first = arena;
    ca_block_t *late = get(512).block;
    for (unsigned i = 0; i < 100; i++) {
        with(params);
        fake_reset(1024 * MIB, 1024 * MIB);
        get(512);
    }
    held_t a = get(512);
    assert_null(ca_block_arena(late));
    assert_null(ca_arena_context(ca_block_arena(late)));
    ca_arena_free(late);
    held_t none;
    assert_int_equal(hold(first, 512, &none), -EIO); /* never another context's memory */
    assert_int_equal(ca_arena_trim(first, SIZE_MAX), 0);
    assert_int_equal(stats().live_bytes, 2 * 512);
    put(&a);
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*s %lu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void a_retired_arena_keeps_next_to_no_memory(void **state)
{
    (void)state;
    enum { CONTEXTS = 1000 };
    size_t before = 0, mapped = 0;
    for (unsigned i = 0; i < CONTEXTS; i++) {
        if (i == 10)
            before = resident_bytes(), mapped = ca_mem_mapped();
        held_t held[8];
        for (unsigned j = 0; j < 8; j++)
            assert_int_equal(hold(arena, j % 2 ? 512 : 64 * KIB, &held[j]), 0);
        let_go(&held[0]);
        ca_arena_trim(arena, 0);
        with(params);
        fake_reset(1024 * MIB, 0);
    }
    assert_true(ca_mem_mapped() - mapped <= CONTEXTS * 20 * KIB);   /* addresses */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* have shadows of it all */
    /* The kernel counts by CPU, and tells some 100 KiB too much now and then. */
    assert_true(resident_bytes() < before + CONTEXTS * (KIB + 256));
#else
    (void)before;
#endif
}

static void a_revived_arena_is_as_a_new_one(void **state)
{
    (void)state;
    held_t a = get(512), b = get(8 * MIB);
    ca_block_t *late = a.block;
    put(&b);
    assert_false(ca_arena_revive(arena)); /* it lives */
    size_t mapped = ca_mem_mapped();
    for (unsigned i = 0; i < 100; i++) {
        ca_arena_retire(arena);
        assert_null(ca_block_arena(late));
        fake_reset(1024 * MIB, 0);
        assert_true(ca_arena_revive(arena));
        sound();
        assert_int_equal(stats().reserved_bytes, 0);
        a = get(512), b = get(8 * MIB);
        put(&b);
        assert_int_equal(stats().live_bytes, 512);
    }
    assert_true(ca_mem_mapped() <= mapped); /* no addresses either */
    put(&a);
}

static void an_arena_is_not_revived_under_who_is_inside(void **state)
{
    (void)state;
    held_t a = get(512);
    ca_arena_retire_begin(arena);
    assert_false(ca_arena_revive(arena));
    ca_arena_retire_end(arena);
    let_go(&a);
    assert_true(ca_arena_revive(arena));
    sound();
}

static size_t mapped_by_the_process(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* In a child that has memory for the bins and not for an epoch. */
static void an_arena_that_cannot_be_revived_is_as_before(void **state)
{
    (void)state;
    int status;
    ca_arena_retire(arena);
    pid_t child = fork();
    if (child == 0) {
        size_t bins = CA_POOLS * sizeof(ca_bins_t) + sizeof(ca_cache_t);
        struct rlimit none = {.rlim_cur = mapped_by_the_process() + bins + 16 * KIB};
        none.rlim_max = none.rlim_cur;
        setrlimit(RLIMIT_AS, &none);
        alarm(10); /* what is wrong may end or hang */
        bool revived = ca_arena_revive(arena);
        ca_arena_note_free_bytes(arena, 0);
        _exit(revived || ca_arena_trim(arena, MIB) != 0 || ca_arena_check(arena) != NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(ca_arena_revive(arena));
    sound();
}

static void statistics_do_not_wait_for_a_lock_that_is_not_let_go(void **state)
{
    (void)state;
    held_t a = get(MIB);
    ca_arena_stats_t now;
    ca_lock_take(&arena->lock); /* as the frame that a signal handler interrupted */
    bool obtained = ca_arena_stats_try(arena, &now);
    ca_lock_drop(&arena->lock);
    assert_false(obtained);
    assert_true(ca_arena_stats_try(arena, &now));
    assert_int_equal(now.live_bytes, MIB);
    put(&a);
}

static atomic_int forked;

/* Forks while another thread is in the pool, as often as it takes to meet its locks taken. */
static void *churn(void *arg)
{
    ca_arena_t *mine = ca_arena_create(&fake_upstream, NULL, &fake_params);
    (void)arg;
    while (!atomic_load(&forked))
        ca_pool_owns(FAKE_BASE);
    ca_arena_retire(mine);
    return NULL;
}

static void the_child_of_a_fork_has_an_empty_index_and_no_totals(void **state)
{
    (void)state;
    pthread_t thread;
    held_t a = get(MIB);
    bool good = true;
    atomic_store(&forked, 0);
    pthread_create(&thread, NULL, churn, NULL);
    for (unsigned i = 0; i < 20 && good; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            ca_pool_reset_after_fork();
            size_t now, peak;
            ca_pool_reserved(false, &now, &peak);
            ca_arena_t *own = ca_arena_create(&fake_upstream, NULL, &fake_params);
            _exit(now || peak || ca_pool_owns(a.address) || !own);
        }
        int status = -1;
        waitpid(child, &status, 0);
        good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    atomic_store(&forked, 1);
    pthread_join(thread, NULL);
    assert_true(good);
    assert_true(ca_pool_owns(a.address));
    put(&a);
}

static void a_broken_context_stops_the_arena(void **state)
{
    (void)state;
    held_t a = get(512), b = get(512), c;
    assert_false(arena->stopped);
    fake.fail_at[FAKE_ALLOC] = 1;
    fake.fail_rc[FAKE_ALLOC] = -EIO;
    assert_int_equal(hold(arena, 100 * MIB, &c), -EIO);
    sound();
    assert_true(arena->stopped);
    fake_log();
    assert_int_equal(hold(arena, 512, &c), -EIO);
    put(&a), put(&b);
    assert_int_equal(stats().pending_bytes, 1024);
    assert_string_equal(fake_log(), "");
}

static void freeing_twice_changes_nothing(void **state)
{
    (void)state;
    held_t a = get(512);
    ca_block_t *block = a.block;
    put(&a);
    ca_arena_free(block);
    sound();
    assert_int_equal(stats().pending_bytes, 512);
}

static void an_unknown_upstream_error_leaves_the_cache_alone(void **state)
{
    (void)state;
    held_t a = get(30 * MIB), b;
    put(&a);
    settle();
    fake.fail_at[FAKE_ALLOC] = 1;
    fake.fail_rc[FAKE_ALLOC] = -EAGAIN;
    params = fake_params;
    assert_int_equal(hold(arena, 20 * MIB + 11 * MIB, &b), -ENOMEM);
    sound();
    assert_false(arena->stopped);
    held_t c = get(64 * MIB);
    put(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(small_blocks_are_aligned_to_granules),
        TEST(blocks_from_64_kib_are_aligned_to_pages),
        TEST(any_upstream_alignment_is_handled),
        TEST(the_first_segment_is_small),
        TEST(segments_grow_with_the_reserve),
        TEST(what_is_little_beside_the_others_makes_it_grow_by_little),
        TEST(a_large_request_gets_a_segment_of_its_size),
        TEST(impossible_sizes_are_refused_without_a_call),
        TEST(fresh_memory_is_not_called_reused),
        TEST(merged_memory_is_called_reused_when_a_part_was),
        TEST(merged_memory_is_called_reused_when_its_upper_part_was),
        TEST(freed_neighbours_become_one_block),
        TEST(statistics_add_up),
        TEST(hits_and_misses_are_counted),
        TEST(oversize_blocks_are_never_split),
        TEST(oversize_blocks_serve_only_close_requests),
        TEST(the_limit_is_kept),
        TEST(trim_gives_back_idle_segments_only),
        TEST(ours_is_what_lies_in_a_segment),
        TEST(two_arenas_do_not_mix),
        TEST(a_range_that_comes_again_is_the_later_arenas),
        TEST(an_arena_whose_addresses_another_has_serves_nothing),
        TEST(upstream_is_told_when_its_memory_is_in_the_index),
        TEST(a_retired_arena_calls_nothing),
        TEST(the_reserve_of_the_process_counts_what_is_held_together),
        TEST(a_retired_arena_has_no_statistics),
        TEST(a_free_may_come_after_any_number_of_contexts),
        TEST(a_retired_arena_keeps_next_to_no_memory),
        TEST(a_revived_arena_is_as_a_new_one),
        TEST(an_arena_is_not_revived_under_who_is_inside),
        TEST(an_arena_that_cannot_be_revived_is_as_before),
        TEST(statistics_do_not_wait_for_a_lock_that_is_not_let_go),
        TEST(the_child_of_a_fork_has_an_empty_index_and_no_totals),
        TEST(a_broken_context_stops_the_arena),
        TEST(freeing_twice_changes_nothing),
        TEST(an_unknown_upstream_error_leaves_the_cache_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
