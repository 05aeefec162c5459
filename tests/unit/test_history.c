/* The ring of the last events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>

#include "base/history.h"

#define SIZE 100u
#define THREADS 4
#define ROUNDS 50000u

static _Atomic uint64_t time_now;

static uint64_t clock_ns(void)
{
    return atomic_fetch_add(&time_now, 1) + 1;
}

static int fresh(void **state)
{
    (void)state;
    ca_history_reset_after_fork();
    atomic_store(&time_now, 0);
    return 0;
}

static void the_last_events_are_kept_oldest_first(void **state)
{
    ca_event_t events[SIZE];
    uint64_t dropped;
    (void)state;
    assert_int_equal(ca_history_count(), 0);
    for (unsigned i = 1; i <= 50; i++)
        ca_history_note(.event = CA_EVENT_ALLOC, .address = i, .bytes = 10 * i);
    assert_int_equal(ca_history_count(), 50);
    assert_int_equal(ca_history_copy(events, SIZE, &dropped), 50);
    assert_int_equal(dropped, 0);
    for (unsigned i = 51; i <= 250; i++)
        ca_history_note(.event = CA_EVENT_FREE, .address = i, .stack = i);
    assert_int_equal(ca_history_copy(events, ca_history_count(), &dropped), SIZE);
    assert_int_equal(dropped, 150);
    for (unsigned i = 0; i < SIZE; i++) {
        assert_int_equal(events[i].address, 151 + i);
        assert_int_equal(events[i].stack, 151 + i);
        assert_int_equal(events[i].ns, 151 + i);
        assert_int_equal(events[i].event, CA_EVENT_FREE);
    }
}

static void *add_many(void *arg)
{
    uint64_t thread = *(uint32_t *)arg;
    for (uint64_t i = 1; i <= ROUNDS; i++)
        ca_history_note(.event = CA_EVENT_ALLOC, .thread = (uint32_t)thread, .address = i,
                        .bytes = i * thread, .stream = i ^ thread);
    return NULL;
}

/* Whole ones, and each thread's in their order. */
static void check_copy(void)
{
    ca_event_t events[SIZE];
    uint64_t dropped, last[THREADS + 1] = {0};
    size_t count = ca_history_copy(events, SIZE, &dropped);
    for (size_t i = 0; i < count; i++) {
        uint64_t thread = events[i].thread;
        assert_in_range(thread, 1, THREADS);
        assert_int_equal(events[i].bytes, events[i].address * thread);
        assert_int_equal(events[i].stream, events[i].address ^ thread);
        assert_true(events[i].address > last[thread]);
        last[thread] = events[i].address;
    }
}

static void events_are_whole_while_threads_add_more(void **state)
{
    pthread_t threads[THREADS];
    uint32_t names[THREADS];
    uint64_t dropped;
    ca_event_t events[SIZE];
    (void)state;
    for (uint32_t i = 0; i < THREADS; i++) {
        names[i] = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, &names[i]), 0);
    }
    for (int i = 0; i < 2000; i++)
        check_copy();
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    check_copy();
    size_t count = ca_history_copy(events, SIZE, &dropped);
    assert_int_equal(count + dropped, THREADS * ROUNDS);
    assert_true(count > SIZE / 2); /* what is lost is rare */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_last_events_are_kept_oldest_first, fresh),
        cmocka_unit_test_setup(events_are_whole_while_threads_add_more, fresh),
    };
    if (ca_history_start(SIZE, clock_ns) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
