/* Each upstream call fails in turn: the arena stays sound, with a thread cache in front of it and
 * without, and where the failure leaves it serving nothing is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"

/* A fixed random program that climbs every rung. */
static void program(unsigned seed, bool lossless)
{
    enum { N = 64 };
    held_t held[N] = {0};
    uint64_t x = seed * 2654435761u + 1;

    for (unsigned step = 0; step < 1500; step++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        unsigned i = (unsigned)(x >> 33) % N;
        unsigned what = (unsigned)(x >> 40) % 16;
        if (held[i].block)
            let_go(&held[i]);
        else
            hold(arena, what == 0 ? 24 * MIB : what < 4 ? 3 * MIB : KIB << (what % 12), &held[i]);
        if (step % 64 == 0)
            fake_pass(fake.recorded > 3 ? fake.recorded - 3 : 0);
        if (step % 16 == 0)
            sound();
    }
    for (unsigned i = 0; i < N; i++)
        let_go(&held[i]);
    sound();
    if (lossless) { /* nothing leaks: all of it can be given back */
        fake_pass_all();
        ca_arena_trim(arena, SIZE_MAX);
        fake_pass_all();
        ca_arena_trim(arena, SIZE_MAX);
        assert_int_equal(fake.used, 0);
        assert_int_equal(fake.fences, 0);
        ca_arena_stats_t now;
        ca_arena_stats(arena, &now);
        assert_int_equal(now.reserved_bytes, 0);
    }
}

static void fail_each(fake_call_t kind, int rc, bool lossless, size_t thread_cache)
{
    ca_arena_params_t params = fake_params;
    params.thread_cache = thread_cache;
    for (uint64_t n = 1;; n++) {
        /* Less memory, so that more goes back. */
        fake_reset(kind == FAKE_FREE ? 64 * MIB : 96 * MIB, 128 * MIB);
        arena = ca_arena_create(&fake_upstream, NULL, &params);
        fake.fail_at[kind] = n;
        fake.fail_rc[kind] = rc;
        program(1, lossless);
        ca_arena_retire(arena);
        if (fake.calls[kind] < n) {
            assert_true(n > 5); /* else the program is no test of this call */
            return;
        }
        n += n / 8;
    }
}

static void fail_each_call(fake_call_t kind, int rc, bool lossless)
{
    fail_each(kind, rc, lossless, 0);
    fail_each(kind, rc, lossless, 8 * MIB);
}

static void any_failing_alloc_leaves_the_arena_sound(void **state)
{
    (void)state;
    fail_each_call(FAKE_ALLOC, -ENOMEM, true);
    fail_each_call(FAKE_ALLOC, -EAGAIN, true);
    fail_each_call(FAKE_ALLOC, -EIO, false);
}

static void any_failing_free_leaves_the_arena_sound(void **state)
{
    (void)state;
    fail_each_call(FAKE_FREE, -EINVAL, true);
    fail_each_call(FAKE_FREE, -EIO, false);
}

static void any_failing_record_leaves_the_arena_sound(void **state)
{
    (void)state;
    fail_each_call(FAKE_RECORD, -EAGAIN, true);
    fail_each_call(FAKE_RECORD, -ENOMEM, true);
    fail_each_call(FAKE_RECORD, -EIO, false);
}

static void any_failing_query_leaves_the_arena_sound(void **state)
{
    (void)state;
    fail_each_call(FAKE_QUERY, -EAGAIN, true);
    fail_each_call(FAKE_QUERY, -EIO, false);
}

static void any_failing_wait_leaves_the_arena_sound(void **state)
{
    (void)state;
    fail_each_call(FAKE_WAIT, -EAGAIN, true);
    fail_each_call(FAKE_WAIT, -EIO, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_failing_alloc_leaves_the_arena_sound),
        cmocka_unit_test(any_failing_free_leaves_the_arena_sound),
        cmocka_unit_test(any_failing_record_leaves_the_arena_sound),
        cmocka_unit_test(any_failing_query_leaves_the_arena_sound),
        cmocka_unit_test(any_failing_wait_leaves_the_arena_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
