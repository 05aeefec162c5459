/* What would have kept blocks apart that keep memory in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/state.h"
#include "pool/blocks/pieces.h"

#define KIB ((size_t)1 << 10)
#define SMALL_MOST (16 * MIB)

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

static ca_pieces_t pieces(void)
{
    ca_pieces_t now = {0};
    ca_arena_trim(arena, 0);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_true(ca_arena_pieces_try(arena, &now));
    return now;
}

static void an_idle_segment_is_in_no_pieces(void **state)
{
    (void)state;
    held_t all = get(64 * MIB);
    put(&all);
    ca_pieces_t now = pieces();
    assert_int_equal(ca_pieces_small(&now, 1, SMALL_MOST), 0);
    assert_int_equal(ca_pieces_max_split(&now, 1, MIB), 0);
}

static void a_large_one_that_stays_is_kept_apart_by_max_split(void **state)
{
    (void)state;
    held_t all = get(64 * MIB);
    put(&all);
    (void)pieces(); /* it is ready */
    get(20 * MIB);
    ca_pieces_t now = pieces();
    assert_int_equal(ca_pieces_max_split(&now, 44 * MIB, MIB), 16 * MIB);
    assert_int_equal(ca_pieces_max_split(&now, 45 * MIB, MIB), 0); /* there is no more */
    assert_int_equal(ca_pieces_max_split(&now, 44 * MIB, 32 * MIB), 0);
    assert_int_equal(ca_pieces_small(&now, 44 * MIB, SMALL_MOST), 0); /* larger than that takes */
}

static void a_small_one_is_kept_apart_by_small(void **state)
{
    (void)state;
    held_t all = get(64 * MIB);
    put(&all);
    (void)pieces();
    get(300 * KIB);
    ca_pieces_t now = pieces();
    assert_int_equal(ca_pieces_small(&now, 60 * MIB, SMALL_MOST), 512 * KIB);
    assert_int_equal(ca_pieces_small(&now, 64 * MIB, SMALL_MOST), 0);
}

/* Either size would leave the other there. */
static void no_option_keeps_both_a_small_and_a_large_one_apart(void **state)
{
    (void)state;
    held_t all = get(64 * MIB);
    put(&all);
    (void)pieces();
    get(300 * KIB), get(20 * MIB);
    ca_pieces_t now = pieces();
    assert_int_equal(ca_pieces_small(&now, 40 * MIB, SMALL_MOST), 0);
    assert_int_equal(ca_pieces_max_split(&now, 40 * MIB, MIB), 0);
}

static void what_is_pending_is_in_no_pieces(void **state)
{
    (void)state;
    held_t all = get(64 * MIB);
    put(&all);
    (void)pieces();
    held_t pends = get(60 * MIB);
    get(300 * KIB);
    put(&pends);
    ca_pieces_t now = {0};
    assert_true(ca_arena_pieces_try(arena, &now));
    assert_int_equal(ca_pieces_small(&now, 50 * MIB, SMALL_MOST), 0);
}

static void no_size_tells_blocks_of_one_size_apart(void **state)
{
    (void)state;
    held_t held[8];
    for (unsigned i = 0; i < 8; i++)
        held[i] = get(MIB);
    for (unsigned i = 0; i < 8; i += 2)
        put(&held[i]);
    ca_pieces_t now = pieces();
    assert_int_equal(ca_pieces_small(&now, 4 * MIB, SMALL_MOST), 0);
    assert_int_equal(ca_pieces_max_split(&now, 4 * MIB, MIB), 0); /* just as large is not above */
}

/* A piece of the sizes between 4 and 8 MiB may lose a page of 2, or all it has. */
static void pages_are_counted_without_the_ends_of_pieces(void **state)
{
    held_t all = get(64 * MIB), kept[3];
    ca_pieces_t now = {.beside[20][23] = 24 * MIB};
    (void)state;
    assert_int_equal(ca_pieces_pages(&now, 2 * MIB), 24 * MIB - 6 * 2 * MIB);
    assert_int_equal(ca_pieces_pages(&now, 4 * MIB), 0);
    assert_int_equal(ca_pieces_pages(&now, 16 * MIB), 0);
    put(&all);
    (void)pieces(); /* it is ready */
    for (int i = 0; i < 3; i++)
        kept[i] = get(300 * KIB);
    now = pieces();
    size_t pages = ca_pieces_pages(&now, 2 * MIB);
    assert_in_range(pages, 56 * MIB, 62 * MIB);
    for (int i = 0; i < 3; i++)
        put(&kept[i]);
}

static void a_lock_that_stays_in_use_is_not_waited_for(void **state)
{
    (void)state;
    ca_pieces_t now = {0};
    ca_lock_take(&arena->lock);
    assert_false(ca_arena_pieces_try(arena, &now));
    ca_lock_drop(&arena->lock);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_idle_segment_is_in_no_pieces),
        TEST(a_large_one_that_stays_is_kept_apart_by_max_split),
        TEST(a_small_one_is_kept_apart_by_small),
        TEST(no_option_keeps_both_a_small_and_a_large_one_apart),
        TEST(what_is_pending_is_in_no_pieces),
        TEST(no_size_tells_blocks_of_one_size_apart),
        TEST(pages_are_counted_without_the_ends_of_pieces),
        TEST(a_lock_that_stays_in_use_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
