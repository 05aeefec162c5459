/* That a thread cache's memory is everybody's when it is short: what a heap does with the caches in
 * front of it (pool/cache/cache_heap.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_cache.h"
#include "pool/arena.h"
#include "pool/cache/cache_hit.h"
#include "pool/growth/warmup.h"
#include "pool/fence/stream.h"

static void expect_no_growth(void)
{
    held_t held;
    uint64_t before = fake.calls[FAKE_ALLOC];
    fake_pass_all();
    assert_true(ca_caches_bytes(arena) >= 5 * MIB);
    assert_int_equal(hold(arena, 5 * MIB, &held), 0);
    assert_int_equal(fake.calls[FAKE_ALLOC], before);
    let_go(&held);
}

static void memory_in_another_threads_cache_comes_before_growth(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    beside_a_full_cache(32 * KIB, expect_no_growth);
    end();
}

static void expect_exact_numbers(void)
{
    ca_arena_stats_t stats;
    held_t held;
    assert_true(ca_caches_bytes(arena) > 0);
    hold(arena, 4000, &held);
    ca_arena_stats(arena, &stats);
    assert_int_equal(stats.live_bytes, 4096);
    assert_int_equal(stats.live_bytes + stats.pending_bytes + stats.ready_bytes,
                     stats.reserved_bytes);
    let_go(&held);
    ca_arena_stats(arena, &stats);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.idle_bytes, stats.reserved_bytes);
    /* Whoever asks may have interrupted the owner of one, or of the index: nothing is moved. */
    size_t stock = ca_caches_bytes(arena);
    assert_true(ca_arena_stats_try(arena, &stats));
    assert_int_equal(stats.idle_bytes, stats.reserved_bytes);
    assert_int_equal(ca_caches_bytes(arena), stock);
}

static void statistics_do_not_take_stock_for_live(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    beside_a_full_cache(4000, expect_exact_numbers);
    end();
}

static void expect_all_given(void)
{
    fake.auto_pass = true;
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX);
    assert_int_equal(fake.used, 0);
}

static void a_trim_gives_back_what_lies_in_caches(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    beside_a_full_cache(4000, expect_all_given);
    end();
}

static void expect_none_while_pinned(void)
{
    ca_arena_pin(arena, true);
    assert_int_equal(ca_caches_bytes(arena), 0);
    go_through(1000, 10);
    assert_int_equal(ca_caches_bytes(arena), 0);
    ca_arena_pin(arena, false);
    go_through(1000, 10);
    assert_true(ca_caches_bytes(arena) > 0);
}

static void caches_are_shut_in_pin_mode(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    beside_a_full_cache(1000, expect_none_while_pinned);
    end();
}

static void caches_are_shut_while_room_is_short(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    assert_true(ca_caches_bytes(arena) > 0);
    ca_arena_note_free_bytes(arena, 3 * MIB);
    assert_int_equal(ca_caches_bytes(arena), 0);
    go_through(1000, 10);
    assert_int_equal(ca_caches_bytes(arena), 0);
    end();
}

/* Many threads on a device that is nearly full still keep what is small. */
static void where_it_is_shorter_they_keep_what_is_small(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    go_through(1000, 10);
    ca_arena_note_free_bytes(arena, 5 * MIB); /* a part of which is 320 KiB */
    go_through(1000, 10);
    size_t stock = ca_caches_bytes(arena);
    assert_true(stock > 0);
    ca_caches_lock_out(arena);
    ca_caches_open(arena);
    go_through(128 * KIB, 10);
    assert_int_equal(ca_caches_bytes(arena), 0);
    go_through(64 * KIB, 10);
    assert_true(ca_caches_bytes(arena) >= 640 * KIB);
    end();
}

static void pairs(unsigned count)
{
    held_t held;
    for (unsigned i = 0; i < count; i++) {
        hold(arena, 1000, &held);
        let_go(&held);
    }
}

static void a_tick_takes_nothing_from_threads_that_are_at_work(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    pairs(1000);
    fake_pass_all();
    size_t stock = ca_caches_bytes(arena);
    assert_true(stock > 0);
    ca_arena_tick(arena);
    assert_int_equal(ca_caches_bytes(arena), stock);
    pairs(1);
    ca_arena_tick(arena);
    assert_int_equal(ca_caches_bytes(arena), stock);
    ca_arena_tick(arena); /* nobody did anything since */
    assert_int_equal(ca_caches_bytes(arena), 0);
    end();
}

/* Another context had filled the device, and is gone since: nobody tells of that. */
static void caches_open_again_when_others_have_given_back(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    fake.auto_pass = true;
    ca_arena_note_free_bytes(arena, 0);
    pairs(1000);
    assert_int_equal(ca_caches_bytes(arena), 0);
    pairs(50000);
    assert_true(ca_caches_bytes(arena) > 0);
    uint64_t before = fake.recorded;
    pairs(10 * CA_CACHE_EPOCH_BLOCKS);
    assert_int_equal(fake.recorded - before, 10);
    end();
}

/* And where there is none, it is asked for seldom. */
static void a_full_device_is_asked_seldom(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    fake.auto_pass = true;
    fake.others = 1024 * MIB;
    ca_arena_note_free_bytes(arena, 0);
    pairs(50000);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(fake.looks, 1 + 1); /* the first growth, and once since */
    end();
}

static void caches_open_again_when_a_trim_made_room_below_the_limit(void **state)
{
    (void)state;
    held_t held, none, kept;
    start(1024 * MIB, CACHED);
    fake.auto_pass = true;
    arena->params.limit = 300 * MIB;
    assert_int_equal(hold(arena, 250 * MIB, &held), 0);
    assert_int_equal(hold(arena, 1000, &kept), 0); /* pairs find a segment after the trim, too */
    assert_int_equal(hold(arena, 250 * MIB, &none), -ENOMEM);
    let_go(&held);
    pairs(10);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_true(ca_arena_trim(arena, SIZE_MAX) >= 250 * MIB);
    pairs(10);
    assert_true(ca_caches_bytes(arena) > 0);
    let_go(&kept);
    end();
}

/* Nobody waits without bound for work of a stream: what caches have to tell decides nothing there.
 */
static void closing_the_epochs_of_streams_visits_no_cache(void **state)
{
    (void)state;
    held_t held[2];
    start(1024 * MIB, CACHED);
    ca_stream_t *stream = ca_arena_stream(arena, (void *)1, false);
    for (unsigned i = 0; i < 2; i++)
        hold(arena, 16 * KIB, &held[i]);
    let_go(&held[0]); /* into the cache, which tells nobody */
    uint64_t operations = arena->operations, recorded = fake.recorded;
    fake_unuse(held[1].address, held[1].bytes);
    ca_arena_free_on(held[1].block, stream);
    ca_lock_take(&arena->lock);
    ca_streams_close(arena);
    ca_lock_drop(&arena->lock);
    assert_int_equal(fake.recorded, recorded + 1);
    assert_int_equal(arena->operations, operations + 1); /* that free alone */
    end();
}

/* As some of memory that is freed on a stream do. */
static void the_peak_of_live_bytes_is_right_where_frees_pass_the_cache_by(void **state)
{
    (void)state;
    held_t held[CA_CACHE_EPOCH_BLOCKS], other;
    start(1024 * MIB, CACHED);
    size_t peak = arena->live_peak;
    fake.auto_pass = true;
    go_through(16 * KIB, CA_CACHE_EPOCH_BLOCKS); /* which closes the epoch, and tells the heap */
    for (unsigned i = 0; i < CA_CACHE_EPOCH_BLOCKS; i++)
        assert_int_equal(hold(arena, 16 * KIB, &held[i]), 0); /* of this it hears nothing */
    for (unsigned i = 0; i < CA_CACHE_EPOCH_BLOCKS; i++)
        let_go_past_the_cache(&held[i]);
    assert_true(arena->live < arena->cached_bytes);
    assert_null(ca_arena_check(arena));
    assert_int_equal(hold(arena, 512 * KIB, &other), 0);
    assert_int_equal(arena->live_peak, peak);
    let_go(&other);
    end();
}

static void a_thread_leaves_nothing_behind_whatever_its_cache_holds(void **state)
{
    (void)state;
    start(1024 * MIB, CACHED);
    for (size_t bytes = CA_GRANULE; bytes <= CA_CACHE_MOST; bytes = class_bytes(bytes) + 1) {
        on_thread(leave_in_stock, (void *)(uintptr_t)bytes);
        assert_int_equal(ca_caches_bytes(arena), 0);
        assert_int_equal(arena->cache_count, 0);
        assert_null(ca_arena_check(arena));
        fake_pass_all();
    }
    end();
}

static void the_stock_is_bounded(void **state)
{
    (void)state;
    static held_t held[3000];
    start(1024 * MIB, CACHED);
    fake.auto_pass = true;
    for (unsigned i = 0; i < 3000; i++)
        hold(arena, i % 2 ? 512 : 30000, &held[i]);
    for (unsigned i = 0; i < 3000; i++) {
        let_go(&held[i]);
        assert_true(ca_cache_get(&ca_cache_own(arena)->cached_bytes) <= CACHED);
        assert_true(ca_cache_get(&arena->depot->cached_bytes) <= CACHED);
    }
    assert_true(ca_caches_bytes(arena) > CACHED / 2);
    assert_null(ca_arena_check(arena));
    end();
}

static size_t stock_of(size_t bytes)
{
    size_t before = ca_caches_bytes(arena);

    go_through(bytes, 1);
    return ca_caches_bytes(arena) - before;
}

static void large_blocks_are_kept_where_much_is_live(void **state)
{
    (void)state;
    held_t held[2];
    start(8192 * MIB, 1024 * MIB);
    assert_int_equal(stock_of(CA_CACHE_ALWAYS), CA_CACHE_ALWAYS);
    assert_int_equal(stock_of(CA_CACHE_ALWAYS + 1), 0);
    live_is(512 * KIB * CA_CACHE_SHARE, &held[0]);
    assert_int_equal(stock_of(512 * KIB), 512 * KIB);
    assert_int_equal(stock_of(512 * KIB + 1), 0);
    live_is(2048 * MIB, &held[1]);
    assert_int_equal(stock_of(CA_CACHE_MOST), CA_CACHE_MOST);
    assert_int_equal(stock_of(CA_CACHE_MOST + 1), 0);
    let_go(&held[0]), let_go(&held[1]);
    end();
}

/* The most that the thread has in stock while so many blocks of 256 KiB are freed. */
static size_t most_in_stock(unsigned count)
{
    static held_t held[2000];
    size_t most = 0;

    for (unsigned i = 0; i < count; i++)
        hold(arena, 256 * KIB, &held[i]);
    for (unsigned i = 0; i < count; i++) {
        let_go(&held[i]);
        if (ca_cache_get(&ca_cache_own(arena)->cached_bytes) > most)
            most = ca_cache_get(&ca_cache_own(arena)->cached_bytes);
    }
    return most;
}

static void more_is_kept_where_much_is_live(void **state)
{
    (void)state;
    held_t held;
    for (unsigned less = 0; less < 2; less++) {
        start(8192 * MIB, less ? 100 * MIB : 1024 * MIB);
        fake.auto_pass = true;
        assert_in_range(most_in_stock(200), 32 * MIB, CA_CACHE_BYTES);
        live_is(2048 * MIB, &held);
        assert_in_range(most_in_stock(2000), less ? 65 * MIB : 150 * MIB,
                        less ? 100 * MIB : 3072 * MIB / CA_CACHE_BYTES_SHARE);
        let_go(&held);
        end();
    }
}

static uint32_t blocks_of(size_t bytes)
{
    return ca_cache_own(arena)->classes[ca_cache_class_mark(bytes, CA_CACHE_MOST) - 1].count;
}

/* Be they ever so small: what one has few of is missed most. */
static void a_full_stock_gives_back_what_it_has_many_of(void **state)
{
    (void)state;
    static held_t held[200];
    start(1024 * MIB, CACHED);
    fake.auto_pass = true;
    for (unsigned i = 0; i < 200; i++)
        hold(arena, 64 * KIB, &held[i]);
    go_through(256 * KIB, 2);
    for (unsigned i = 0; i < 200; i++)
        let_go(&held[i]);
    assert_int_equal(blocks_of(256 * KIB), 2);
    assert_in_range(blocks_of(64 * KIB), CACHED / 2 / (64 * KIB), CACHED / (64 * KIB));
    end();
}

#define MANY 64u

/* So many blocks each of 64 and 4 KiB in stock, and nothing ready elsewhere that holds 2 MiB, which
 * is asked for. Returns how many of 4 KiB there were. */
static uint32_t stock_two_sizes(size_t live, held_t *held)
{
    start(1024 * MIB, 64 * MIB);
    fake.auto_pass = true;
    live_is(live, &held[0]);
    go_through(64 * KIB, MANY);
    go_through(4 * KIB, MANY);
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    assert_int_equal(hold(arena, stats.largest_ready, &held[1]), 0);
    ca_arena_stats(arena, &stats);
    assert_true(stats.largest_ready < 2 * MIB);
    uint32_t small = blocks_of(4 * KIB);
    assert_true(small >= MANY);
    assert_true(blocks_of(64 * KIB) >= MANY);
    uint64_t before = fake.calls[FAKE_ALLOC];
    assert_int_equal(hold(arena, 2 * MIB, &held[2]), 0);
    assert_int_equal(fake.calls[FAKE_ALLOC], before);
    return small;
}

static void drop_three(held_t *held)
{
    for (unsigned i = 0; i < 3; i++)
        let_go(&held[i]);
    end();
}

static void a_request_takes_no_more_of_the_stock_than_it_needs(void **state)
{
    (void)state;
    held_t held[3];
    uint32_t small = stock_two_sizes(32 * MIB, held);
    assert_int_equal(blocks_of(4 * KIB), small);
    assert_in_range(blocks_of(64 * KIB), MANY / 4, MANY / 2);
    assert_null(ca_arena_check(arena));
    drop_three(held);
}

/* There each block is a large part of all there is. */
static void in_a_small_program_it_takes_all(void **state)
{
    (void)state;
    held_t held[3];
    stock_two_sizes(MIB, held);
    assert_true(arena->reserved <= CA_SMALL_RESERVED);
    assert_int_equal(ca_caches_bytes(arena), 0);
    drop_three(held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_in_another_threads_cache_comes_before_growth),
        cmocka_unit_test(statistics_do_not_take_stock_for_live),
        cmocka_unit_test(a_trim_gives_back_what_lies_in_caches),
        cmocka_unit_test(caches_are_shut_in_pin_mode),
        cmocka_unit_test(caches_are_shut_while_room_is_short),
        cmocka_unit_test(where_it_is_shorter_they_keep_what_is_small),
        cmocka_unit_test(a_tick_takes_nothing_from_threads_that_are_at_work),
        cmocka_unit_test(caches_open_again_when_others_have_given_back),
        cmocka_unit_test(a_full_device_is_asked_seldom),
        cmocka_unit_test(caches_open_again_when_a_trim_made_room_below_the_limit),
        cmocka_unit_test(closing_the_epochs_of_streams_visits_no_cache),
        cmocka_unit_test(the_peak_of_live_bytes_is_right_where_frees_pass_the_cache_by),
        cmocka_unit_test(a_thread_leaves_nothing_behind_whatever_its_cache_holds),
        cmocka_unit_test(the_stock_is_bounded),
        cmocka_unit_test(large_blocks_are_kept_where_much_is_live),
        cmocka_unit_test(more_is_kept_where_much_is_live),
        cmocka_unit_test(a_full_stock_gives_back_what_it_has_many_of),
        cmocka_unit_test(a_request_takes_no_more_of_the_stock_than_it_needs),
        cmocka_unit_test(in_a_small_program_it_takes_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
