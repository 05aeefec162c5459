/* Epochs: what was freed is handed out again only behind a fence recorded after the free. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/fence/epoch.h"
#include "pool/state.h"

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

/* `count` blocks allocated and freed; the calls that made. */
static const char *churn(unsigned count, size_t bytes)
{
    held_t *held = calloc(count, sizeof *held);
    for (unsigned i = 0; i < count; i++)
        held[i] = get(bytes);
    fake_log();
    for (unsigned i = 0; i < count; i++)
        put(&held[i]);
    free(held);
    return fake_log();
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

static void a_freed_block_waits_for_its_fence(void **state)
{
    (void)state;
    held_t a = get(6 * MIB);
    uint64_t address = a.address;
    put(&a);
    for (unsigned i = 0; i < 20; i++) {
        held_t b = get(6 * MIB);
        assert_true(b.address != address);
        let_go(&b);
    }
    fake_pass(1);
    held_t c;
    for (unsigned i = 0; i < 200; i++) { /* found at the latest when the next query is due */
        c = get(6 * MIB);
        if (c.address == address)
            break;
    }
    assert_int_equal(c.address, address);
}

static void a_small_free_records_nothing(void **state)
{
    (void)state;
    held_t a = get(512);
    fake_log();
    put(&a);
    assert_string_equal(fake_log(), "");
    assert_int_equal(stats().pending_bytes, 512);
}

static void an_epoch_closes_by_count(void **state)
{
    (void)state;
    assert_string_equal(churn(CA_EPOCH_BLOCKS - 1, 512), "");
    held_t last = get(512);
    put(&last);
    assert_string_equal(fake_log(), "R");
    assert_int_equal(stats().epochs, 1);
}

static void an_epoch_closes_by_bytes(void **state)
{
    (void)state;
    assert_string_equal(churn(CA_EPOCH_BYTES / MIB - 1, MIB), "");
    held_t last = get(MIB);
    fake_log();
    put(&last);
    assert_string_equal(fake_log(), "R");
}

static void a_large_free_closes_at_once(void **state)
{
    (void)state;
    assert_string_equal(churn(1, CA_EPOCH_LARGE), "R");
    assert_string_equal(churn(1, CA_EPOCH_LARGE - CA_PAGE), "");
}

static held_t slipped;

/* Another thread frees while the fence is being recorded. */
static void free_meanwhile(void)
{
    fake.on_call[FAKE_RECORD] = NULL;
    let_go(&slipped);
}

static void a_free_during_a_record_is_not_covered_by_it(void **state)
{
    (void)state;
    held_t large = get(6 * MIB);
    slipped = get(MIB);
    /* The fence's number is taken after the free here, and still the free is in the next epoch:
     * the driver may have looked at the work submitted so far before it. */
    fake.on_call[FAKE_RECORD] = free_meanwhile;
    put(&large);
    assert_int_equal(stats().pending_bytes, 7 * MIB);
    fake_pass(1);
    ca_arena_trim(arena, 0);
    sound();
    assert_int_equal(stats().pending_bytes, MIB);
    fake_pass(2);
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
}

static void one_record_covers_many_frees(void **state)
{
    (void)state;
    uint64_t before = fake.calls[FAKE_RECORD];
    churn(10 * CA_EPOCH_BLOCKS, 512);
    assert_int_equal(fake.calls[FAKE_RECORD] - before, 10);
}

static void during_a_capture_nothing_is_lost(void **state)
{
    (void)state;
    fake.capturing = true;
    churn(1000, 4096);
    assert_int_equal(stats().pending_bytes, 1000 * 4096);
    assert_int_equal(fake.recorded, 0);
    fake.capturing = false;
    churn(CA_CLOSE_BACKOFF + 1, 512); /* a later free closes it */
    assert_true(fake.recorded >= 1);
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX); /* the rest of the frees */
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX);
    assert_int_equal(stats().pending_bytes, 0);
    assert_int_equal(fake.used, 0);
    sound();
}

static void during_a_capture_records_back_off(void **state)
{
    (void)state;
    fake.capturing = true;
    churn(1000, 4096);
    assert_true(fake.calls[FAKE_RECORD] <= 1000 / CA_CLOSE_BACKOFF + 1);
    assert_true(fake.calls[FAKE_RECORD] >= 1000 / CA_CLOSE_BACKOFF - 2);
}

static void a_capture_never_synchronizes(void **state)
{
    (void)state;
    fake.capturing = true;
    churn(1000, 64 * KIB);
    assert_int_equal(fake.calls[FAKE_SYNC], 0);
}

static void a_free_during_a_refused_record_joins_the_epoch(void **state)
{
    (void)state;
    held_t large = get(6 * MIB);
    slipped = get(MIB);
    fake.capturing = true;
    fake.on_call[FAKE_RECORD] = free_meanwhile;
    put(&large);
    assert_int_equal(stats().pending_bytes, 7 * MIB);
    assert_int_equal(stats().epochs, 0);
    fake.capturing = false;
    fake.auto_pass = true;
    ca_arena_trim(arena, SIZE_MAX);
    sound();
    assert_int_equal(stats().pending_bytes, 0);
}

static void without_fences_a_close_synchronizes(void **state)
{
    (void)state;
    fake.no_fences = true;
    churn(CA_EPOCH_BLOCKS * CA_SYNC_SCALE, 512);
    assert_int_equal(fake.calls[FAKE_RECORD], 1); /* asked once, remembered */
    assert_int_equal(fake.calls[FAKE_SYNC], 1);
    assert_int_equal(stats().pending_bytes, 0);
    churn(CA_EPOCH_BLOCKS * CA_SYNC_SCALE - 1, 512);
    assert_int_equal(fake.calls[FAKE_SYNC], 1);
    assert_int_equal(fake.calls[FAKE_RECORD], 1);
}

static void without_fences_large_means_larger(void **state)
{
    (void)state;
    fake.no_fences = true;
    churn(1, CA_EPOCH_LARGE);
    assert_int_equal(fake.calls[FAKE_SYNC], 0);
    churn(1, CA_EPOCH_LARGE * CA_SYNC_SCALE);
    assert_int_equal(fake.calls[FAKE_SYNC], 1);
    assert_int_equal(stats().pending_bytes, 0);
}

static void an_allocation_does_not_synchronize_to_spare_a_segment(void **state)
{
    (void)state;
    fake.no_fences = true;
    churn(1, 6 * MIB);
    held_t a = get(7 * MIB);
    assert_int_equal(fake.calls[FAKE_SYNC], 0);
    put(&a);
}

static void a_broken_fence_stops_the_arena(void **state)
{
    (void)state;
    held_t a = get(6 * MIB), b = get(512), c;
    fake.fail_at[FAKE_RECORD] = 1;
    fake.fail_rc[FAKE_RECORD] = -EIO;
    put(&a);
    assert_true(arena->stopped);
    assert_int_equal(stats().pending_bytes, 6 * MIB);
    fake_log();
    put(&b);
    assert_string_equal(fake_log(), "");
    assert_int_equal(hold(arena, 512, &c), -EIO);
}

static void a_broken_query_stops_the_arena(void **state)
{
    (void)state;
    held_t a = get(6 * MIB), b;
    put(&a);
    fake.fail_at[FAKE_QUERY] = 1;
    fake.fail_rc[FAKE_QUERY] = -EIO;
    assert_int_equal(hold(arena, 6 * MIB, &b), -EIO);
    sound();
    assert_true(arena->stopped);
}

static void failed_queries_back_off(void **state)
{
    (void)state;
    held_t keep[64];
    for (unsigned i = 0; i < 64; i++)
        keep[i] = get(512);
    /* Every free closes an epoch and would like to know about the older ones. */
    held_t held[100];
    for (unsigned i = 0; i < 100; i++)
        held[i] = get(CA_EPOCH_LARGE);
    uint64_t before = fake.calls[FAKE_QUERY];
    for (unsigned i = 0; i < 100; i++)
        put(&held[i]);
    assert_true(fake.calls[FAKE_QUERY] - before <= 100 / CA_QUERY_BACKOFF + 1);
    for (unsigned i = 0; i < 64; i++)
        put(&keep[i]);
}

static void queries_stop_at_the_first_that_has_not_passed(void **state)
{
    (void)state;
    held_t held[10];
    for (unsigned i = 0; i < 10; i++)
        held[i] = get(CA_EPOCH_LARGE);
    for (unsigned i = 0; i < 10; i++)
        put(&held[i]);
    fake_pass(3);
    fake_log();
    ca_arena_trim(arena, 0);
    assert_string_equal(fake_log(), "QQQq");
    assert_int_equal(stats().epochs, 7);
    sound();
}

static void frees_make_older_epochs_ready(void **state)
{
    (void)state;
    fake.auto_pass = true;
    held_t a = get(CA_EPOCH_LARGE), b = get(CA_EPOCH_LARGE);
    put(&a);
    assert_int_equal(stats().pending_bytes, CA_EPOCH_LARGE);
    fake_log();
    put(&b);
    assert_string_equal(fake_log(), "RQ"); /* one comes, one goes */
    assert_int_equal(stats().pending_bytes, CA_EPOCH_LARGE);
}

static void retire(void)
{
    ca_arena_retire(arena);
}

static void a_context_that_goes_during_a_query_holds_no_fence(void **state)
{
    (void)state;
    held_t a = get(8 * MIB), b;
    put(&a);
    fake_pass_all();
    fake.on_call[FAKE_QUERY] = retire;
    assert_int_equal(hold(arena, 8 * MIB, &b), -EIO);
    assert_int_equal(fake.fences, 0); /* it may be an event of a context that lives on */
}

static void a_context_that_goes_during_a_wait_holds_no_fence(void **state)
{
    (void)state;
    held_t a = get(8 * MIB), b;
    fake.limit = fake.used;
    put(&a);
    fake.on_call[FAKE_WAIT] = retire;
    assert_int_equal(hold(arena, 8 * MIB, &b), -EIO);
    assert_int_equal(fake.fences, 0);
}

static void a_context_that_goes_during_a_record_is_left_alone(void **state)
{
    (void)state;
    held_t a = get(8 * MIB), b = get(512);
    put(&b);
    fake.on_call[FAKE_RECORD] = retire;
    fake_log();
    put(&a);
    assert_string_equal(fake_log(), "R");
    assert_int_equal(hold(arena, 512, &b), -EIO);
    assert_string_equal(fake_log(), "");
}

static void fences_are_released(void **state)
{
    (void)state;
    fake.auto_pass = true;
    for (unsigned i = 0; i < 10; i++)
        churn(100, 64 * KIB);
    ca_arena_trim(arena, SIZE_MAX);
    assert_int_equal(fake.fences, 0);
    assert_int_equal(fake.used, 0);
    sound();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_freed_block_waits_for_its_fence),
        TEST(a_small_free_records_nothing),
        TEST(an_epoch_closes_by_count),
        TEST(an_epoch_closes_by_bytes),
        TEST(a_large_free_closes_at_once),
        TEST(a_free_during_a_record_is_not_covered_by_it),
        TEST(one_record_covers_many_frees),
        TEST(during_a_capture_nothing_is_lost),
        TEST(during_a_capture_records_back_off),
        TEST(a_capture_never_synchronizes),
        TEST(a_free_during_a_refused_record_joins_the_epoch),
        TEST(without_fences_a_close_synchronizes),
        TEST(without_fences_large_means_larger),
        TEST(an_allocation_does_not_synchronize_to_spare_a_segment),
        TEST(a_broken_fence_stops_the_arena),
        TEST(a_broken_query_stops_the_arena),
        TEST(failed_queries_back_off),
        TEST(queries_stop_at_the_first_that_has_not_passed),
        TEST(frees_make_older_epochs_ready),
        TEST(a_context_that_goes_during_a_query_holds_no_fence),
        TEST(a_context_that_goes_during_a_wait_holds_no_fence),
        TEST(a_context_that_goes_during_a_record_is_left_alone),
        TEST(fences_are_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
