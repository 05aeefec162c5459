/* Large blocks that have passed stay whole until another size is wanted: see pool/blocks/segment.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/counters.h"
#include "one_arena.h"
#include "pool/state.h"

#define SEGMENT (64 * MIB)
#define BLOCK (16 * MIB) /* its free closes an epoch */

static void start(uint64_t settle)
{
    ca_arena_params_t params = fake_params;
    params.warmup = settle;
    params.segment_first = SEGMENT;
    fake_reset(1024 * MIB, 1024 * MIB);
    fake.auto_pass = true;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
}

static void pair(void)
{
    held_t held = get(BLOCK);
    put(&held);
}

/* Each free finds out that the one before has passed: two take turns. */
static void warm_up(void)
{
    for (int i = 0; i < 4; i++)
        pair();
}

static uint64_t pieces(void)
{
    return ca_counter_read(splits) + ca_counter_read(merges);
}

static void what_comes_and_goes_is_neither_cut_nor_merged(void **state)
{
    (void)state;
    start(0);
    warm_up();
    uint64_t before = pieces(), records = fake.calls[FAKE_RECORD], queries = fake.calls[FAKE_QUERY];
    for (int i = 0; i < 100; i++)
        pair();
    assert_int_equal(pieces(), before);
    assert_int_equal(fake.calls[FAKE_RECORD], records + 100);
    assert_int_equal(fake.calls[FAKE_QUERY], queries + 100);
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
}

static void another_size_finds_what_it_would_if_all_were_merged(void **state)
{
    (void)state;
    start(0);
    warm_up();
    assert_int_equal(arena->passed->bytes, BLOCK);
    held_t all = get(SEGMENT - BLOCK); /* the other one is behind a fence that was not asked for */
    assert_null(arena->passed->blocks);
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
    put(&all);
}

static void it_is_ready_in_the_statistics_and_goes_back(void **state)
{
    ca_arena_stats_t stats;
    (void)state;
    start(0);
    warm_up();
    assert_true(ca_arena_stats_try(arena, &stats));
    assert_int_equal(arena->passed->bytes, BLOCK);
    assert_int_equal(stats.pending_bytes, BLOCK); /* the other one */
    assert_int_equal(stats.ready_bytes, SEGMENT - BLOCK);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), SEGMENT);
    ca_arena_stats(arena, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
}

static void in_pin_mode_and_before_it_has_settled_nothing_is_kept_so(void **state)
{
    (void)state;
    start(1000000);
    assert_false(arena->prefers_memory);
    warm_up();
    assert_true(arena->prefers_memory);
    assert_null(arena->passed->blocks);
    start(0);
    warm_up();
    ca_arena_pin(arena, true);
    assert_null(arena->passed->blocks);
    warm_up();
    assert_null(arena->passed->blocks);
    ca_arena_pin(arena, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_and_goes_is_neither_cut_nor_merged),
        cmocka_unit_test(another_size_finds_what_it_would_if_all_were_merged),
        cmocka_unit_test(it_is_ready_in_the_statistics_and_goes_back),
        cmocka_unit_test(in_pin_mode_and_before_it_has_settled_nothing_is_kept_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
