/* Pin mode: what is freed and asked for again is where it was, and no segment leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    arena = ca_arena_create(&fake_upstream, NULL, &fake_params);
    return arena ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void with(ca_arena_params_t params)
{
    ca_arena_retire(arena);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    assert_non_null(arena);
}

static void pin(bool on)
{
    ca_arena_pin(arena, on);
    sound();
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

/* What earlier frees gave is ready; nothing goes back and, as nothing is asked for, nothing merges
 * that pin mode left. */
static void settle(void)
{
    for (unsigned i = 0; i < 2; i++) {
        fake_pass_all();
        assert_int_equal(ca_arena_trim(arena, 0), 0);
    }
    assert_int_equal(stats().pending_bytes, 0);
    sound();
    fake_log();
}

/* --- addresses -------------------------------------------------------------------------------- */

static void the_block_freed_last_comes_back_first(void **state)
{
    (void)state;
    held_t held[90];
    pin(true);
    for (unsigned i = 0; i < 90; i++)
        held[i] = get(4096);
    for (unsigned i = 0; i < 90; i++)
        put(&held[i * 37 % 90]);
    settle();
    for (unsigned i = 90; i-- > 0;) {
        held_t again = get(4096);
        assert_int_equal(again.address, held[i * 37 % 90].address);
    }
    assert_string_equal(fake_log(), "");
}

static void a_later_epoch_comes_before_an_earlier_one(void **state)
{
    (void)state;
    pin(true);
    held_t a = get(MIB), b = get(MIB), c = get(MIB);
    put(&b);
    settle();
    put(&a);
    put(&c);
    settle();
    assert_int_equal(get(MIB).address, c.address);
    assert_int_equal(get(MIB).address, a.address);
    assert_int_equal(get(MIB).address, b.address);
}

static void the_same_size_comes_before_a_larger_one(void **state)
{
    (void)state;
    held_t larger[40];
    pin(true);
    held_t same = get(MIB);
    for (unsigned i = 0; i < 40; i++)
        larger[i] = get(MIB + CA_PAGE); /* goes into the same bin */
    put(&same);
    settle();
    for (unsigned i = 0; i < 40; i++)
        put(&larger[i]);
    settle();
    assert_int_equal(get(MIB).address, same.address);
}

static void the_same_oversize_block_comes_back(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.max_split = 4 * MIB;
    with(params);
    pin(true);
    held_t a = get(17 * MIB), b = get(17 * MIB), c = get(19 * MIB);
    put(&a), put(&b), put(&c);
    settle();
    assert_int_equal(get(17 * MIB).address, b.address);
    assert_int_equal(get(17 * MIB).address, a.address);
    assert_int_equal(get(19 * MIB).address, c.address);
}

/* As recorded work is replayed: the same requests again, freed as they nest. */
static void repeated_work_stays_where_it_was(void **state)
{
    (void)state;
    enum { N = 60 };
    uint64_t first[N] = {0};
    pin(true);
    for (unsigned round = 0; round < 4; round++) {
        held_t held[N];
        for (unsigned i = 0; i < N; i++) {
            held[i] = get((i * 7 % 5 + 1) * (i % 3 ? 3000 : 300000));
            assert_true(!round || held[i].address == first[i]);
            first[i] = held[i].address;
        }
        for (unsigned i = N; i-- > 0;)
            put(&held[i]);
        settle();
    }
}

/* --- merging ---------------------------------------------------------------------------------- */

/* All of a segment as two neighbours that are ready and not merged. */
static uint64_t halves(void)
{
    held_t a = get(4 * MIB), b = get(4 * MIB);
    assert_int_equal(stats().reserved_bytes, FAKE_SEGMENT);
    pin(true);
    put(&a), put(&b);
    settle();
    assert_int_equal(stats().blocks, 2);
    return a.address < b.address ? a.address : b.address;
}

static void while_pinned_it_grows_and_does_not_merge(void **state)
{
    (void)state;
    halves();
    held_t a = get(8 * MIB);
    assert_string_equal(fake_log(), "A");
    put(&a);
}

static void when_pin_mode_ends_nothing_moves_until_a_trim(void **state)
{
    (void)state;
    halves();
    pin(false);
    settle();
    assert_int_equal(stats().blocks, 2);
    assert_int_equal(ca_arena_trim(arena, 1), FAKE_SEGMENT);
    sound();
}

static void a_trim_merges_also_what_it_does_not_give(void **state)
{
    (void)state;
    held_t a = get(2 * MIB), b = get(2 * MIB), c = get(2 * MIB), d = get(2 * MIB);
    pin(true);
    put(&b), put(&c), put(&d);
    settle();
    pin(false);
    assert_int_equal(stats().blocks, 4);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    assert_int_equal(stats().blocks, 2);
    assert_int_equal(stats().largest_ready, 6 * MIB);
    sound();
    put(&a);
}

static void what_is_freed_after_pin_mode_merges(void **state)
{
    (void)state;
    held_t a = get(2 * MIB), b = get(2 * MIB), c = get(2 * MIB), d = get(2 * MIB);
    pin(true);
    put(&a), put(&b), put(&d);
    settle();
    pin(false);
    put(&c);
    settle();
    assert_int_equal(stats().blocks, 2); /* a, and b to d */
    held_t all = get(6 * MIB);
    assert_int_equal(all.address, b.address);
    put(&all);
}

static void memory_that_runs_out_is_merged(void **state)
{
    (void)state;
    for (unsigned on = 0; on < 2; on++) {
        ca_arena_retire(arena); /* before the fences that it holds are forgotten */
        fake_reset(FAKE_SEGMENT, FAKE_SEGMENT);
        with(fake_params);
        uint64_t base = halves();
        if (!on)
            pin(false);
        held_t whole = get(8 * MIB);
        assert_int_equal(whole.address, base);
        assert_null(strchr(fake_log(), 'F'));
        put(&whole);
    }
}

/* --- giving back ------------------------------------------------------------------------------ */

static void pin_mode_is_counted(void **state)
{
    (void)state;
    held_t a = get(20 * MIB);
    put(&a);
    pin(true), pin(true), pin(false);
    settle();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    pin(false);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 20 * MIB);
    pin(false); /* once too often */
    pin(true);
    held_t b = get(20 * MIB);
    put(&b);
    settle();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
}

static void no_segment_leaves_for_the_peak_or_a_threshold(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.gc_threshold = 1;
    params.device_bytes = 1000 * MIB;
    with(params);
    pin(true);
    held_t a = get(20 * MIB);
    put(&a);
    settle();
    fake.auto_pass = true;
    held_t b = get(30 * MIB);
    assert_string_equal(fake_log(), "A");
    assert_int_equal(stats().reserved_bytes, 50 * MIB);
    put(&b);
}

static void no_segment_leaves_when_memory_runs_out(void **state)
{
    (void)state;
    held_t none;
    fake.limit = 64 * MIB;
    held_t ready = get(16 * MIB), pending = get(40 * MIB);
    put(&ready);
    settle();
    put(&pending); /* its own epoch */
    pin(true);
    assert_int_equal(hold(arena, 60 * MIB, &none), -ENOMEM);
    sound();
    assert_null(strchr(fake_log(), 'F'));
    assert_int_equal(stats().reserved_bytes, 56 * MIB);
    pin(false);
    held_t big = get(60 * MIB);
    assert_int_equal(stats().segments, 1);
    put(&big);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_block_freed_last_comes_back_first),
        TEST(a_later_epoch_comes_before_an_earlier_one),
        TEST(the_same_size_comes_before_a_larger_one),
        TEST(the_same_oversize_block_comes_back),
        TEST(repeated_work_stays_where_it_was),
        TEST(while_pinned_it_grows_and_does_not_merge),
        TEST(when_pin_mode_ends_nothing_moves_until_a_trim),
        TEST(a_trim_merges_also_what_it_does_not_give),
        TEST(what_is_freed_after_pin_mode_merges),
        TEST(memory_that_runs_out_is_merged),
        TEST(pin_mode_is_counted),
        TEST(no_segment_leaves_for_the_peak_or_a_threshold),
        TEST(no_segment_leaves_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
