/* Which blocks serve which requests: oversize ones, and small ones kept apart; and which segments
 * go back before their time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"

static ca_arena_params_t params;

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    params = fake_params;
    arena = NULL;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (arena)
        ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void start(void)
{
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    assert_non_null(arena);
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

/* The memory that earlier frees gave is ready; nothing goes back upstream. */
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

/* --- max_split -------------------------------------------------------------------------------- */

/* Whether a ready oversize block of `block` bytes serves a request of `bytes`. */
static bool serves(size_t block, size_t bytes)
{
    params.max_split = 4 * MIB;
    start();
    held_t a = get(block);
    assert_int_equal(stats().reserved_bytes, block);
    put(&a);
    settle();
    held_t b = get(bytes);
    bool served = !strchr(fake_log(), 'A');
    if (served)
        assert_int_equal(b.address, a.address);
    put(&b);
    ca_arena_retire(arena);
    arena = NULL;
    fake_reset(1024 * MIB, 1024 * MIB);
    return served;
}

/* At most 2 MiB unused, or 1/8 of the request. */
static void near_size_reuse_of_oversize_blocks(void **state)
{
    (void)state;
    static const struct {
        size_t block, bytes;
        bool near;
    } rows[] = {
        {16 * MIB, 16 * MIB, true},
        {16 * MIB, 16 * MIB - 1, true},
        {16 * MIB, 14 * MIB, true}, /* 2 MiB */
        {16 * MIB, 14 * MIB - CA_PAGE, false},
        {6 * MIB, 4 * MIB + 1, true}, /* just above max_split, half of it unused */
        {6 * MIB, 4 * MIB, false},    /* not above it: never from an oversize block */
        {18 * MIB, 16 * MIB, true},   /* both rules meet at 16 MiB */
        {18 * MIB, 16 * MIB - CA_PAGE, false},
        {72 * MIB, 64 * MIB, true}, /* 8 of 64 */
        {72 * MIB, 64 * MIB - CA_PAGE, false},
        {16 * MIB, 16 * MIB + 1, false},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (serves(rows[i].block, rows[i].bytes) != rows[i].near)
            fail_msg("%zu bytes from a block of %zu", rows[i].bytes, rows[i].block);
}

static void the_nearest_oversize_block_serves(void **state)
{
    (void)state;
    params.max_split = 4 * MIB;
    start();
    held_t a = get(36 * MIB), b = get(34 * MIB), c = get(40 * MIB);
    uint64_t nearest = b.address;
    put(&a), put(&b), put(&c);
    settle();
    b = get(33 * MIB);
    assert_string_equal(fake_log(), "");
    assert_int_equal(b.address, nearest);
    assert_int_equal(stats().live_bytes, 34 * MIB); /* all of it, as it is not split */
    put(&b);
}

/* --- small ------------------------------------------------------------------------------------ */

static void small_blocks_do_not_break_up_large_ones(void **state)
{
    (void)state;
    params.small = MIB;
    start();
    held_t large = get(20 * MIB);
    put(&large);
    settle();
    held_t small = get(MIB), least = get(1);
    assert_int_equal(stats().reserved_bytes, 20 * MIB + FAKE_SEGMENT);
    assert_int_equal(stats().largest_ready, 20 * MIB);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 20 * MIB);
    put(&small), put(&least);
}

static void above_small_requests_share_segments(void **state)
{
    (void)state;
    params.small = MIB;
    start();
    held_t large = get(20 * MIB);
    put(&large);
    settle();
    held_t next = get(MIB + 1);
    assert_string_equal(fake_log(), "");
    assert_int_equal(next.address, large.address);
    put(&next);
}

/* What is compared are requests as they came, however they are rounded. */
static void small_is_told_before_rounding(void **state)
{
    (void)state;
    params.small = MIB - 1000;
    params.roundup = 1;
    start();
    held_t a = get(MIB - 1000), b = get(2 * MIB);
    assert_int_equal(stats().segments, 2);
    put(&a), put(&b);
}

static void small_segments_stay_small(void **state)
{
    (void)state;
    params.small = MIB;
    start();
    held_t large = get(512 * MIB), small = get(1);
    assert_in_range(stats().reserved_bytes, 512 * MIB + CA_SEGMENT_UNIT, 512 * MIB + FAKE_SEGMENT);
    put(&large), put(&small);
}

static void a_full_device_serves_small_requests_from_large_blocks(void **state)
{
    (void)state;
    params.small = MIB;
    fake.limit = FAKE_SEGMENT;
    start();
    held_t large = get(4 * MIB), small = get(MIB); /* 4 MiB of that segment are ready */
    assert_int_equal(stats().segments, 1);
    put(&large), put(&small);
}

static void a_full_device_serves_large_requests_from_small_segments(void **state)
{
    (void)state;
    params.small = MIB;
    fake.limit = FAKE_SEGMENT;
    start();
    held_t small = get(1), large = get(4 * MIB), none;
    assert_int_equal(stats().segments, 1);
    assert_int_equal(hold(arena, 8 * MIB, &none), -ENOMEM);
    put(&small), put(&large);
}

static void at_the_limit_the_other_pool_serves_too(void **state)
{
    (void)state;
    params.small = MIB;
    params.limit = FAKE_SEGMENT;
    start();
    held_t large = get(4 * MIB), small = get(MIB);
    assert_int_equal(stats().segments, 1);
    put(&large), put(&small);
}

/* --- gc_threshold ----------------------------------------------------------------------------- */

/* Three idle segments, 90 MiB in all: of 20 MiB, idle longest, of 40 and of 30. */
static void idle_for_some_time(unsigned percent, size_t device, size_t limit)
{
    params.gc_threshold = percent;
    params.device_bytes = device;
    params.limit = limit;
    start();
    held_t b = get(40 * MIB), c = get(30 * MIB), a = get(20 * MIB);
    put(&a), put(&b), put(&c);
    settle();
    assert_int_equal(stats().idle_bytes, 90 * MIB);
    fake.auto_pass = true; /* nothing runs */
}

static void above_the_threshold_what_was_idle_longest_goes_first(void **state)
{
    (void)state;
    idle_for_some_time(5, 1000 * MIB, SIZE_MAX);
    held_t big = get(60 * MIB);
    assert_string_equal(fake_log(), "RQFRQFA"); /* 20 and 40: 30 are below 50 */
    assert_int_equal(stats().idle_bytes, 30 * MIB);
    put(&big);
}

static void the_threshold_is_of_the_limit_where_that_is_lower(void **state)
{
    (void)state;
    idle_for_some_time(50, 1000 * MIB, 150 * MIB);
    held_t big = get(60 * MIB);
    /* The 20 go: 70 are below 75. Then, for the peak's sake, the largest. */
    assert_string_equal(fake_log(), "RQFRQFA");
    assert_int_equal(stats().idle_bytes, 30 * MIB);
    put(&big);
}

static void what_a_request_fits_into_does_not_go(void **state)
{
    (void)state;
    idle_for_some_time(1, 1000 * MIB, SIZE_MAX);
    held_t a = get(40 * MIB);
    assert_string_equal(fake_log(), "");
    put(&a);
}

static void no_threshold_no_collection(void **state)
{
    (void)state;
    static const struct {
        unsigned percent;
        size_t device;
    } rows[] = {{0, 1000 * MIB}, {50, 0}, {9, 1000 * MIB}};
    for (unsigned i = 0; i < 3; i++) {
        idle_for_some_time(rows[i].percent, rows[i].device, SIZE_MAX);
        fake.auto_pass = false; /* for nothing else goes back either */
        held_t big = get(60 * MIB);
        assert_null(strchr(fake_log(), 'F'));
        assert_int_equal(stats().idle_bytes, 90 * MIB);
        put(&big);
        ca_arena_retire(arena);
        fake_reset(1024 * MIB, 1024 * MIB);
    }
    arena = NULL;
}

static void nothing_is_collected_while_the_device_works(void **state)
{
    (void)state;
    idle_for_some_time(1, 1000 * MIB, SIZE_MAX);
    fake.auto_pass = false;
    held_t big = get(60 * MIB);
    assert_string_equal(fake_log(), "RqRqA"); /* asked for the threshold and for the peak */
    assert_int_equal(stats().idle_bytes, 90 * MIB);
    put(&big);
}

/* It cannot be told then whether something runs; and blocks are to stay where they are. */
static void nothing_goes_back_for_tidiness_during_a_capture(void **state)
{
    (void)state;
    params.headroom = 900 * MIB;
    idle_for_some_time(1, 1000 * MIB, SIZE_MAX);
    fake.capturing = true;
    held_t big = get(60 * MIB); /* past the peak, above the threshold, and into the headroom */
    const char *log = fake_log();
    assert_null(strchr(log, 'F'));
    assert_null(strchr(log, 'R'));
    assert_non_null(strchr(log, 'A'));
    assert_int_equal(stats().idle_bytes, 90 * MIB);
    fake.capturing = false;
    held_t bigger = get(200 * MIB);
    assert_non_null(strchr(fake_log(), 'F'));
    put(&big), put(&bigger);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(near_size_reuse_of_oversize_blocks),
        TEST(the_nearest_oversize_block_serves),
        TEST(small_blocks_do_not_break_up_large_ones),
        TEST(above_small_requests_share_segments),
        TEST(small_is_told_before_rounding),
        TEST(small_segments_stay_small),
        TEST(a_full_device_serves_small_requests_from_large_blocks),
        TEST(a_full_device_serves_large_requests_from_small_segments),
        TEST(at_the_limit_the_other_pool_serves_too),
        TEST(above_the_threshold_what_was_idle_longest_goes_first),
        TEST(the_threshold_is_of_the_limit_where_that_is_lower),
        TEST(what_a_request_fits_into_does_not_go),
        TEST(no_threshold_no_collection),
        TEST(nothing_is_collected_while_the_device_works),
        TEST(nothing_goes_back_for_tidiness_during_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
