/* Memory that was idle for long goes back upstream; see pool/reclaim.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"
#include "pool/arena.h"

#define TICKS 2

static ca_arena_t *arena;

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
    const char *broken = ca_arena_check(arena);
    if (broken)
        print_error("%s\n", broken);
    ca_arena_retire(arena);
    return broken || fake.errors ? -1 : 0;
}

static held_t get(size_t bytes)
{
    held_t held;
    assert_int_equal(hold(arena, bytes, &held), 0);
    return held;
}

static size_t reserved(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now.reserved_bytes;
}

/* All that goes after one more tick. */
static size_t tick(bool waits)
{
    size_t given = 0, bytes;
    ca_arena_tick(arena);
    while ((bytes = ca_arena_decay(arena, TICKS, waits)) > 0)
        given += bytes;
    return given;
}

static void idle_segments_go_after_whole_intervals(void **state)
{
    (void)state;
    held_t a = get(16 * MIB), b = get(16 * MIB);
    let_go(&a);
    let_go(&b);
    fake_pass_all();
    assert_int_equal(tick(false), 0); /* the interval in which it was freed does not count */
    assert_int_equal(tick(false), 0);
    assert_int_equal(tick(false), 32 * MIB);
    assert_int_equal(reserved(), 0);
    assert_int_equal(fake.used, 0);
}

static void live_memory_stays(void **state)
{
    (void)state;
    held_t a = get(16 * MIB), b = get(512), c = get(512);
    let_go(&a);
    let_go(&b);
    fake_pass_all();
    for (int i = 0; i < 10; i++)
        tick(false);
    assert_true(ca_pool_owns(c.address));
    assert_int_equal(reserved(), fake.used);
    assert_true(reserved() > 0 && reserved() < 16 * MIB);
    let_go(&c);
}

static void memory_in_use_now_and_then_stays(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        held_t a = get(16 * MIB);
        let_go(&a);
        fake_pass_all();
        assert_int_equal(tick(false), 0);
    }
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
}

static void a_tick_makes_pending_memory_ready(void **state)
{
    (void)state;
    held_t a = get(16 * MIB), b = get(512);
    let_go(&b); /* small: its epoch is open, and no call of the program will ever close it */
    let_go(&a);
    for (int i = 0; i < 10; i++)
        assert_int_equal(tick(false), 0); /* its work is not done */
    fake_pass_all();
    assert_true(tick(false) > 0);
    assert_int_equal(fake.waiting_frees, 0);
    assert_int_equal(reserved(), 0);
}

static void a_free_that_waits_comes_only_when_nothing_runs(void **state)
{
    (void)state;
    held_t a = get(16 * MIB);
    let_go(&a);
    fake_pass_all();
    fake.auto_pass = true;
    fake.lag = 1; /* the newest fence has not passed: something runs */
    for (int i = 0; i < 10; i++)
        assert_int_equal(tick(true), 0);
    fake.lag = 0;
    assert_int_equal(tick(true), 16 * MIB);
}

static void a_free_that_does_not_wait_comes_all_the_same(void **state)
{
    (void)state;
    held_t a = get(16 * MIB);
    let_go(&a);
    fake_pass_all();
    fake.auto_pass = true;
    fake.lag = 1;
    tick(false);
    tick(false);
    assert_int_equal(tick(false), 16 * MIB);
}

static void a_refused_free_ends_the_round(void **state)
{
    (void)state;
    held_t a = get(16 * MIB), b = get(16 * MIB);
    let_go(&a);
    let_go(&b);
    fake_pass_all();
    tick(false);
    tick(false);
    fake.fail_at[FAKE_FREE] = 1;
    fake.fail_rc[FAKE_FREE] = -EINVAL;
    assert_int_equal(tick(false), 0);
    assert_int_equal(tick(false), 16 * MIB);
    assert_int_equal(reserved(), 16 * MIB); /* what was refused is kept, idle since then */
    for (int i = 0; i < 3; i++)
        tick(false);
    assert_int_equal(reserved(), 0);
    assert_int_equal(fake.used, 0);
}

static void a_broken_context_is_left_alone(void **state)
{
    (void)state;
    held_t a = get(16 * MIB), b = get(16 * MIB);
    let_go(&a);
    let_go(&b);
    fake_pass_all();
    tick(false);
    tick(false);
    fake.fail_at[FAKE_FREE] = 1;
    fake.fail_rc[FAKE_FREE] = -EIO;
    for (int i = 0; i < 10; i++)
        assert_int_equal(tick(false), 0);
    assert_int_equal(fake.calls[FAKE_FREE], 1);
}

static void a_retired_arena_is_left_alone(void **state)
{
    (void)state;
    held_t a = get(16 * MIB);
    let_go(&a);
    ca_arena_retire(arena);
    for (int i = 0; i < 10; i++)
        assert_int_equal(tick(false), 0);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(idle_segments_go_after_whole_intervals),
        TEST(live_memory_stays),
        TEST(memory_in_use_now_and_then_stays),
        TEST(a_tick_makes_pending_memory_ready),
        TEST(a_free_that_waits_comes_only_when_nothing_runs),
        TEST(a_free_that_does_not_wait_comes_all_the_same),
        TEST(a_refused_free_ends_the_round),
        TEST(a_broken_context_is_left_alone),
        TEST(a_retired_arena_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
