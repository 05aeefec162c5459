/* What cutting large segments for smaller requests may strand: see pool/blocks/mixed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/blocks/mixed.h"
#include "pool/state.h"

#define DEVICE (6400 * MIB)
#define MOST (DEVICE / CA_MIXED_SHARE) /* stranded, 100 MiB */

static void start_with(size_t device_bytes, size_t limit, size_t max_split)
{
    ca_arena_params_t params = fake_params;
    params.device_bytes = device_bytes;
    params.limit = limit;
    params.max_split = max_split;
    fake_reset(DEVICE, 0);
    fake.auto_pass = true;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
}

static void start(void)
{
    start_with(DEVICE, SIZE_MAX, SIZE_MAX);
}

static size_t reserved(void)
{
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    return stats.reserved_bytes;
}

/* A buffer comes and goes, and a smaller one stays. */
static held_t layer(size_t temporary, size_t kept)
{
    held_t held = get(temporary);
    put(&held);
    return get(kept);
}

static void no_more_than_its_share_of_the_device_is_stranded(void **state)
{
    (void)state;
    start();
    for (int i = 1; i <= 20; i++) {
        (void)layer(60 * MIB, 40 * MIB);
        assert_true(arena->stranded <= MOST);
        assert_true(reserved() <= i * 40 * MIB + MOST + 60 * MIB);
    }
    assert_true(arena->stranded > MOST / 2);
}

static void what_small_blocks_fill_is_not_stranded(void **state)
{
    (void)state;
    start();
    (void)layer(60 * MIB, 10 * MIB);
    assert_int_equal(arena->stranded, 50 * MIB);
    for (int i = 0; i < 5; i++)
        (void)get(10 * MIB);
    assert_int_equal(arena->stranded, 0);
    assert_int_equal(reserved(), 60 * MIB);
}

/* A temporary that fits beside them does not make it so. */
static void what_comes_and_goes_is_stranded_all_the_same(void **state)
{
    (void)state;
    start();
    (void)get(600 * MIB); /* what comes gets segments for several */
    (void)layer(20 * MIB, 12 * MIB);
    size_t segment = reserved() - 600 * MIB;
    assert_in_range(segment, 60 * MIB, 100 * MIB);
    for (int i = 2; i <= 4; i++) {
        (void)layer(20 * MIB, 12 * MIB);
        assert_int_equal(arena->stranded, segment - i * 12 * MIB);
    }
    assert_int_equal(reserved(), segment + 600 * MIB);
}

static void it_ends_with_the_last_live_block(void **state)
{
    (void)state;
    start();
    held_t kept = layer(60 * MIB, 10 * MIB);
    put(&kept);
    assert_int_equal(arena->stranded, 0);
    (void)get(10 * MIB); /* and begins again */
    assert_int_equal(arena->stranded, 50 * MIB);
}

/* What lay there once may lie there again. */
static void the_least_that_was_not_live_counts(void **state)
{
    (void)state;
    start();
    (void)layer(60 * MIB, 10 * MIB);
    held_t fills = get(40 * MIB);
    put(&fills);
    (void)get(5 * MIB);
    assert_int_equal(arena->stranded, 10 * MIB);
}

static void a_small_device_has_what_the_first_segment_has(void **state)
{
    (void)state;
    start_with(64 * MIB, SIZE_MAX, SIZE_MAX);
    (void)layer(12 * MIB, 4 * MIB);
    assert_int_equal(arena->stranded, 8 * MIB);
}

static void what_is_about_the_size_strands_nothing(void **state)
{
    (void)state;
    start();
    (void)layer(60 * MIB, 58 * MIB);
    assert_int_equal(arena->stranded, 0);
    assert_int_equal(reserved(), 60 * MIB);
}

static void so_few_large_ones_fit_that_none_is_cut_for(void **state)
{
    (void)state;
    start();
    (void)layer(MOST / 2 + 20 * MIB, MOST / 2 + 10 * MIB);
    assert_int_equal(arena->stranded, 0);
    (void)layer(MOST / 2 + 20 * MIB, MOST / 2);
    assert_int_equal(arena->stranded, 20 * MIB);
}

/* Whatever it strands is a trifle then. */
static void but_from_about_its_size(void **state)
{
    (void)state;
    start();
    (void)layer(200 * MIB, 197 * MIB);
    assert_int_equal(reserved(), 200 * MIB);
}

static void where_there_is_nothing_else_whatever_fits_is_cut(void **state)
{
    (void)state;
    start();
    held_t before = get(900 * MIB); /* growth that needs none to go back for it */
    put(&before);
    ca_arena_trim(arena, SIZE_MAX);
    before = get(600 * MIB);
    put(&before);
    fake.others = DEVICE - 600 * MIB;
    assert_int_equal(reserved(), 600 * MIB);
    (void)get(300 * MIB);
    assert_int_equal(reserved(), 600 * MIB);
    assert_int_equal(arena->stranded, 300 * MIB);
}

/* So many come, go, and smaller ones come in their place; and so on. What was stranded at most. */
static size_t stranded_in_rounds(unsigned rounds, int count)
{
    held_t held[24];
    size_t most = 0;
    while (rounds-- > 0) {
        for (int i = 0; i < count; i++)
            held[i] = get(70 * MIB);
        for (int i = 0; i < count; i++)
            put(&held[i]);
        for (int i = 0; i < count; i++)
            held[i] = get(40 * MIB);
        most = arena->stranded > most ? arena->stranded : most;
        for (int i = 0; i < count; i++)
            put(&held[i]);
    }
    return most;
}

static void who_comes_round_may_strand_half_as_much_again_until_more_is_live(void **state)
{
    (void)state;
    start();
    held_t half = get(DEVICE / 2);
    assert_in_range(stranded_in_rounds(4, 8), MOST + 1, MOST + MOST / 2);
    (void)layer(700 * MIB, 400 * MIB); /* more is live */
    (void)layer(60 * MIB, 30 * MIB);
    assert_true(arena->stranded <= MOST);
    put(&half);
}

static void who_comes_round_on_an_empty_device_makes_no_calls(void **state)
{
    (void)state;
    start();
    assert_true(stranded_in_rounds(4, 24) > 2 * MOST);
    uint64_t before = fake.calls[FAKE_ALLOC];
    (void)stranded_in_rounds(4, 24);
    assert_int_equal(fake.calls[FAKE_ALLOC], before);
}

static void the_limit_counts_where_it_is_less(void **state)
{
    (void)state;
    start_with(DEVICE, DEVICE / 4, SIZE_MAX);
    (void)layer(30 * MIB, 10 * MIB);
    assert_int_equal(arena->stranded, 20 * MIB);
    (void)layer(40 * MIB, 22 * MIB); /* large, for that */
    assert_int_equal(arena->stranded, 20 * MIB);
    start_with(0, SIZE_MAX, SIZE_MAX); /* unknown: no bound */
    (void)layer(600 * MIB, 100 * MIB);
    assert_int_equal(arena->stranded, 500 * MIB);
}

/* Small ones lie in the end of the large segment, and pend there when the large one is free. */
static void small_ones_leave_an_idle_large_segment_alone(void **state)
{
    (void)state;
    start();
    held_t first = get(200 * KIB), large = get(63 * MIB), small = get(200 * KIB);
    assert_int_equal(reserved(), FAKE_SEGMENT + 64 * MIB);
    put(&first);
    put(&large);
    put(&small);
    small = get(100 * KIB);
    large = get(64 * MIB);
    assert_int_equal(reserved(), FAKE_SEGMENT + 64 * MIB);
    put(&small);
    put(&large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_than_its_share_of_the_device_is_stranded),
        cmocka_unit_test(what_small_blocks_fill_is_not_stranded),
        cmocka_unit_test(what_comes_and_goes_is_stranded_all_the_same),
        cmocka_unit_test(it_ends_with_the_last_live_block),
        cmocka_unit_test(the_least_that_was_not_live_counts),
        cmocka_unit_test(a_small_device_has_what_the_first_segment_has),
        cmocka_unit_test(what_is_about_the_size_strands_nothing),
        cmocka_unit_test(so_few_large_ones_fit_that_none_is_cut_for),
        cmocka_unit_test(but_from_about_its_size),
        cmocka_unit_test(where_there_is_nothing_else_whatever_fits_is_cut),
        cmocka_unit_test(who_comes_round_may_strand_half_as_much_again_until_more_is_live),
        cmocka_unit_test(who_comes_round_on_an_empty_device_makes_no_calls),
        cmocka_unit_test(small_ones_leave_an_idle_large_segment_alone),
        cmocka_unit_test(the_limit_counts_where_it_is_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
