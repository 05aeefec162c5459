/* Locks, and in debug builds the proof of their order; waits without a lock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "capture.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static ca_lock_t arena = CA_LOCK_INIT(CA_RANK_ARENA);
static ca_lock_t spans = CA_LOCK_INIT(CA_RANK_SPANS);
static long guarded;

static void *count_under_lock(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        ca_lock_take(arg);
        guarded++;
        ca_lock_drop(arg);
    }
    return NULL;
}

static void a_lock_excludes_other_threads(void **state)
{
    pthread_t threads[4];
    ca_lock_t lock;
    (void)state;
    ca_lock_init(&lock, CA_RANK_STACKS);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, count_under_lock, &lock);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(guarded, 80000);
}

static void *try_it(void *arg)
{
    bool got = ca_lock_try(arg);
    if (got)
        ca_lock_drop(arg);
    return got ? arg : NULL;
}

static void a_try_does_not_wait(void **state)
{
    pthread_t thread;
    void *got;
    (void)state;
    ca_lock_take(&arena);
    pthread_create(&thread, NULL, try_it, &arena);
    pthread_join(thread, &got);
    assert_null(got);
    ca_lock_drop(&arena);
    assert_ptr_equal(try_it(&arena), &arena);
}

/* Longer than another thread looks before it sleeps. */
static void *take_for_long(void *waited)
{
    ca_lock_take(&arena);
    guarded = 1;
    while (!atomic_load((_Atomic int *)waited))
        sched_yield();
    ca_sleep(3000000);
    guarded = 2;
    ca_lock_drop(&arena);
    return NULL;
}

static void a_thread_that_sleeps_for_a_lock_is_woken(void **state)
{
    _Atomic int waited = 0;
    pthread_t threads[3];
    (void)state;
    guarded = 0;
    ca_lock_take(&arena);
    for (int i = 0; i < 3; i++) /* one after the other, each behind a lock that is awaited */
        pthread_create(&threads[i], NULL, take_for_long, &waited);
    ca_sleep(3000000);
    atomic_store(&waited, 1);
    ca_lock_drop(&arena);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_true(ca_lock_try(&arena));
    assert_int_equal(guarded, 2);
    ca_lock_drop(&arena);
}

static ca_signal_t told;

static void *wait_until_told(void *arg)
{
    ca_lock_take(&arena);
    guarded++;
    while (guarded != 10)
        if (!ca_signal_wait(&told, &arena, ca_clock_ns() + 10000000000u))
            arg = NULL;
    ca_lock_drop(&arena);
    return arg;
}

static void a_signal_wakes_all_that_wait_for_it(void **state)
{
    pthread_t threads[2];
    (void)state;
    guarded = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, wait_until_told, &told);
    for (bool both = false; !both; ca_lock_drop(&arena), sched_yield()) {
        ca_lock_take(&arena);
        both = guarded == 2; /* each dropped the lock in its wait */
        if (both) {
            guarded = 10;
            ca_signal_all(&told);
        }
    }
    for (int i = 0; i < 2; i++) {
        void *in_time;
        pthread_join(threads[i], &in_time);
        assert_ptr_equal(in_time, &told);
    }
}

static void a_wait_for_a_signal_ends_when_time_is_up(void **state)
{
    uint64_t until = ca_clock_ns() + 2000000;
    (void)state;
    ca_lock_take(&arena);
    while (ca_signal_wait(&told, &arena, until))
        assert_true(ca_clock_ns() < until + 10000000000u);
    assert_true(ca_clock_ns() >= until);
    ca_lock_drop(&arena);
}

static void the_child_of_a_fork_gets_its_locks_back_by_init(void **state)
{
    int status;
    (void)state;
    ca_lock_take(&arena);
    pid_t child = fork();
    if (child == 0) {
        ca_lock_init(&arena, CA_RANK_ARENA);
        ca_lock_take(&arena);
        ca_lock_drop(&arena);
        _exit(ca_lock_held() == 0 ? 0 : 1);
    }
    ca_lock_drop(&arena);
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#if CA_DEBUG
static void in_order(void)
{
    ca_lock_take(&arena);
    ca_lock_take(&spans);
    if (ca_lock_held() != 2)
        _exit(1);
    ca_lock_drop(&arena); /* not in reverse: allowed */
    ca_lock_drop(&spans);
    ca_lock_assert_none("a driver call");
}

static void out_of_order(void)
{
    ca_lock_take(&spans);
    ca_lock_take(&arena);
}

static void same_lock_twice(void)
{
    ca_lock_take(&arena);
    ca_lock_take(&arena);
}

static void drop_unheld(void)
{
    ca_lock_drop(&arena);
}

static void call_under_lock(void)
{
    ca_lock_take(&arena);
    ca_lock_assert_none("cuMemFree");
}

static void message_under_lock(void)
{
    ca_lock_take(&arena);
    ca_debug("not even one that is off");
}

/* How the child ended that did this. */
static int status_after(void (*action)(void))
{
    int status;
    capture_start();
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        action();
        _exit(0);
    }
    waitpid(child, &status, 0);
    capture_stop();
    return status;
}

static void debug_builds_stop_at_a_broken_lock_rule(void **state)
{
    static const struct {
        void (*action)(void);
        const char *says;
    } rows[] = {{out_of_order, "taken out of order (arena), holding spans\n"},
                {same_lock_twice, "taken out of order (arena), holding arena\n"},
                {drop_unheld, "does not hold it (arena), holding\n"},
                {call_under_lock, "held at (cuMemFree), holding arena\n"},
                {message_under_lock, "held at (a message), holding arena\n"}};
    (void)state;
    assert_int_equal(status_after(in_order), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int status = status_after(rows[i].action);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        assert_non_null(strstr(captured, rows[i].says));
    }
}
#else
static void release_builds_check_nothing(void **state)
{
    (void)state;
    ca_lock_take(&spans);
    ca_lock_take(&arena);
    assert_int_equal(ca_lock_held(), 0);
    ca_lock_assert_none("nothing happens");
    ca_lock_drop(&arena);
    ca_lock_drop(&spans);
}
#endif

/* --- waiting without a lock ------------------------------------------------------------------- */

#define MANY 400u /* tries: by then a backoff sleeps */

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
    uint64_t begin = ca_clock_ns();
    ca_sleep(3000000);
    assert_true(ca_clock_ns() - begin >= 3000000);
    begin = ca_clock_ns();
    ca_sleep(1000000001);
    assert_true(ca_clock_ns() - begin >= 1000000001);
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
    uint64_t begin = ca_clock_ns();
    errno = E2BIG;
    ca_sleep(UINT64_C(60000000000));
    assert_int_equal(errno, E2BIG);
    assert_true(ca_clock_ns() - begin < UINT64_C(60000000000));
    assert_int_equal(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
}

/* A few looks cost nothing, many give time to others. */
static void the_more_tries_the_longer(void **state)
{
    (void)state;
    uint64_t begin = ca_clock_ns();
    for (unsigned i = 0; i < 20; i++)
        ca_backoff(MANY);
    assert_true(ca_clock_ns() - begin >= 20 * 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lock_excludes_other_threads),
        cmocka_unit_test(a_try_does_not_wait),
        cmocka_unit_test(a_thread_that_sleeps_for_a_lock_is_woken),
        cmocka_unit_test(a_signal_wakes_all_that_wait_for_it),
        cmocka_unit_test(a_wait_for_a_signal_ends_when_time_is_up),
        cmocka_unit_test(the_child_of_a_fork_gets_its_locks_back_by_init),
        cmocka_unit_test(waiting_is_no_cancellation_point),
        cmocka_unit_test(a_sleep_takes_its_time),
        cmocka_unit_test(a_signal_ends_a_sleep_and_errno_stays),
        cmocka_unit_test(the_more_tries_the_longer),
#if CA_DEBUG
        cmocka_unit_test(debug_builds_stop_at_a_broken_lock_rule),
#else
        cmocka_unit_test(release_builds_check_nothing),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
