/* One stream alone: what is freed on it is ready at once, for it alone. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

static ca_arena_t *arena;
static ca_stream_t *one, *two;

typedef struct mine {
    ca_block_t *block;
    uint64_t address;
} mine_t;

static void sound(void)
{
    const char *broken = ca_arena_check(arena);
    if (broken)
        fail_msg("%s", broken);
    assert_int_equal(fake.errors, 0);
}

static mine_t get(ca_stream_t *stream, size_t bytes)
{
    mine_t mine;
    assert_int_equal(ca_cached_alloc(arena, stream, bytes, false, &mine.block, &mine.address, NULL),
                     0);
    sound();
    return mine;
}

static void put(mine_t mine, ca_stream_t *stream)
{
    ca_arena_free_on(mine.block, stream);
    sound();
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

static bool meet(mine_t mine, size_t bytes, mine_t other, size_t other_bytes)
{
    return mine.address < other.address + other_bytes && other.address < mine.address + bytes;
}

/* Until it is at home. */
static void alone(ca_stream_t *stream)
{
    for (unsigned i = 0; i <= 4 * CA_HOME_AFTER; i++) {
        mine_t mine;
        assert_int_equal(ca_arena_alloc(arena, stream, 4096, &mine.block, &mine.address, NULL), 0);
        ca_arena_free_on(mine.block, stream);
    }
    sound();
    assert_ptr_equal(arena->home, stream);
    fake_log();
}

static int set_up(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 64 * MIB;
    params.device_bytes = 1024 * MIB;
    fake_reset(1024 * MIB, 0);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    one = ca_arena_stream(arena, (void *)1, false);
    two = ca_arena_stream(arena, (void *)2, false);
    return arena && one && two ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void what_it_frees_merges_and_serves_it_without_a_call(void **state)
{
    (void)state;
    mine_t low = get(one, 3 * MIB), high = get(one, 3 * MIB);
    alone(one);
    for (unsigned i = 0; i < 100; i++) {
        put(low, one);
        put(high, one);
        mine_t both = get(one, 6 * MIB);
        put(both, one);
        low = get(one, 3 * MIB);
        high = get(one, 3 * MIB);
        assert_true(meet(low, 3 * MIB, both, 6 * MIB) && meet(high, 3 * MIB, both, 6 * MIB));
    }
    assert_string_equal(fake_log(), "");
    assert_int_equal(stats().pending_bytes, 0);
}

static void what_was_pending_is_ready_when_it_comes_home(void **state)
{
    (void)state;
    mine_t low = get(one, 3 * MIB), high = get(one, 3 * MIB);
    put(low, one);
    put(high, one);
    assert_int_equal(stats().pending_bytes, 6 * MIB);
    alone(one);
    assert_int_equal(stats().pending_bytes, 0);
    assert_true(meet(get(one, 6 * MIB), 6 * MIB, low, 3 * MIB));
}

/* In flight on `one`: `*mine`, of 3 MiB, and all else that is ready. */
static void ready_in_flight(mine_t *mine)
{
    *mine = get(one, 3 * MIB);
    alone(one);
    put(*mine, one);
    assert_int_equal(stats().pending_bytes, 0);
}

static void no_other_request_takes_it_before_its_fence_has_passed(void **state)
{
    const size_t sizes[] = {3 * MIB, 512};
    for (unsigned i = 0; i < 4; i++) {
        mine_t mine, ready;
        ca_stream_t *stream = i % 2 ? NULL : two;
        ready_in_flight(&mine);
        uint64_t base = ca_block_segment(mine.block)->base;
        size_t bytes = ca_block_segment(mine.block)->bytes;
        assert_int_equal(
            ca_arena_alloc_ready(arena, stream, 512, &ready.block, &ready.address, NULL), -EAGAIN);
        assert_int_equal(ca_arena_alloc_passed(arena, 512, &ready.block, &ready.address), -EAGAIN);
        mine_t other = get(stream, sizes[i / 2]);
        assert_false(other.address >= base && other.address < base + bytes);
        assert_null(arena->home);
        fake_pass_all();
        ca_arena_trim(arena, 0);
        assert_int_equal(stats().pending_bytes, 0);
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
}

static void a_full_device_gets_none_of_it(void **state)
{
    (void)state;
    mine_t mine = get(one, 600 * MIB), other;
    alone(one);
    put(mine, one);
    assert_int_equal(ca_arena_alloc(arena, one, 700 * MIB, &other.block, &other.address, NULL),
                     -ENOMEM);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
    assert_int_equal(fake.unbounded_waits, 0);
    sound();
    fake_pass_all();
    (void)get(one, 700 * MIB);
    assert_true(fake.calls[FAKE_FREE] > 0);
}

/* A segment that was given back for the next one keeps the peak as it is. */
static void before_the_peak_rises_it_is_waited_for(void **state)
{
    (void)state;
    mine_t mine = get(one, 200 * MIB);
    alone(one);
    put(mine, one);
    fake.wait_passes = fake.auto_pass = true;
    (void)get(one, 220 * MIB);
    assert_true(fake.calls[FAKE_WAIT] > 0 && fake.unbounded_waits == 0);
    assert_true(fake.calls[FAKE_FREE] > 0);
    assert_true(stats().reserved_peak < 300 * MIB);
}

/* A step of training may be far behind: the wait is a hundred times as long as others, and no
 * longer than those once it was in vain. */
static void where_that_is_in_vain_the_pool_grows(void **state)
{
    (void)state;
    mine_t mine = get(one, 200 * MIB);
    alone(one);
    put(mine, one);
    (void)get(one, 220 * MIB);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
    assert_int_equal(fake.calls[FAKE_WAIT], 1);
    assert_int_equal(fake.waited_ns, 100 * fake_params.reuse_wait_ns);
    sound();
    put(get(one, 512), one); /* at home again, and so is what pended */
    assert_int_equal(stats().pending_bytes, 0);
    (void)get(one, 240 * MIB);
    assert_int_equal(fake.calls[FAKE_WAIT], 2);
    assert_int_equal(fake.waited_ns, fake_params.reuse_wait_ns);
    put(get(one, 512), one);
    assert_int_equal(get(one, 200 * MIB).address, mine.address);
}

/* In a capture no fence can be had: that says nothing of how long one takes. */
static void where_there_is_no_answer_it_was_not_in_vain(void **state)
{
    (void)state;
    mine_t mine = get(one, 200 * MIB);
    alone(one);
    put(mine, one);
    fake.capturing = true;
    (void)get(one, 220 * MIB);
    assert_int_equal(fake.calls[FAKE_WAIT], 0);
    fake.capturing = false;
    put(get(one, 512), one);
    (void)get(one, 240 * MIB);
    assert_int_equal(fake.waited_ns, 100 * fake_params.reuse_wait_ns);
}

static void a_trim_gives_none_of_it(void **state)
{
    (void)state;
    mine_t mine;
    ready_in_flight(&mine);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
    fake_pass_all();
    assert_true(ca_arena_trim(arena, SIZE_MAX) > 0);
}

static void nor_does_decay(void **state)
{
    (void)state;
    mine_t mine;
    ready_in_flight(&mine);
    for (unsigned i = 0; i < 3; i++)
        ca_arena_tick(arena);
    assert_int_equal(ca_arena_decay(arena, 1, false), 0);
    assert_int_equal(ca_arena_decay(arena, 1, true), 0);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
}

static void when_it_ends_all_is_behind_its_last_work(void **state)
{
    (void)state;
    mine_t mine;
    ready_in_flight(&mine);
    ca_stream_retire(one);
    assert_null(arena->home);
    one = ca_arena_stream(arena, (void *)1, false); /* the handle comes again */
    assert_false(meet(get(one, 3 * MIB), 3 * MIB, mine, 3 * MIB));
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
    sound();
}

static void without_a_fence_others_get_none(void **state)
{
    (void)state;
    mine_t mine;
    ready_in_flight(&mine);
    fake.capturing = true;
    assert_false(meet(get(two, 3 * MIB), 3 * MIB, mine, 3 * MIB));
    fake.capturing = false;
    fake_pass_all();
    assert_false(meet(get(two, 3 * MIB), 3 * MIB, mine, 3 * MIB));
}

static void where_streams_take_turns_none_is_at_home(void **state)
{
    (void)state;
    unsigned left = 0;
    fake.auto_pass = true;
    for (unsigned i = 0; i < 40 * CA_HOME_AFTER; i++) {
        ca_stream_t *stream = i % (4 * CA_HOME_AFTER) ? one : two;
        mine_t mine;
        left += arena->home && arena->home != stream;
        assert_int_equal(ca_arena_alloc(arena, stream, 4096, &mine.block, &mine.address, NULL), 0);
        ca_arena_free_on(mine.block, stream);
    }
    assert_in_range(left, 1, 3);
    sound();
}

/* Threads may come late with a pointer to its arena. */
static void it_may_be_at_home_when_its_context_is_destroyed(void **state)
{
    (void)state;
    mine_t mine, late;
    ready_in_flight(&mine);
    ca_arena_retire(arena);
    assert_int_equal(ca_arena_trim_as(arena, 0, CA_TRIM_POLL), 0);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    assert_int_equal(ca_arena_decay(arena, 0, false), 0);
    assert_int_equal(ca_arena_alloc(arena, NULL, 512, &late.block, &late.address, NULL), -EIO);
    assert_int_equal(ca_arena_alloc(arena, two, 512, &late.block, &late.address, NULL), -EIO);
}

/* Nobody else can have it leave, unless by a fence behind all work. */
static void a_thread_s_own_stream_needs_fences_of_the_context(void **state)
{
    (void)state;
    ca_stream_t *own = ca_arena_stream(arena, (void *)3, true);
    mine_t mine = get(own, 3 * MIB);
    for (unsigned i = 0; i <= 4 * CA_HOME_AFTER; i++)
        put(get(own, 512), own);
    assert_null(arena->home);
    put(get(NULL, 8 * MIB), NULL);
    ca_arena_trim(arena, 0);
    assert_true(arena->fenced);
    alone(own);
    put(mine, own);
    assert_false(meet(get(two, 3 * MIB), 3 * MIB, mine, 3 * MIB));
}

static void the_default_stream_is_one_that_the_legacy_stream_s_rules_are_not_for(void **state)
{
    (void)state;
    ca_stream_t *plain = ca_arena_default_stream(arena, (void *)4);
    assert_non_null(plain);
    assert_ptr_equal(plain, ca_arena_default_stream(arena, (void *)4));
    assert_ptr_not_equal(plain, ca_arena_legacy_stream(arena, (void *)4));
    alone(plain);
    /* A launch asks the legacy stream's object what was handed out. */
    ca_stream_handed(plain);
    assert_true(ca_stream_begin_serial(ca_arena_legacy_stream(arena, (void *)4)) != 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_it_frees_merges_and_serves_it_without_a_call),
        TEST(what_was_pending_is_ready_when_it_comes_home),
        TEST(no_other_request_takes_it_before_its_fence_has_passed),
        TEST(a_full_device_gets_none_of_it),
        TEST(before_the_peak_rises_it_is_waited_for),
        TEST(where_that_is_in_vain_the_pool_grows),
        TEST(where_there_is_no_answer_it_was_not_in_vain),
        TEST(a_trim_gives_none_of_it),
        TEST(nor_does_decay),
        TEST(when_it_ends_all_is_behind_its_last_work),
        TEST(without_a_fence_others_get_none),
        TEST(where_streams_take_turns_none_is_at_home),
        TEST(it_may_be_at_home_when_its_context_is_destroyed),
        TEST(a_thread_s_own_stream_needs_fences_of_the_context),
        TEST(the_default_stream_is_one_that_the_legacy_stream_s_rules_are_not_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
