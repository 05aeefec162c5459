/* Arenas of host memory: larger granules, smaller segments, counted apart, and given back only
 * while nothing runs. Every step checks every invariant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    ca_arena_params_t params = fake_params;
    params.granule = CA_PAGE;
    params.segment_first = CA_SEGMENT_UNIT;
    params.host = true;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    return arena ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static size_t reserved(void)
{
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    return stats.reserved_bytes;
}

static void every_block_is_whole_pages(void **state)
{
    (void)state;
    held_t a = get(1), b = get(4097), c = get(512), d = get(70000);
    assert_int_equal(a.address % CA_PAGE, 0);
    assert_int_equal(b.address - a.address, 4096);
    assert_int_equal(c.address - b.address, 8192);
    assert_int_equal(d.address - c.address, 4096);
    put(&b), put(&a), put(&c), put(&d);
    fake_pass_all();
    a = get(2), b = get(3);
    assert_int_equal(a.address % CA_PAGE, 0);
    assert_int_equal(b.address % CA_PAGE, 0);
    put(&a), put(&b);
}

static void pages_are_kept_where_upstream_does_not(void **state)
{
    (void)state;
    fake.misalign = 512;
    held_t held[300];
    for (size_t i = 0; i < 300; i++) {
        held[i] = get(1 + i * 40);
        assert_int_equal(held[i].address % CA_PAGE, 0);
    }
    for (size_t i = 0; i < 300; i++)
        put(&held[i]);
}

static void segments_begin_small(void **state)
{
    (void)state;
    held_t a = get(100);
    assert_int_equal(reserved(), 2 * MIB);
    held_t b = get(2 * MIB);
    assert_int_equal(reserved(), 4 * MIB);
    put(&a), put(&b);
}

static void the_reserve_is_counted_apart(void **state)
{
    (void)state;
    size_t device, device_peak, host, host_peak;
    ca_pool_reserved(false, &device, &device_peak);
    held_t a = get(100);
    size_t now, peak;
    ca_pool_reserved(false, &now, &peak);
    assert_int_equal(now, device);
    assert_int_equal(peak, device_peak);
    ca_pool_reserved(true, &host, &host_peak);
    assert_int_equal(host, 2 * MIB);
    put(&a);
    fake.auto_pass = true;
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 2 * MIB);
    ca_pool_reserved(true, &host, &host_peak);
    assert_int_equal(host, 0);
    assert_true(host_peak >= 2 * MIB);
}

static void nothing_goes_back_while_anything_runs(void **state)
{
    (void)state;
    held_t a = get(100), b = get(5 * MIB);
    put(&a), put(&b);
    ca_arena_trim(arena, 0); /* closes the open epoch */
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, 0), 0);
    size_t before = reserved();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0); /* idle, but the device is not */
    assert_int_equal(reserved(), before);
    fake.auto_pass = true;
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), before);
    assert_int_equal(reserved(), 0);
    sound();
}

/* Another thread submits work when the first real free is under way. */
static void submit(void)
{
    fake.auto_pass = false;
    fake.recorded++;
}

static void each_segment_goes_back_only_while_nothing_runs(void **state)
{
    (void)state;
    held_t held[4];
    for (unsigned i = 0; i < 4; i++)
        held[i] = get(5 * MIB);
    size_t before = reserved();
    fake.auto_pass = true;
    for (unsigned i = 0; i < 4; i++)
        put(&held[i]);
    fake.on_call[FAKE_FREE] = submit;
    size_t given = ca_arena_trim(arena, SIZE_MAX);
    fake.on_call[FAKE_FREE] = NULL;
    assert_int_equal(fake.calls[FAKE_FREE], 1);
    assert_int_equal(reserved(), before - given);
    sound();
}

static void a_shortage_takes_no_memory_back_under_work(void **state)
{
    (void)state;
    held_t a = get(600 * MIB), b;
    put(&a);
    fake.wait_passes = true; /* what was freed is done; what was submitted since is not */
    assert_int_equal(hold(arena, 700 * MIB, &b), -ENOMEM);
    assert_int_equal(fake.waiting_frees, 0);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
    sound();
    fake.auto_pass = true; /* the device has come to rest */
    b = get(700 * MIB);
    assert_int_equal(fake.calls[FAKE_FREE], 1);
    put(&b);
}

/* An event for each context there is, of all devices. */
static void small_arenas_make_no_more_fences_than_others(void **state)
{
    (void)state;
    ca_arena_params_t params = arena->params;
    ca_arena_retire(arena);
    params.warmup = 1000;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    held_t live = get(MIB), a = get(CA_WARMUP_ASKS);
    assert_true(arena->prefers_memory);
    put(&a);
    assert_int_equal(fake.calls[FAKE_RECORD], 0);
    put(&live);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_block_is_whole_pages),
        TEST(pages_are_kept_where_upstream_does_not),
        TEST(segments_begin_small),
        TEST(the_reserve_is_counted_apart),
        TEST(nothing_goes_back_while_anything_runs),
        TEST(each_segment_goes_back_only_while_nothing_runs),
        TEST(a_shortage_takes_no_memory_back_under_work),
        TEST(small_arenas_make_no_more_fences_than_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
