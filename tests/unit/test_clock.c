/* The clock goes on, and what tests divide is each bound and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"

static void test_it_goes_on(void **state)
{
    (void)state;
    uint64_t first = ca_clock_ns(), now = first;
    assert_true(first > 0);
    while (now == first)
        now = ca_clock_ns();
    assert_true(now > first);
}

static void test_a_clock_that_is_not_there_is_0(void **state)
{
    (void)state;
    assert_int_equal(ca_clock_of((clockid_t)12345), 0);
    assert_true(ca_clock_of(CLOCK_REALTIME) > ca_clock_of(CLOCK_THREAD_CPUTIME_ID));
}

static void test_a_bound_is_itself_until_it_is_divided(void **state)
{
    (void)state;
    assert_int_equal(ca_bound(1000000007), 1000000007);
    assert_int_equal(ca_bound_ms(60000), 60000);
    ca_clock_divide(20);
    assert_int_equal(ca_bound(1000000000), 50000000);
    assert_int_equal(ca_bound_ms(60000), 3000);
    ca_clock_divide(1);
    assert_int_equal(ca_bound(UINT64_MAX), UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_goes_on),
        cmocka_unit_test(test_a_clock_that_is_not_there_is_0),
        cmocka_unit_test(test_a_bound_is_itself_until_it_is_divided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
