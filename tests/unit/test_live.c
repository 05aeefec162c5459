/* Numbers of allocations, by the batch; see registry/live.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "registry/live.h"
#include "registry/timeline.h"

static ca_tally_t fast, slow;

static int fresh(void **state)
{
    (void)state;
    ca_live_reset_after_fork();
    ca_timeline_reset_after_fork();
    fast = slow = (ca_tally_t){0};
    return 0;
}

static uint64_t newest(void)
{
    return atomic_load(&ca_live.sequence);
}

static void each_of_the_first_is_a_batch(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= CA_TIMELINE_SINGLE; n++) {
        assert_int_equal(ca_live_number(n % 2 ? &fast : &slow), n);
        assert_int_equal(newest(), n);
    }
}

static void a_batch_is_a_part_of_what_there_is(void **state)
{
    (void)state;
    uint64_t before = 0, batches = 0;
    for (uint64_t n = 1; n <= 4u << 20; n++) {
        uint64_t number = ca_live_number(&fast);
        assert_int_equal(number, n); /* of one thread none is left out */
        if (newest() == before)
            continue;
        if (n > CA_TIMELINE_SINGLE) {
            uint64_t batch = newest() - before;
            assert_in_range(batch, CA_LIVE_BATCH, CA_LIVE_BATCH_MOST);
            assert_true(batch == CA_LIVE_BATCH || batch <= n / CA_LIVE_BATCH_SHARE);
            batches += n > 2u << 20;
        }
        before = newest();
    }
    assert_in_range(batches, 2047, 2049);
}

static void a_thread_that_is_slower_keeps_up(void **state)
{
    (void)state;
    uint64_t last = 0, dropped = 0;
    for (uint64_t n = 1; n <= 2u << 20; n++) {
        uint64_t number = ca_live_number(&fast);
        if (n % 1000)
            continue;
        uint64_t theirs = ca_live_number(&slow);
        uint64_t part = newest() / CA_LIVE_BATCH_SHARE;
        if (part < CA_LIVE_BATCH)
            part = CA_LIVE_BATCH;
        assert_true(theirs > last);
        assert_int_not_equal(theirs, number);
        assert_true(theirs + 3 * part >= number);
        dropped += theirs > last + 1;
        last = theirs;
    }
    assert_true(dropped > 1000);
}

#define TEST(name) cmocka_unit_test_setup(name, fresh)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_of_the_first_is_a_batch),
        TEST(a_batch_is_a_part_of_what_there_is),
        TEST(a_thread_that_is_slower_keeps_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
