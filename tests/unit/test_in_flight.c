/* Who is at work on something, counted in parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/in_flight.h"

#define THREADS 4u
#define TIMES 500u
#define LOOKS 4u

static ca_in_flight_t in_flight;

static void on_a_thread(void *(*work)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, work, argument), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *enter_and_tell_part(void *part)
{
    ca_in_flight_enter(&in_flight);
    *(unsigned *)part = ca_part_of_thread();
    return NULL;
}

/* And it is those that they entered, an end of a thread changes nothing. */
static void threads_that_follow_each_other_have_parts_of_their_own(void **state)
{
    (void)state;
    bool used[CA_PARTS] = {false};
    memset(&in_flight, 0, sizeof in_flight);
    for (unsigned i = 0; i < CA_PARTS; i++) {
        unsigned part = CA_PARTS;
        on_a_thread(enter_and_tell_part, &part);
        assert_in_range(part, 0, CA_PARTS - 1);
        assert_false(used[part]);
        used[part] = true;
        assert_int_equal(in_flight.parts[part].here, 1);
    }
    for (unsigned i = 1; i < CA_PARTS; i++)
        assert_true((uintptr_t)&in_flight.parts[i].here - (uintptr_t)&in_flight.parts[i - 1].here >=
                    128);
    ca_in_flight_reset(&in_flight);
    assert_false(ca_in_flight_any(&in_flight));
}

static void *stay(void *until)
{
    ca_in_flight_enter(&in_flight);
    while (!atomic_load((_Atomic bool *)until))
        ca_sleep(10000);
    ca_in_flight_leave(&in_flight);
    return NULL;
}

static void one_who_stays_is_seen_whatever_its_part_is(void **state)
{
    (void)state;
    memset(&in_flight, 0, sizeof in_flight);
    assert_false(ca_in_flight_any(&in_flight));
    for (unsigned i = 0; i < CA_PARTS; i++) {
        _Atomic bool go = false;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stay, &go), 0);
        while (!ca_in_flight_any(&in_flight))
            ca_sleep(10000);
        ca_in_flight_enter(&in_flight); /* twice, and one part may be both's */
        ca_in_flight_enter(&in_flight);
        ca_in_flight_leave(&in_flight);
        atomic_store(&go, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(ca_in_flight_any(&in_flight));
        ca_in_flight_leave(&in_flight);
        assert_false(ca_in_flight_any(&in_flight));
    }
}

static _Atomic bool closed, over, broken;
static _Atomic unsigned guarded; /* by that: odd only where nobody is there */

static bool odd(void)
{
    return atomic_load_explicit(&guarded, memory_order_relaxed) % 2;
}

/* Stays while others have the processor, so that one who does not see it does harm. */
static void *come_and_go(void *unused)
{
    while (!atomic_load(&over)) {
        ca_in_flight_enter(&in_flight);
        bool in = !atomic_load(&closed), seen = false;
        for (unsigned i = 0; in && i < LOOKS; i++) {
            sched_yield();
            seen |= odd();
        }
        if (seen)
            atomic_store(&broken, true);
        ca_in_flight_leave(&in_flight);
        while (!in && atomic_load(&closed))
            sched_yield();
    }
    return unused;
}

/* As the gate of captures does, and a context that is about to be destroyed. */
static void who_wants_nobody_there_and_who_comes_see_each_other(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    memset(&in_flight, 0, sizeof in_flight);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
    for (unsigned i = 0; i < TIMES; i++) {
        atomic_store(&closed, true);
        for (unsigned tries = 0; ca_in_flight_any(&in_flight); tries++)
            ca_backoff(tries);
        atomic_fetch_add_explicit(&guarded, 1, memory_order_relaxed);
        sched_yield();
        atomic_fetch_add_explicit(&guarded, 1, memory_order_relaxed);
        atomic_store(&closed, false);
        ca_sleep(100000); /* they come in */
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_false(atomic_load(&broken));
    assert_false(ca_in_flight_any(&in_flight));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_that_follow_each_other_have_parts_of_their_own),
        cmocka_unit_test(one_who_stays_is_seen_whatever_its_part_is),
        cmocka_unit_test(who_wants_nobody_there_and_who_comes_see_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
