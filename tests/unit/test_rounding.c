/* What requests are rounded up to: granules, size classes, steps in each power of two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"
#include "pool/blocks/bin.h"
#include "pool/blocks/block.h"
#include "pool/blocks/rounding.h"

/* Not in order, as a user may write them. */
static const size_t eleven[] = {256 * MIB, 32 * KIB, MIB,      2 * MIB,  256 * KIB, 4 * MIB,
                                8 * MIB,   16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB};
static const size_t rising[] = {32 * KIB, 256 * KIB, MIB,      2 * MIB,   4 * MIB,  8 * MIB,
                                16 * MIB, 32 * MIB,  64 * MIB, 128 * MIB, 256 * MIB};

static ca_arena_params_t with_classes(unsigned roundup)
{
    ca_arena_params_t params = fake_params;
    params.size_classes = eleven;
    params.size_class_count = 11;
    params.roundup = roundup;
    return params;
}

static void without_options_requests_are_whole_granules_and_pages(void **state)
{
    (void)state;
    static const size_t rows[][2] = {{1, 512},
                                     {512, 512},
                                     {513, 1024},
                                     {64 * KIB - 512, 64 * KIB - 512},
                                     {64 * KIB, 64 * KIB},
                                     {64 * KIB + 1, 68 * KIB},
                                     {CA_BYTES_MOST, CA_BYTES_MOST}};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(ca_round_request(&fake_params, rows[i][0]), rows[i][1]);
}

static void eleven_fixed_classes(void **state)
{
    (void)state;
    ca_arena_params_t params = with_classes(0);
    size_t below = 0;
    for (unsigned i = 0; i < 11; below = rising[i++]) {
        assert_int_equal(ca_round_request(&params, below + 1), rising[i]);
        assert_int_equal(ca_round_request(&params, rising[i] - 1), rising[i]);
        assert_int_equal(ca_round_request(&params, rising[i]), rising[i]);
    }
    assert_int_equal(ca_round_request(&params, 256 * MIB + 1), 256 * MIB + CA_PAGE);
}

static void classes_come_before_steps(void **state)
{
    (void)state;
    ca_arena_params_t params = with_classes(4);
    assert_int_equal(ca_round_request(&params, 33 * KIB), 256 * KIB);
    assert_int_equal(ca_round_request(&params, 256 * MIB + 1), 320 * MIB);
}

static void a_crooked_class_is_still_aligned(void **state)
{
    (void)state;
    static const size_t crooked[] = {100001, 700};
    ca_arena_params_t params = fake_params;
    params.size_classes = crooked;
    params.size_class_count = 2;
    assert_int_equal(ca_round_request(&params, 1), 1024);
    assert_int_equal(ca_round_request(&params, 701), 100 * KIB);
}

static void steps_divide_each_power_of_two(void **state)
{
    (void)state;
    static const size_t rows[][3] = {
        {4, MIB, MIB},
        {4, MIB + 1, MIB + 256 * KIB},
        {4, MIB + 256 * KIB, MIB + 256 * KIB},
        {4, 2 * MIB - 1, 2 * MIB},
        {1, MIB + 1, 2 * MIB},
        {1, 2 * MIB, 2 * MIB},
        {64, MIB + 1, MIB + 16 * KIB},
        {64, 65 * KIB, 68 * KIB}, /* steps of 1 KiB, but pages */
        {64, 1025, 1536},         /* steps of 16 B, but granules */
        {8, 3, 512},
        {2, CA_BYTES_MOST, CA_BYTES_MOST},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ca_arena_params_t params = fake_params;
        params.roundup = (unsigned)rows[i][0];
        assert_int_equal(ca_round_request(&params, rows[i][1]), rows[i][2]);
    }
}

/* For any size: enough, aligned, at most a step more, and no smaller for a larger request. */
static void steps_waste_less_than_one_step(void **state)
{
    (void)state;
    for (unsigned steps = 1; steps <= 64; steps *= 2) {
        ca_arena_params_t params = fake_params;
        params.roundup = steps;
        size_t last = 0;
        for (size_t bytes = 1; bytes < 4096 * MIB; bytes += bytes / 37 + 1) {
            size_t got = ca_round_request(&params, bytes);
            assert_true(got >= bytes && got >= last);
            assert_int_equal(got % ca_block_alignment(got), 0);
            assert_true(got - bytes < bytes / steps + CA_PAGE);
            last = got;
        }
    }
}

static size_t live(ca_arena_t *arena)
{
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    return stats.live_bytes;
}

static void the_arena_rounds_its_requests(void **state)
{
    (void)state;
    ca_arena_params_t params = with_classes(0);
    fake_reset(1024 * MIB, 1024 * MIB);
    ca_arena_t *arena = ca_arena_create(&fake_upstream, NULL, &params);
    held_t a, b;
    uint64_t address;
    bool reused;
    assert_int_equal(hold(arena, 0, &a), 0);
    assert_int_equal(live(arena), 32 * KIB);
    assert_int_equal(ca_arena_alloc_ready(arena, NULL, 33 * KIB, &b.block, &address, &reused), 0);
    assert_int_equal(live(arena), 288 * KIB);
    assert_null(ca_arena_check(arena));
    let_go(&a);
    ca_arena_free(b.block);
    ca_arena_retire(arena);
    assert_int_equal(fake.errors, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_requests_are_whole_granules_and_pages),
        cmocka_unit_test(eleven_fixed_classes),
        cmocka_unit_test(classes_come_before_steps),
        cmocka_unit_test(a_crooked_class_is_still_aligned),
        cmocka_unit_test(steps_divide_each_power_of_two),
        cmocka_unit_test(steps_waste_less_than_one_step),
        cmocka_unit_test(the_arena_rounds_its_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
