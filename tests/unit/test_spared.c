/* Growth that spares the threads' caches: where several threads would lose what they have in stock
 * a heap grows first. See ca_grow_spares_caches and pool/growth/ladder.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_cache.h"
#include "pool/growth/grow.h"

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
    assert_true(ca_caches_bytes(arena) >= WANTED);
}

/* A request that is served from what threads have in stock. */
static void use_stock(void)
{
    size_t stock = ca_caches_bytes(arena);
    use(WANTED);
    assert_true(ca_caches_bytes(arena) <= stock - WANTED);
}

/* Whether a request makes the heap grow; it takes from the stock otherwise. */
static bool grows(void)
{
    stock_up();
    uint64_t before = fake.calls[FAKE_ALLOC];
    size_t stock = ca_caches_bytes(arena);
    use(WANTED);
    bool grew = fake.calls[FAKE_ALLOC] > before;
    if (grew)
        assert_int_equal(ca_caches_bytes(arena), stock);
    else
        assert_true(ca_caches_bytes(arena) <= stock - WANTED);
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

static void expect_growth(void)
{
    assert_true(grows());
    assert_true(grows());
}

BESIDE_A_FULL_CACHE(threads_do_not_lose_their_stock_while_it_may_grow, expect_growth)

static bool spares_where_reserved(size_t bytes)
{
    size_t reserved = arena->reserved;
    arena->reserved = bytes;
    bool spares = ca_grow_spares_caches(arena);
    arena->reserved = reserved;
    return spares;
}

static void expect_growth_in_proportion(void)
{
    stock_up();
    size_t most = arena->live_peak + arena->live_peak / 4 + CA_GROW_SPARE;
    assert_true(spares_where_reserved(most));
    assert_false(spares_where_reserved(most + 1));
}

BESIDE_A_FULL_CACHE(what_grows_for_their_sake_is_in_proportion, expect_growth_in_proportion)

static void expect_the_stock_where_nothing_else_is(void)
{
    stock_up();
    fake.limit = fake.used;
    use_stock();
}

BESIDE_A_FULL_CACHE(where_growth_is_refused_the_stock_serves,
                    expect_the_stock_where_nothing_else_is)

static void expect_as_few_calls(void)
{
    held_t held;
    stock_up();
    fake.limit = fake.used;
    arena->params.headroom = MIB;
    arena->estimate.until = 0; /* for some time */
    uint64_t before = fake.calls[FAKE_ALLOC];
    assert_int_equal(hold(arena, 64 * MIB, &held), -ENOMEM); /* there is one size to try */
    assert_in_range(fake.calls[FAKE_ALLOC] - before, 1, 2);
}

BESIDE_A_FULL_CACHE(refused_growth_is_not_asked_for_again, expect_as_few_calls)

static void expect_it_to_depend_on_the_stock(void)
{
    ca_lock_take(&arena->lock);
    ca_caches_lock_out(arena);
    ca_caches_open(arena);
    ca_lock_drop(&arena->lock);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_false(ca_grow_spares_caches(arena));
    stock_up();
    assert_true(ca_grow_spares_caches(arena));
}

BESIDE_A_FULL_CACHE(where_nothing_is_in_stock_growth_is_not_for_its_sake,
                    expect_it_to_depend_on_the_stock)

static void expect_none_at_all(void)
{
    assert_false(grows());
    assert_false(grows());
}

static void expect_none_of_little(void)
{
    stock_up();
    size_t peak = arena->live_peak;
    arena->live_peak = CA_GROW_SPARE - 1;
    assert_false(ca_grow_spares_caches(arena));
    arena->live_peak = CA_GROW_SPARE;
    assert_true(ca_grow_spares_caches(arena));
    arena->live_peak = peak;
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
            arena->params.headroom = 4096 * MIB;
        else
            arena->params.host = true;
        beside_a_full_cache(32 * KIB, expect_none_at_all);
        stop();
    }
}

/* Not for want of memory: nothing that was served without it is refused. */
static void expect_the_stock_where_a_call_fails(void)
{
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
        cmocka_unit_test(threads_do_not_lose_their_stock_while_it_may_grow),
        cmocka_unit_test(what_grows_for_their_sake_is_in_proportion),
        cmocka_unit_test(where_growth_is_refused_the_stock_serves),
        cmocka_unit_test(refused_growth_is_not_asked_for_again),
        cmocka_unit_test(where_nothing_is_in_stock_growth_is_not_for_its_sake),
        cmocka_unit_test(nor_does_a_small_one),
        cmocka_unit_test(nor_one_that_is_told_not_to),
        cmocka_unit_test(where_growth_fails_the_stock_serves),
        cmocka_unit_test(a_single_threads_stock_comes_before_growth_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
