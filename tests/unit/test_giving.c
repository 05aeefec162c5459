/* Memory on its way back upstream, and requests that wait for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include "base/lock.h"
#include "base/clock.h"
#include "pool/growth/giving.h"

static void nothing_under_way_is_not_waited_for(void **state)
{
    (void)state;
    unsigned done = ca_giving_done();
    uint64_t begin = ca_clock_ns();
    assert_false(ca_giving_wait(&done));
    assert_true(ca_clock_ns() - begin < 50 * 1000 * 1000);
}

static void what_was_given_since_is_seen_once(void **state)
{
    (void)state;
    unsigned done = ca_giving_done();
    ca_giving_begin();
    ca_giving_end(true);
    assert_true(ca_giving_wait(&done));
    assert_false(ca_giving_wait(&done));
    assert_true(ca_giving_just_now());
    ca_sleep(110 * 1000 * 1000);
    assert_false(ca_giving_just_now());
}

static void *end_soon(void *given)
{
    ca_sleep(20 * 1000 * 1000);
    ca_giving_end(given != NULL);
    return NULL;
}

static bool waits_for_one_that_is(void *given)
{
    pthread_t other;
    unsigned done = ca_giving_done();
    ca_giving_begin();
    assert_int_equal(pthread_create(&other, NULL, end_soon, given), 0);
    bool came = ca_giving_wait(&done);
    assert_int_equal(pthread_join(other, NULL), 0);
    return came;
}

static void what_is_under_way_is_waited_for(void **state)
{
    assert_true(waits_for_one_that_is(state));
}

static void what_upstream_refuses_has_not_come(void **state)
{
    (void)state;
    assert_false(waits_for_one_that_is(NULL));
}

/* It may be upstream's free, which waits for work that waits for this thread. */
static void it_is_not_waited_for_without_end(void **state)
{
    (void)state;
    unsigned done = ca_giving_done();
    ca_clock_divide(20);
    ca_giving_begin();
    uint64_t begin = ca_clock_ns();
    assert_false(ca_giving_wait(&done));
    assert_true(ca_clock_ns() - begin >= 50 * 1000 * 1000);
    ca_giving_end(false);
    ca_clock_divide(1);
}

/* Who was giving there is not here. */
static void the_child_of_a_fork_waits_for_nobody(void **state)
{
    (void)state;
    unsigned done = ca_giving_done();
    ca_giving_begin();
    ca_giving_reset_after_fork();
    uint64_t begin = ca_clock_ns();
    assert_false(ca_giving_wait(&done));
    assert_true(ca_clock_ns() - begin < 500 * 1000 * 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_under_way_is_not_waited_for),
        cmocka_unit_test(what_was_given_since_is_seen_once),
        cmocka_unit_test(what_is_under_way_is_waited_for),
        cmocka_unit_test(what_upstream_refuses_has_not_come),
        cmocka_unit_test(it_is_not_waited_for_without_end),
        cmocka_unit_test(the_child_of_a_fork_waits_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
