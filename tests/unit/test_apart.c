/* Room that there is, but in pieces, is no out of memory: see pool/blocks/mixed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/blocks/mixed.h"
#include "pool/range/export.h"

#define DEVICE (4096 * MIB)
#define BLOCKS 4096

static ca_arena_params_t params;

static int set_up(void **state)
{
    (void)state;
    fake_reset(DEVICE, 0);
    fake.auto_pass = true;
    params = fake_params;
    params.device_bytes = DEVICE;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
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

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static size_t up_to(uint64_t *seed, size_t most)
{
    return 1 + next(seed) % most;
}

/* --- sizes that change, and 1,500 calls
 * ------------------------------------------------------------------------ */

typedef size_t sizes_t(uint64_t *seed, unsigned i, unsigned count);

static size_t any(uint64_t *seed, unsigned i, unsigned count)
{
    (void)i, (void)count;
    return up_to(seed, 300 * MIB);
}

static size_t rising(uint64_t *seed, unsigned i, unsigned count)
{
    (void)seed;
    return 1 + i * 64 * MIB / count;
}

static size_t now_small_now_large(uint64_t *seed, unsigned i, unsigned count)
{
    (void)count;
    return i / 100 % 2 ? 150 * MIB + up_to(seed, 150 * MIB) : up_to(seed, 4 * MIB);
}

static size_t some_large_among_small(uint64_t *seed, unsigned i, unsigned count)
{
    (void)count;
    return i % 8 == 7 ? 225 * MIB + up_to(seed, 75 * MIB) : up_to(seed, MIB);
}

/* The driver's allocations are of whole units, and need be in no row. Calls that were out of memory
 * though the device has `percent` of what it has for all that is live. */
static unsigned refused(sizes_t *sizes, unsigned percent)
{
    static held_t held[BLOCKS];
    size_t live = 0, count = 0, most = DEVICE / 100 * percent;
    unsigned none = 0, all = 1500;
    uint64_t seed = 1;
    start();
    for (unsigned i = 0; i < all; i++) {
        size_t bytes = sizes(&seed, i, all), whole = ca_round_up(bytes, CA_SEGMENT_UNIT);
        while (count > 0 && (live + whole > most || count == BLOCKS || next(&seed) % 3 == 0)) {
            size_t k = next(&seed) % count;
            live -= ca_round_up(held[k].bytes, CA_SEGMENT_UNIT);
            let_go(&held[k]);
            held[k] = held[--count];
        }
        if (hold(arena, bytes, &held[count]) == 0) {
            live += whole;
            count++;
        } else {
            none++;
        }
    }
    sound();
    while (count > 0)
        let_go(&held[--count]);
    return none;
}

static void sizes_in_no_order_are_served_while_there_is_room(void **state)
{
    (void)state;
    assert_in_range(refused(any, 90), 0, 2);
}

static void rising_sizes_are(void **state)
{
    (void)state;
    assert_int_equal(refused(rising, 70), 0);
}

static void phases_of_small_and_large_ones_are(void **state)
{
    (void)state;
    assert_in_range(refused(now_small_now_large, 90), 0, 2);
}

/* Before the first refusal they may lie anywhere. */
static void large_ones_among_small_ones_are_but_for_a_few(void **state)
{
    (void)state;
    assert_in_range(refused(some_large_among_small, 90), 0, 15);
}

/* --- what each rule does ---------------------------------------------------------------------- */

static void a_pool_that_has_much_shares_no_new_segment(void **state)
{
    (void)state;
    start();
    held_t much = get(DEVICE / CA_APART_SHARE - 10 * MIB), first = get(10 * MIB);
    assert_in_range(stats().reserved_bytes, much.bytes + 20 * MIB, DEVICE); /* for several */
    held_t more = get(60 * MIB);
    size_t before = stats().reserved_bytes;
    held_t own = get(20 * MIB), less = get(CA_APART_SMALL + 1);
    assert_int_equal(stats().reserved_bytes, before + 20 * MIB);
    put(&much), put(&first), put(&more), put(&own), put(&less);
}

/* A loader: what it worked with goes, what it made stays, and all that went is asked for at once.
 */
static void small_ones_that_stay_keep_nothing_that_large_ones_came_and_went_in(void **state)
{
    static held_t made[800], worked[800];
    size_t live = 0;
    (void)state;
    start();
    for (unsigned i = 0; i < 800; i++) {
        worked[i] = get(4 * MIB + 64 * KIB);
        made[i] = get(100 * KIB);
        live += worked[i].bytes;
    }
    for (unsigned i = 0; i < 800; i++)
        let_go(&worked[i]);
    held_t all = get(live);
    put(&all);
    for (unsigned i = 0; i < 800; i++)
        let_go(&made[i]);
}

static void small_ones_share_the_smallest_segments_then(void **state)
{
    (void)state;
    start();
    held_t much = get(DEVICE / CA_APART_SHARE + 10 * MIB), more = get(20 * MIB);
    size_t before = stats().reserved_bytes;
    held_t small = get(CA_APART_SMALL / 2), other = get(CA_APART_SMALL);
    assert_int_equal(stats().reserved_bytes, before + CA_SEGMENT_UNIT);
    put(&much), put(&more), put(&small), put(&other);
}

static held_t held_in_pieces[8];

/* Most of eight segments of 100 MiB, which is all there is. */
static void fill_with_pieces(void)
{
    params.device_bytes = 0; /* what cutting strands has no bound */
    start();
    fake.limit = 800 * MIB;
    for (unsigned i = 0; i < 8; i++)
        held_in_pieces[i] = get(100 * MIB);
    for (unsigned i = 0; i < 8; i++)
        put(&held_in_pieces[i]);
    for (unsigned i = 0; i < 8; i++)
        held_in_pieces[i] = get(60 * MIB);
}

static void free_pieces(void)
{
    for (unsigned i = 0; i < 8; i++)
        put(&held_in_pieces[i]);
}

static void no_refusal_no_change(void **state)
{
    (void)state;
    fill_with_pieces();
    assert_false(arena->apart);
    held_t none;
    assert_int_equal(hold(arena, DEVICE, &none), -ENOMEM); /* there is no such room */
    assert_false(arena->apart);
    free_pieces();
}

/* It goes back, and then there is the room. */
static void what_is_idle_is_no_piece(void **state)
{
    (void)state;
    fill_with_pieces();
    free_pieces();
    (void)ca_arena_trim(arena, 0);
    assert_int_equal(stats().idle_bytes, 800 * MIB);
    ca_lock_take(&arena->lock);
    ca_apart_refused(arena, 700 * MIB);
    ca_lock_drop(&arena->lock);
    assert_false(arena->apart);
}

static void a_refusal_with_room_in_pieces_keeps_blocks_apart_from_then_on(void **state)
{
    (void)state;
    fill_with_pieces();
    held_t none;
    assert_int_equal(hold(arena, 200 * MIB, &none), -ENOMEM);
    assert_true(arena->apart);
    free_pieces();
    fake.limit = DEVICE;
    held_t small = get(100 * KIB);
    (void)ca_arena_trim(arena, SIZE_MAX);
    assert_in_range(stats().reserved_bytes, MIB, CA_SEGMENT_FIRST); /* it is in none of those */
    size_t before = stats().reserved_bytes;
    held_t a = get(4 * MIB), b = get(4 * MIB);
    assert_int_equal(stats().reserved_bytes, before + 8 * MIB);
    put(&a), put(&b), put(&small);
}

/* Before that is used up, or it would be late. */
static void so_does_a_growth_that_would_leave_less_than_the_headroom(void **state)
{
    (void)state;
    params.headroom = 300 * MIB;
    fill_with_pieces();
    fake.limit = 1100 * MIB;
    held_t from_headroom = get(200 * MIB);
    assert_true(arena->apart);
    put(&from_headroom);
    free_pieces();
}

/* Or there would be less than before. */
static void what_lies_in_shared_segments_still_serves_a_full_device(void **state)
{
    (void)state;
    fill_with_pieces();
    held_t none, rest[8];
    assert_int_equal(hold(arena, 200 * MIB, &none), -ENOMEM);
    assert_true(arena->apart);
    for (unsigned i = 0; i < 8; i++)
        rest[i] = get(38 * MIB);
    for (unsigned i = 0; i < 8; i++)
        put(&rest[i]);
    free_pieces();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sizes_in_no_order_are_served_while_there_is_room),
        TEST(rising_sizes_are),
        TEST(phases_of_small_and_large_ones_are),
        TEST(large_ones_among_small_ones_are_but_for_a_few),
        TEST(a_pool_that_has_much_shares_no_new_segment),
        TEST(small_ones_that_stay_keep_nothing_that_large_ones_came_and_went_in),
        TEST(small_ones_share_the_smallest_segments_then),
        TEST(no_refusal_no_change),
        TEST(what_is_idle_is_no_piece),
        TEST(so_does_a_growth_that_would_leave_less_than_the_headroom),
        TEST(a_refusal_with_room_in_pieces_keeps_blocks_apart_from_then_on),
        TEST(what_lies_in_shared_segments_still_serves_a_full_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
