/* Who held the memory at its peak, and how it went over time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/counters.h"
#include "registry/table/peak.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"

#define BASE 0x7f0000000000u
#define KIB ((uint64_t)1024)

static unsigned changes;

static void changed(void)
{
    changes++;
}

static uint64_t reserved(void)
{
    return 12345;
}

static int fresh(void **state)
{
    (void)state;
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    ca_thread_counts_join();
    ca_timeline_start(reserved);
    ca_peak_listen(changed);
    changes = 0;
    return 0;
}

static void add(unsigned number, uint64_t bytes, uint32_t stack)
{
    ca_allocation_t record = {.address = BASE + number * KIB, .bytes = bytes, .stack = stack};
    assert_int_equal(ca_registry_insert(&record), 0);
}

static void drop(unsigned number)
{
    ca_allocation_t record;
    ca_peak_before_free();
    assert_true(ca_registry_erase(BASE + number * KIB, &record));
}

/* Bytes that the copy says of a stack. */
static uint64_t held_by(uint32_t stack)
{
    ca_groups_t groups;
    ca_peak_moment_t moment;
    uint64_t bytes = 0;
    assert_int_equal(ca_peak_groups(&groups, &moment), 0);
    assert_int_equal(moment.busy, 0);
    for (size_t i = 0; i < groups.capacity; i++)
        if (groups.entries[i].count && groups.entries[i].stack == stack)
            bytes += groups.entries[i].bytes;
    ca_groups_free(&groups);
    return bytes;
}

static uint64_t held_in_all(void)
{
    ca_groups_t groups;
    ca_peak_moment_t moment;
    assert_int_equal(ca_peak_groups(&groups, &moment), 0);
    uint64_t bytes = groups.total.bytes;
    ca_groups_free(&groups);
    return bytes;
}

static void the_peak_is_told_by_who_held_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++)
        add(i, 100 * KIB, 1);
    add(10, 500 * KIB, 2);
    drop(10);
    for (unsigned i = 0; i < 5; i++)
        drop(i);
    add(20, 300 * KIB, 3); /* below the peak */
    drop(20);
    assert_int_equal(held_by(1), 1000 * KIB);
    assert_int_equal(held_by(2), 500 * KIB);
    assert_int_equal(held_by(3), 0);
}

static void what_is_highest_now_is_told_without_a_free(void **state)
{
    (void)state;
    add(0, 100 * KIB, 1);
    drop(0);
    add(1, 300 * KIB, 2);
    assert_int_equal(held_by(1), 0);
    assert_int_equal(held_by(2), 300 * KIB);
}

static void a_process_that_grows_is_not_copied_until_it_frees(void **state)
{
    (void)state;
    add(0, KIB, 1);
    assert_true(atomic_load(&ca_peak_due));
    assert_int_equal(changes, 1);
    for (unsigned i = 1; i < 1000; i++)
        add(i, KIB, 1);
    assert_int_equal(changes, 1);
    drop(0);
    assert_false(atomic_load(&ca_peak_due));
    assert_int_equal(changes, 2);
    assert_int_equal(held_in_all(), 1000 * KIB);
}

static void a_peak_that_is_hardly_higher_is_copied_too(void **state)
{
    (void)state;
    add(0, 1000 * KIB, 1);
    add(1, 1, 1);
    drop(1);
    assert_int_equal(changes, 2);
    add(2, 5 * KIB, 2);
    drop(2);
    assert_int_equal(changes, 4);
    add(3, 5 * KIB, 1); /* as high as before */
    drop(3);
    assert_int_equal(changes, 4);
    drop(0);
    assert_int_equal(held_in_all(), ca_registry_peak_bytes());
    assert_int_equal(held_by(2), 5 * KIB);
}

/* One that is a percent higher is copied whatever others have cost. */
static void copies_of_peaks_that_are_hardly_higher_take_little_time(void **state)
{
    enum { LIVE = 5000, TIMES = 8000 };
    unsigned copied = 0;
    (void)state;
    for (unsigned i = 0; i < LIVE; i++)
        add(i, KIB, 1);
    for (; copied < TIMES && changes == (copied ? 2 * copied : 1); copied++) {
        add(LIVE, 1 + copied, 1);
        drop(LIVE);
    }
    assert_in_range(copied, 2, TIMES - 1);
    add(LIVE, LIVE * KIB / 50, 2);
    drop(LIVE);
    assert_int_equal(held_by(2), LIVE * KIB / 50);
}

/* --- over time -------------------------------------------------------------------------------- */

static ca_point_t points[CA_TIMELINE_MOST + 1];

static void points_rise_in_time_and_number(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        add(i, KIB, 1);
        if (i % 2)
            drop(i);
    }
    size_t count = ca_timeline_copy(points);
    assert_in_range(count, CA_TIMELINE_MOST / 4, CA_TIMELINE_MOST + 1);
    for (size_t i = 1; i < count; i++) {
        assert_true(points[i].ns >= points[i - 1].ns);
        assert_true(points[i].sequence >= points[i - 1].sequence);
        assert_int_equal(points[i].reserved, 12345);
    }
    assert_int_equal(points[0].sequence, 1);
    assert_int_equal(points[count - 1].live, 10000 * KIB);
    /* About half of what was allocated by then, and it was allocated evenly. */
    const ca_point_t *middle = &points[count / 2];
    assert_in_range(middle->live, (middle->sequence / 2 - 2) * KIB,
                    (middle->sequence / 2 + 2) * KIB);
}

static void the_first_allocations_have_points_of_their_own(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        add(i, KIB, 1);
    size_t count = ca_timeline_copy(points);
    assert_int_equal(count, 101);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(points[i].sequence, i + 1);
        assert_int_equal(ca_timeline_when(points, count, i + 1), points[i].ns);
    }
    assert_int_equal(ca_timeline_when(points, count, 0), 0);
    assert_int_equal(ca_timeline_when(points, 0, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_peak_is_told_by_who_held_it, fresh),
        cmocka_unit_test_setup(what_is_highest_now_is_told_without_a_free, fresh),
        cmocka_unit_test_setup(a_process_that_grows_is_not_copied_until_it_frees, fresh),
        cmocka_unit_test_setup(a_peak_that_is_hardly_higher_is_copied_too, fresh),
        cmocka_unit_test_setup(copies_of_peaks_that_are_hardly_higher_take_little_time, fresh),
        cmocka_unit_test_setup(points_rise_in_time_and_number, fresh),
        cmocka_unit_test_setup(the_first_allocations_have_points_of_their_own, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
