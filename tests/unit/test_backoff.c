/* Waiting: what a thread that is to be cancelled does not end in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>

#include "base/backoff.h"

#define MANY 400u /* tries: by then a backoff sleeps */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static _Atomic bool cancelled, came_back;

static void *wait_cancelled(void *wait)
{
    while (!atomic_load(&cancelled)) {
    }
    ((void (*)(void))wait)();
    atomic_store(&came_back, true);
    pthread_testcancel();
    return NULL;
}

static void sleep_once(void)
{
    ca_sleep(1000);
}

static void back_off_often(void)
{
    for (unsigned tries = 0; tries < MANY; tries++)
        ca_backoff(tries);
}

static void a_thread_is_cancelled_after(void (*wait)(void))
{
    pthread_t thread;
    void *result;
    atomic_store(&cancelled, false);
    atomic_store(&came_back, false);
    assert_int_equal(pthread_create(&thread, NULL, wait_cancelled, (void *)wait), 0);
    assert_int_equal(pthread_cancel(thread), 0);
    atomic_store(&cancelled, true);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_true(atomic_load(&came_back));
    assert_ptr_equal(result, PTHREAD_CANCELED);
}

static void waiting_is_no_cancellation_point(void **state)
{
    (void)state;
    a_thread_is_cancelled_after(sleep_once);
    a_thread_is_cancelled_after(back_off_often);
}

static void a_sleep_takes_its_time(void **state)
{
    (void)state;
    uint64_t begin = now_ns();
    ca_sleep(3000000);
    assert_true(now_ns() - begin >= 3000000);
    begin = now_ns();
    ca_sleep(1000000001);
    assert_true(now_ns() - begin >= 1000000001);
}

static void nothing(int signal)
{
    (void)signal;
}

static void a_signal_ends_a_sleep_and_errno_stays(void **state)
{
    (void)state;
    struct sigaction old, action = {.sa_handler = nothing};
    assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
    struct itimerval often = {.it_interval.tv_usec = 10000, .it_value.tv_usec = 10000};
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    uint64_t begin = now_ns();
    errno = E2BIG;
    ca_sleep(UINT64_C(60000000000));
    assert_int_equal(errno, E2BIG);
    assert_true(now_ns() - begin < UINT64_C(60000000000));
    assert_int_equal(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
}

/* A few looks cost nothing, many give time to others. */
static void the_more_tries_the_longer(void **state)
{
    (void)state;
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < 20; i++)
        ca_backoff(MANY);
    assert_true(now_ns() - begin >= 20 * 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_is_no_cancellation_point),
        cmocka_unit_test(a_sleep_takes_its_time),
        cmocka_unit_test(a_signal_ends_a_sleep_and_errno_stays),
        cmocka_unit_test(the_more_tries_the_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
