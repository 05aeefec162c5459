/* Growth that spares the threads' caches: where they were emptied a moment ago a heap rather grows,
 * by a little. See ca_grow_spares_caches and pool/ladder.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_cache.h"
#include "pool/grow.h"

static held_t used[64];
static unsigned uses;

/* From now on, until stop. */
static void use(size_t bytes)
{
    assert_true(uses < sizeof used / sizeof *used);
    assert_int_equal(hold(arena, bytes, &used[uses++]), 0);
}

/* What the heap has ready of more than `bytes`. */
static void use_up(size_t bytes)
{
    ca_arena_stats_t stats;
    for (ca_arena_stats(arena, &stats); stats.largest_ready > bytes; ca_arena_stats(arena, &stats))
        use(stats.largest_ready);
}

#define WANTED (5 * MIB)

/* More than is wanted lies in stock, and nothing like it elsewhere. */
static void stock_up(void)
{
    go_through(32 * KIB, CA_CACHE_EPOCH_BLOCKS);
    fake_pass_all();
    use_up(WANTED - 1);
    assert_true(ca_caches_stock(arena) >= WANTED);
}

/* A request that is served from what threads have in stock. */
static void use_stock(void)
{
    size_t stock = ca_caches_stock(arena);
    use(WANTED);
    assert_true(ca_caches_stock(arena) <= stock - WANTED);
}

/* Whether a request makes the heap grow; it takes from the stock otherwise. */
static bool grows(void)
{
    stock_up();
    uint64_t before = fake.calls[FAKE_ALLOC];
    size_t stock = ca_caches_stock(arena);
    use(WANTED);
    bool grew = fake.calls[FAKE_ALLOC] > before;
    if (grew)
        assert_int_equal(ca_caches_stock(arena), stock);
    else
        assert_true(ca_caches_stock(arena) <= stock - WANTED);
    return grew;
}

/* In so many blocks that those of the caches are no trifle beside them (CA_GROW_TRIFLE), which
 * would get small segments. */
static held_t live[512];

static void start_with_live(size_t bytes, size_t memory)
{
    start(memory, CACHED);
    fake.auto_pass = true;
    for (unsigned i = 0; i < 512; i++)
        live_is(bytes / 512, &live[i]);
}

#define LIVE (128 * MIB)

static void start_with_much_live(void)
{
    start_with_live(LIVE, 4096 * MIB);
}

static void stop(void)
{
    while (uses)
        let_go(&used[--uses]);
    for (unsigned i = 0; i < 512; i++)
        let_go(&live[i]);
    end();
}

/* A test: `part`, while another thread has a full cache. */
#define BESIDE_A_FULL_CACHE(name, part)                                                            \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        start_with_much_live();                                                                    \
        beside_a_full_cache(32 * KIB, part);                                                       \
        stop();                                                                                    \
    }

static void expect_growth_after_the_first(void)
{
    assert_false(grows());
    assert_true(grows());
    assert_true(grows());
}

BESIDE_A_FULL_CACHE(threads_do_not_lose_their_stock_again_and_again, expect_growth_after_the_first)

static bool spares_where_reserved(size_t bytes)
{
    size_t reserved = arena->reserved;
    arena->reserved = bytes;
    bool spares = ca_grow_spares_caches(arena, WANTED);
    arena->reserved = reserved;
    return spares;
}

static void expect_growth_by_a_part(void)
{
    assert_false(grows());
    stock_up();
    size_t live = arena->live_peak;
    size_t most = live + live / 4 + CA_GROW_SPARE + live / CA_GROW_CACHES_SHARE;
    assert_true(spares_where_reserved(most));
    assert_false(spares_where_reserved(most + 1));
}

BESIDE_A_FULL_CACHE(what_grows_for_their_sake_is_a_part_of_what_is_live, expect_growth_by_a_part)

/* As if more were reserved than is in proportion to what is live. */
static void expect_growth_whatever_policy_says(void)
{
    assert_false(grows());
    stock_up();
    size_t more = arena->live_peak / 4 + arena->live_peak + CA_GROW_SPARE + 1 - arena->reserved;
    uint64_t before = fake.calls[FAKE_ALLOC];
    arena->reserved += more;
    assert_false(ca_grow_allowed(arena));
    use(WANTED);
    arena->reserved -= more;
    assert_int_equal(fake.calls[FAKE_ALLOC], before + 1);
    assert_true(ca_caches_stock(arena) >= WANTED);
}

BESIDE_A_FULL_CACHE(whatever_policy_says, expect_growth_whatever_policy_says)

static void expect_none_for_a_larger_part(void)
{
    assert_false(grows());
    stock_up();
    use(2 * LIVE / CA_GROW_CACHES_SHARE); /* which no stock has */
    assert_int_equal(ca_caches_stock(arena), 0);
}

BESIDE_A_FULL_CACHE(a_request_for_more_than_that_part_takes_the_stock_first,
                    expect_none_for_a_larger_part)

static void expect_none_later(void)
{
    assert_false(grows());
    for (unsigned i = 0; i < 100; i++) {
        go_through(32 * KIB, CA_CACHE_EPOCH_BLOCKS);
        fake_pass_all();
    }
    assert_false(grows());
}

BESIDE_A_FULL_CACHE(what_was_taken_long_ago_is_taken_again, expect_none_later)

static void expect_the_stock_where_nothing_else_is(void)
{
    assert_false(grows());
    stock_up();
    fake.limit = fake.used;
    use_stock();
}

BESIDE_A_FULL_CACHE(where_growth_is_refused_the_stock_serves,
                    expect_the_stock_where_nothing_else_is)

static void expect_it_is_spared(void)
{
    assert_false(grows());
    stock_up();
    held_t *held = &used[uses];
    size_t stock = ca_caches_stock(arena);
    assert_int_equal(ca_arena_alloc_rungs(arena, NULL, WANTED, CA_RUNGS_PASSED | CA_RUNGS_UNSPARED,
                                          &held->block, &held->address, NULL),
                     -ENOMEM);
    assert_int_equal(ca_caches_stock(arena), stock);
    assert_int_equal(ca_arena_alloc_rungs(arena, NULL, WANTED, CA_RUNGS_PASSED | CA_RUNGS_CACHES,
                                          &held->block, &held->address, NULL),
                     0);
    assert_true(ca_caches_stock(arena) <= stock - WANTED);
    uses++;
}

/* Of several heaps each is asked for its stock before any grows. */
BESIDE_A_FULL_CACHE(nor_does_another_heaps_climb_take_it, expect_it_is_spared)

static void expect_as_few_calls(void)
{
    held_t held;
    assert_false(grows());
    stock_up();
    fake.limit = fake.used;
    arena->look.until = 0; /* for some time */
    uint64_t before = fake.calls[FAKE_ALLOC];
    assert_int_equal(hold(arena, 16 * MIB, &held), -ENOMEM);
    assert_in_range(fake.calls[FAKE_ALLOC] - before, 1, 2); /* sizes of a segment that are tried */
}

BESIDE_A_FULL_CACHE(refused_growth_is_not_asked_for_again, expect_as_few_calls)

static void expect_it_to_depend_on_the_stock(void)
{
    assert_false(grows());
    use(4 * LIVE);
    assert_int_equal(ca_caches_stock(arena), 0);
    assert_false(ca_grow_spares_caches(arena, WANTED));
    stock_up();
    assert_true(ca_grow_spares_caches(arena, WANTED));
}

BESIDE_A_FULL_CACHE(where_nothing_is_in_stock_growth_is_not_for_its_sake,
                    expect_it_to_depend_on_the_stock)

static void expect_none_at_all(void)
{
    assert_false(grows());
    assert_false(grows());
}

static void nor_does_a_heap_grow_for_it_whose_room_is_less_than_what_is_live(void **state)
{
    (void)state;
    start_with_live(4 * LIVE, 4 * LIVE + 4 * LIVE - 64 * MIB);
    beside_a_full_cache(32 * KIB, expect_none_at_all);
    stop();
}

static void expect_none_of_little(void)
{
    assert_false(grows());
    stock_up();
    assert_false(ca_grow_spares_caches(arena, 512));
    arena->params.segment_first = MIB;
    assert_true(ca_grow_spares_caches(arena, 512));
}

static void nor_does_a_small_one(void **state)
{
    (void)state;
    start_with_live(12 * MIB, 4096 * MIB);
    beside_a_full_cache(32 * KIB, expect_none_of_little);
    stop();
}

static void nor_one_that_is_told_not_to(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        start_with_much_live();
        if (i == 0)
            arena->params.reuse = CA_POOL_REUSE_WAIT;
        else if (i == 1)
            arena->params.headroom = 4096 * MIB - 2 * LIVE; /* and as much as is live */
        else
            arena->params.host = true;
        beside_a_full_cache(32 * KIB, expect_none_at_all);
        stop();
    }
}

/* Not for want of memory: nothing that was served without it is refused. */
static void expect_the_stock_where_a_call_fails(void)
{
    assert_false(grows());
    stock_up();
    fake.fail_at[FAKE_ALLOC] = 1;
    fake.fail_rc[FAKE_ALLOC] = -EINVAL;
    use_stock();
}

BESIDE_A_FULL_CACHE(where_growth_fails_the_stock_serves, expect_the_stock_where_a_call_fails)

static void a_single_threads_stock_comes_before_growth_each_time(void **state)
{
    (void)state;
    start_with_much_live();
    for (unsigned i = 0; i < 3; i++)
        assert_false(grows());
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_lose_their_stock_again_and_again),
        cmocka_unit_test(what_grows_for_their_sake_is_a_part_of_what_is_live),
        cmocka_unit_test(whatever_policy_says),
        cmocka_unit_test(a_request_for_more_than_that_part_takes_the_stock_first),
        cmocka_unit_test(what_was_taken_long_ago_is_taken_again),
        cmocka_unit_test(where_growth_is_refused_the_stock_serves),
        cmocka_unit_test(nor_does_another_heaps_climb_take_it),
        cmocka_unit_test(refused_growth_is_not_asked_for_again),
        cmocka_unit_test(where_nothing_is_in_stock_growth_is_not_for_its_sake),
        cmocka_unit_test(nor_does_a_heap_grow_for_it_whose_room_is_less_than_what_is_live),
        cmocka_unit_test(nor_does_a_small_one),
        cmocka_unit_test(nor_one_that_is_told_not_to),
        cmocka_unit_test(where_growth_fails_the_stock_serves),
        cmocka_unit_test(a_single_threads_stock_comes_before_growth_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
