/* Thread caches: what a hit must not do, late frees, the ends of threads, the depot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/counters.h"
#include "one_cache.h"
#include "pool/cache/cache_hit.h"

/* --- classes ---------------------------------------------------------------------------------- */

static void a_class_is_at_most_a_sixteenth_larger_than_the_request(void **state)
{
    (void)state;
    size_t before = 0;
    for (size_t bytes = CA_GRANULE; bytes <= CA_CACHE_MOST; bytes += CA_GRANULE) {
        size_t class = class_bytes(bytes);
        assert_in_range(class, bytes, bytes + bytes / 16);
        assert_true(class >= before);
        assert_int_equal(class_bytes(class), class);
        if (class >= CA_PAGE_FROM)
            assert_int_equal(class % CA_PAGE, 0);
        before = class;
    }
    assert_int_equal(before, CA_CACHE_MOST);
}

/* --- the hit path ----------------------------------------------------------------------------- */

static void *pairs_under_the_lock(void *unused)
{
    (void)unused;
    held_t held;
    go_through(1000, CA_CACHE_EPOCH_BLOCKS); /* the last free closes an epoch */
    fake_pass_all();
    go_through(1000, CA_CACHE_EPOCH_BLOCKS); /* and the last of these asks about that one */
    fake_log();
    ca_lock_take(&arena->lock);
    for (unsigned i = 0; i < CA_CACHE_EPOCH_BLOCKS - 1; i++) {
        hold(arena, 1000, &held);
        let_go(&held);
    }
    ca_lock_drop(&arena->lock);
    assert_string_equal(fake_log(), "");
    return NULL;
}

/* Would not end otherwise: the lock is taken by this very thread. */
static void a_pair_in_stock_takes_no_lock_and_makes_no_call(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    on_thread(pairs_under_the_lock, NULL);
    end();
}

static void an_epoch_is_closed_by_every_so_many_frees(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    uint64_t before = fake.recorded, operations = arena->operations;
    held_t held;
    fake.auto_pass = true;
    for (unsigned i = 0; i < 10 * CA_CACHE_EPOCH_BLOCKS; i++) {
        hold(arena, 1000, &held);
        let_go(&held);
    }
    assert_int_equal(fake.recorded - before, 10);
    assert_true(fake.calls[FAKE_QUERY] <= 11);
    /* Each time the heap hears of them. */
    assert_true(arena->operations - operations >= 20 * CA_CACHE_EPOCH_BLOCKS);
    end();
}

static void what_was_freed_is_not_handed_out_before_its_fence(void **state)
{
    (void)state;
    held_t held[4];
    start(1024 * MIB, CACHED);
    for (unsigned round = 0; round < 100; round++) { /* nothing passes: the fake watches */
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(hold(arena, 20000 << i, &held[i]), 0);
        for (unsigned i = 0; i < 4; i++)
            let_go(&held[i]);
    }
    assert_int_equal(fake.errors, 0);
    end();
}

static void a_double_free_is_ignored(void **state)
{
    (void)state;
    held_t held, again;
    start(1024 * MIB, CACHED);
    hold(arena, 1000, &held);
    again = held;
    let_go(&held);
    ca_cached_free(again.block);
    end();
}

static void a_block_in_stock_says_what_it_was(void **state)
{
    (void)state;
    ca_pool_place_t cached;
    held_t held[8];
    size_t others = 0;
    start(1024 * MIB, CACHED);
    for (unsigned i = 0; i < 8; i++) {
        hold(arena, 1000, &held[i]);
        assert_non_null(held[i].block);
        ca_block_record(held[i].block)->payload[3] = 1000 + i;
    }
    assert_false(ca_pool_place(held[0].address).cached); /* it is live */
    for (unsigned i = 0; i < 8; i++)
        let_go(&held[i]);
    for (unsigned i = 0; i < 8; i++) {
        cached = ca_pool_place(held[i].address + 100);
        assert_true(cached.cached);
        assert_int_equal(cached.block, held[i].address);
        assert_int_equal(cached.bytes, 1024);
        assert_int_equal(cached.payload, 1000 + i);
        assert_false(cached.host);
    }
    /* What came into stock for later was nobody's. */
    for (uint64_t at = held[0].address; ca_pool_owns(at); at += 512)
        if ((cached = ca_pool_place(at)).cached &&
            (cached.payload < 1000 || cached.payload >= 1008)) {
            assert_int_equal(cached.payload, 0);
            others++;
        }
    assert_int_not_equal(others, 0);
    end();
    assert_int_equal(ca_pool_place(held[0].address).segment, 0);
}

static void let_go_to_the_heap(held_t *held)
{
    fake_unuse(held->address, held->bytes);
    ca_arena_free(held->block);
}

static void a_block_that_comes_into_stock_for_later_was_nothing(void **state)
{
    (void)state;
    ca_pool_place_t cached;
    held_t held[64], more[64];
    size_t seen = 0;
    start(1024 * MIB, CACHED);
    for (unsigned i = 0; i < 64; i++) {
        hold(arena, 1000, &held[i]);
        assert_non_null(held[i].block);
        ca_block_record(held[i].block)->payload[3] = UINT64_MAX;
    }
    for (unsigned i = 0; i < 64; i += 2) /* no two merge */
        let_go_to_the_heap(&held[i]);
    hold(arena, 4 * MIB, &more[0]);
    let_go(&more[0]); /* which closes the epoch */
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX); /* which asks */
    for (unsigned i = 0; i < 64; i++) {
        hold(arena, 1000, &more[i]);
        for (unsigned k = 0; k < 64; k += 2)
            if ((cached = ca_pool_place(held[k].address)).cached) {
                assert_int_equal(cached.payload, 0);
                seen++;
            }
    }
    for (unsigned i = 0; i < 64; i++)
        let_go(&more[i]);
    assert_int_not_equal(seen, 0);
    for (unsigned i = 1; i < 64; i += 2)
        let_go_to_the_heap(&held[i]);
    end();
}

/* --- late frees --------------------------------------------------------------------------------
 */

static held_t freed_meanwhile;

/* And then the program submits what waits for the thread that records. */
static void free_it(void)
{
    fake.on_call[FAKE_RECORD] = NULL;
    let_go(&freed_meanwhile);
}

static void what_is_freed_while_a_fence_is_recorded_is_not_behind_it(void **state)
{
    (void)state;
    held_t held, pending, none;
    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    assert_int_equal(hold(arena, 600 * MIB, &held), 0); /* and the caches stay open for a while */
    hold(arena, 1000, &freed_meanwhile);
    hold(arena, 2 * MIB, &pending);
    fake_pass_all();
    let_go(&pending);
    assert_true(arena->plain_fences.open->bytes > 0);
    assert_true(arena->operations < arena->locked_out_after);

    fake.on_call[FAKE_RECORD] = free_it;
    assert_int_equal(hold(arena, 600 * MIB, &none), -ENOMEM);
    assert_null(fake.on_call[FAKE_RECORD]);
    assert_int_equal(fake.unbounded_waits, 0);
    let_go(&held);
    end();
}

static void free_in_no_order(ca_block_t *block)
{
    ca_cached_free_async(block, NULL, 0);
}

/* Whether a request for all there is waits without bound, after so many frees into the cache, the
 * last one of which closes its epoch. */
static bool waits_for(unsigned count, void (*free_block)(ca_block_t *))
{
    held_t held, none, block[CA_CACHE_EPOCH_BLOCKS];
    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    assert_int_equal(hold(arena, 600 * MIB, &held), 0);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(hold(arena, 32 * KIB, &block[i]), 0);
    fake_pass_all();
    for (unsigned i = 0; i < count; i++)
        let_go_by(&block[i], free_block);
    assert_true(ca_caches_bytes(arena) >= count * 32 * KIB);
    assert_int_equal(hold(arena, 600 * MIB, &none), -ENOMEM);
    bool waited = fake.unbounded_waits > 0;
    let_go(&held);
    end();
    return waited;
}

static void stock_that_calls_freed_which_do_not_wait_is_not_waited_for(void **state)
{
    (void)state;
    assert_true(waits_for(CA_CACHE_EPOCH_BLOCKS, ca_cached_free));
    assert_false(waits_for(CA_CACHE_EPOCH_BLOCKS, free_in_no_order));
    assert_false(waits_for(CA_CACHE_EPOCH_BLOCKS - 1, free_in_no_order));
}

static void a_heap_that_nobody_used_has_seen_no_operation(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    fake_reset(64 * MIB, 128 * MIB);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    ca_lock_take(&arena->lock);
    ca_caches_publish(arena);
    ca_lock_drop(&arena->lock);
    assert_int_equal(arena->operations, 0);
    end();
}

/* A thread that uses memory of two heaps by turns, as of a device and pinned memory, has both at
 * hand. */
static void heaps_made_one_after_the_other_have_places_of_their_own(void **state)
{
    (void)state;
    ca_arena_t *heaps[CA_CACHE_RECENT];
    fake_reset(64 * MIB, 128 * MIB);
    for (unsigned i = 0; i < CA_CACHE_RECENT; i++) {
        heaps[i] = ca_arena_create(&fake_upstream, NULL, &fake_params);
        assert_non_null(heaps[i]);
    }
    for (unsigned i = 1; i < CA_CACHE_RECENT; i++)
        assert_int_not_equal(ca_cache_recent_at(heaps[i]), ca_cache_recent_at(heaps[i - 1]));
    for (unsigned i = 0; i < CA_CACHE_RECENT; i++)
        ca_arena_retire(heaps[i]);
}

/* --- ends and failures -------------------------------------------------------------------------
 */

static void retire_it(void)
{
    ca_arena_retire(arena);
    assert_int_equal(ca_caches_bytes(arena), 0);
}

static void a_cache_forgets_a_retired_heap_and_serves_the_next(void **state)
{
    (void)state;
    held_t late;
    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    hold(arena, 1000, &late);
    beside_a_full_cache(1000, retire_it);
    assert_int_equal(hold(arena, 1000, &(held_t){0}), -EIO);
    ca_cached_free(late.block);

    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    assert_true(ca_caches_bytes(arena) > 0);
    end();
}

static void a_cache_serves_a_heap_again_that_was_revived(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    ca_arena_retire(arena);
    fake_reset(1024 * MIB, 2048 * MIB);
    assert_true(ca_arena_revive(arena));
    settle_in();
    go_through(1000, 10);
    assert_true(ca_caches_bytes(arena) > 0);
    end();
}

/* --- the depot ---------------------------------------------------------------------------------
 */

#define SURPLUS (3 * CA_CACHE_CLASS_BLOCKS)

static void *free_all(void *held)
{
    for (unsigned i = 0; i < SURPLUS; i++)
        let_go(&((held_t *)held)[i]);
    return NULL;
}

static uint64_t cuts_and_merges(void)
{
    return ca_counter_read(splits) + ca_counter_read(merges);
}

/* What this thread frees, others allocated: most of it goes to the depot whole. */
static void *free_then_look(void *held)
{
    free_all(held);
    assert_int_equal(arena->depot->classes[1].count, CA_CACHE_CLASS_BLOCKS);
    assert_null(ca_arena_check(arena));
    return NULL;
}

static void what_one_thread_frees_another_gets_whole(void **state)
{
    (void)state;
    static held_t held[SURPLUS];
    start(1024 * MIB, 64 * MIB);
    fake.auto_pass = true;
    for (unsigned i = 0; i < SURPLUS; i++)
        assert_int_equal(hold(arena, 1000, &held[i]), 0);
    on_thread(free_then_look, held);
    go_through(1000, 1); /* this thread's stock is used up first */
    while (arena->depot->classes[1].count == CA_CACHE_CLASS_BLOCKS)
        assert_int_equal(hold(arena, 1000, &held[0]), 0);
    uint64_t before = cuts_and_merges();
    for (unsigned i = 1; i < CA_CACHE_CLASS_BLOCKS / 2; i++)
        assert_int_equal(hold(arena, 1000, &held[i]), 0);
    assert_int_equal(cuts_and_merges(), before);
    assert_null(ca_arena_check(arena));
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    assert_true(stats.live_bytes < CA_CACHE_CLASS_BLOCKS * 1024);
    ca_arena_retire(arena);
    free(fake.stamps);
    fake.stamps = NULL;
}

/* Its blocks are the heap's like those of any cache. */
static void the_depot_comes_before_growth(void **state)
{
    (void)state;
    static held_t held[SURPLUS];
    held_t large;
    start(1024 * MIB, 64 * MIB);
    fake.auto_pass = true;
    for (unsigned i = 0; i < SURPLUS; i++)
        assert_int_equal(hold(arena, 1000, &held[i]), 0);
    on_thread(free_then_look, held);
    uint64_t before = fake.calls[FAKE_ALLOC];
    assert_int_equal(hold(arena, 2 * MIB, &large), 0);
    let_go(&large);
    assert_int_equal(fake.calls[FAKE_ALLOC], before);
    end();
}

/* --- epochs that fell behind --------------------------------------------------------------------
 */

/* Each free that closes an epoch asks about one; were it never more, the line would stay as long as
 * it once became. */
static void a_line_that_fell_behind_catches_up(void **state)
{
    (void)state;
    held_t held;
    start(1024 * MIB, CACHED);
    fake.auto_pass = false;
    for (unsigned i = 0; i < 20 * CA_CACHE_EPOCH_BLOCKS; i++) {
        hold(arena, 1000, &held);
        let_go(&held);
    }
    assert_true(arena->plain_fences.closed.count > 10);
    fake_pass_all();
    fake.auto_pass = true;
    for (unsigned i = 0; i < 60 * CA_CACHE_EPOCH_BLOCKS; i++) {
        hold(arena, 1000, &held);
        let_go(&held);
    }
    assert_in_range(arena->plain_fences.closed.count, 0, CA_EPOCHS_BEHIND + 1);
    end();
}

/* --- climbs ------------------------------------------------------------------------------------
 */

/* A request that the caches cannot serve comes again and again: what lies in them is not merged and
 * cut again for each. */
static void a_climb_that_fences_help_leaves_the_caches_alone(void **state)
{
    (void)state;
    held_t small[32], large;
    start(1024 * MIB, CACHED);
    fake.auto_pass = true;
    uint64_t before = 0;
    for (unsigned round = 0; round < 40; round++) {
        if (round == 20)
            before = cuts_and_merges();
        for (unsigned i = 0; i < 32; i++)
            assert_int_equal(hold(arena, 1000 + i * 1000, &small[i]), 0);
        for (unsigned i = 0; i < 32; i++)
            let_go(&small[i]);
        assert_int_equal(hold(arena, 2 * MIB, &large), 0);
        let_go(&large);
    }
    /* 20 rounds of 33 pairs: now and then all are merged and cut, and the large one is each time.
     */
    assert_true(cuts_and_merges() - before < 20 * 8 + 4 * 33);
    end();
}

static void a_broken_heap_serves_nothing_from_stock(void **state)
{
    (void)state;
    held_t held;
    start(1024 * MIB, CACHED);
    go_through(1000, CA_CACHE_EPOCH_BLOCKS - 2);
    fake_pass_all();
    fake.fail_at[FAKE_RECORD] = 1;
    fake.fail_rc[FAKE_RECORD] = -EIO;
    go_through(1000, 2);
    assert_int_equal(hold(arena, 1000, &held), -EIO);
    assert_int_equal(ca_caches_bytes(arena), 0);
    ca_arena_retire(arena);
}

/* The mark of a fence that was refused stays with the open epoch, and passes with the next. */
static void a_refused_fence_loses_nothing(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    fake.capturing = true;
    for (unsigned round = 0; round < 5; round++)
        go_through(1000, CA_CACHE_EPOCH_BLOCKS);
    fake.capturing = false;
    for (unsigned round = 0; round < 5; round++) {
        go_through(1000, CA_CACHE_EPOCH_BLOCKS);
        assert_null(ca_arena_check(arena));
        fake_pass_all();
    }
    end();
}

/* Memory that the class would need is there, but for the rounding. */
static void a_request_is_not_refused_for_the_sake_of_its_class(void **state)
{
    (void)state;
    enum { FIT = 62 }; /* in 8 MiB; of their class 60 */
    held_t held[FIT];
    size_t bytes = 132 * KIB; /* its class has 136 KiB */
    assert_int_equal(class_bytes(bytes), 136 * KIB);
    start(64 * MIB, CACHED);
    ca_arena_trim(arena, SIZE_MAX);
    fake.limit = 8 * MIB;
    arena->estimate.until = 0; /* for some time */
    for (unsigned i = 0; i < FIT; i++)
        assert_int_equal(hold(arena, bytes, &held[i]), 0);
    for (unsigned i = 0; i < FIT; i++)
        let_go(&held[i]);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_class_is_at_most_a_sixteenth_larger_than_the_request),
        cmocka_unit_test(a_pair_in_stock_takes_no_lock_and_makes_no_call),
        cmocka_unit_test(an_epoch_is_closed_by_every_so_many_frees),
        cmocka_unit_test(what_was_freed_is_not_handed_out_before_its_fence),
        cmocka_unit_test(a_double_free_is_ignored),
        cmocka_unit_test(a_block_in_stock_says_what_it_was),
        cmocka_unit_test(a_block_that_comes_into_stock_for_later_was_nothing),
        cmocka_unit_test(what_is_freed_while_a_fence_is_recorded_is_not_behind_it),
        cmocka_unit_test(stock_that_calls_freed_which_do_not_wait_is_not_waited_for),
        cmocka_unit_test(a_heap_that_nobody_used_has_seen_no_operation),
        cmocka_unit_test(heaps_made_one_after_the_other_have_places_of_their_own),
        cmocka_unit_test(a_cache_forgets_a_retired_heap_and_serves_the_next),
        cmocka_unit_test(a_cache_serves_a_heap_again_that_was_revived),
        cmocka_unit_test(what_one_thread_frees_another_gets_whole),
        cmocka_unit_test(the_depot_comes_before_growth),
        cmocka_unit_test(a_line_that_fell_behind_catches_up),
        cmocka_unit_test(a_climb_that_fences_help_leaves_the_caches_alone),
        cmocka_unit_test(a_broken_heap_serves_nothing_from_stock),
        cmocka_unit_test(a_refused_fence_loses_nothing),
        cmocka_unit_test(a_request_is_not_refused_for_the_sake_of_its_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
