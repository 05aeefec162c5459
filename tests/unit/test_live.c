/* What threads count for themselves, and what it comes to: event counters, live bytes and their
 * peak, sequence numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>

#include "base/counters.h"
#include "registry/table/live.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"

#define THREADS 4
#define ROUNDS 20000
#define SPARE CA_LIVE_CREDIT_LEAST

static int fresh(void **state)
{
    (void)state;
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    return 0;
}

static uint64_t live_bytes(void)
{
    return ca_registry_total().bytes;
}

static size_t tallies(void)
{
    size_t count = 0;
    for (const ca_thread_counts_t *one = ca_thread_counts_first(); one;
         one = ca_thread_counts_next(one))
        count++;
    return count;
}

static void run_in_thread(void *(*function)(void *), void *arg)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, function, arg), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* --- counters --------------------------------------------------------------------------------- */

static void *count_some(void *joins)
{
    if (joins)
        ca_thread_counts_join();
    for (int i = 0; i < ROUNDS; i++) {
        ca_count(splits);
        ca_count_add(merges, 3);
    }
    return NULL;
}

static void counts_of_all_threads_add_up(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) /* every other one has no tally */
        assert_int_equal(pthread_create(&threads[i], NULL, count_some, i % 2 ? &threads : NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(ca_counter_read(splits), THREADS * ROUNDS);
    assert_int_equal(ca_counter_read(merges), 3 * THREADS * ROUNDS);
}

static void a_hit_counts_as_all_that_it_is(void **state)
{
    (void)state;
    ca_thread_counts_join();
    ca_count(alloc_calls);
    ca_thread_counts_add(&ca_thread_counts->fast_allocs[CA_API_DRIVER], 2);
    ca_thread_counts_add(&ca_thread_counts->fast_allocs[CA_API_RUNTIME], 4);
    ca_thread_counts_add(&ca_thread_counts->fast_frees[CA_API_DRIVER], 8);
    ca_thread_counts_add(&ca_thread_counts->fast_frees[CA_API_RUNTIME], 16);
    assert_int_equal(ca_counter_read(alloc_calls), 1 + 2 + 4);
    assert_int_equal(ca_counter_read(pool_hits), 2 + 4);
    assert_int_equal(ca_counter_read(lane_r_allocs), 4);
    assert_int_equal(ca_counter_read(free_calls), 8 + 16);
    assert_int_equal(ca_counter_read(lane_r_frees), 16);
    assert_int_equal(ca_counter_read(pool_misses), 0);
    assert_int_equal(ca_registry_total().count, 0); /* more frees than allocations */
    ca_thread_counts_add(&ca_thread_counts->fast_allocs[CA_API_RUNTIME], 100);
    assert_int_equal(ca_registry_total().count, 100 + 2 + 4 - 8 - 16);
}

static void a_thread_that_ends_leaves_its_tally_to_the_next(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++)
        run_in_thread(count_some, &random);
    assert_int_equal(tallies(), 1);
    assert_int_equal(ca_counter_read(splits), 50 * ROUNDS);
}

static void the_child_of_a_fork_counts_from_nothing(void **state)
{
    (void)state;
    ca_thread_counts_join();
    ca_count(splits);
    ca_thread_counts_reset_after_fork();
    assert_null(ca_thread_counts);
    assert_int_equal(ca_counter_read(splits), 0);
    ca_count(splits);
    ca_thread_counts_join();
    ca_count(splits);
    assert_int_equal(ca_counter_read(splits), 2);
    assert_int_equal(tallies(), 1);
}

/* --- live bytes ------------------------------------------------------------------------------- */

static void one_thread_has_the_exact_peak(void **state)
{
    (void)state;
    uint64_t live = 0, peak = 0, sizes[64] = {0};
    ca_thread_counts_join();
    srand(7);
    for (int i = 0; i < ROUNDS; i++) {
        size_t at = (size_t)rand() % 64;
        if (sizes[at]) {
            ca_live_remove(sizes[at]);
            live -= sizes[at];
            sizes[at] = 0;
        } else { /* to four times what a thread keeps to spare */
            sizes[at] = 1 + (uint64_t)rand() % (SPARE << rand() % 3);
            ca_live_add(sizes[at]);
            live += sizes[at];
        }
        peak = live > peak ? live : peak;
        assert_int_equal(live_bytes(), live);
        assert_int_equal(ca_registry_peak_bytes(), peak);
    }
}

static void *add_and_remove(void *unused)
{
    ca_thread_counts_join();
    for (int i = 0; i < 3; i++) {
        ca_live_add(10 * SPARE);
        ca_live_remove(10 * SPARE);
    }
    return unused;
}

/* Each of the others keeps no more than SPARE of what it freed. */
static void the_peak_of_many_threads_is_little_too_high(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        run_in_thread(add_and_remove, NULL);
    assert_int_equal(live_bytes(), 0);
    assert_int_equal(ca_registry_peak_bytes(), 10 * SPARE);
    ca_thread_counts_join(); /* what the others left */
    ca_live_add(30 * SPARE);
    assert_int_equal(live_bytes(), 30 * SPARE);
    assert_in_range(ca_registry_peak_bytes(), 30 * SPARE, 31 * SPARE);
    ca_live_remove(30 * SPARE);
}

static void *free_a_little_often(void *count)
{
    ca_thread_counts_join();
    for (size_t i = 0; i < *(const size_t *)count; i++)
        ca_live_remove(SPARE / 4);
    return NULL;
}

/* Where much is live a thread keeps as small a part of it, and has that much less to tell: threads
 * together CA_LIVE_CREDIT_SHARED. */
static void what_a_thread_may_keep_grows_with_what_is_live(void **state)
{
    (void)state;
    const uint64_t live = 64 * SPARE * CA_LIVE_CREDIT_SHARED;
    const uint64_t part = live / CA_LIVE_CREDIT_SHARED;
    size_t count = 1000;
    ca_thread_counts_join();
    ca_live_add(live);
    run_in_thread(free_a_little_often, &count);
    uint64_t freed = count * (SPARE / 4);
    assert_int_equal(live_bytes(), live - freed);
    uint64_t kept = atomic_load(&ca_live.published) - (live - freed);
    assert_in_range(kept, part / 4, part / 2);
    ca_live_remove(live - freed);
    assert_int_equal(live_bytes(), 0);
    ca_live_add(live); /* with what the other left */
    assert_in_range(ca_registry_peak_bytes(), live, live + part);
}

static pthread_barrier_t barrier;

static void *have_a_tally(void *unused)
{
    (void)unused;
    ca_thread_counts_join();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void begin_others(pthread_t *others, unsigned count)
{
    pthread_barrier_init(&barrier, NULL, count + 1);
    for (unsigned i = 0; i < count; i++)
        pthread_create(&others[i], NULL, have_a_tally, NULL);
    pthread_barrier_wait(&barrier);
}

static void end_others(pthread_t *others, unsigned count)
{
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < count; i++)
        pthread_join(others[i], NULL);
    pthread_barrier_destroy(&barrier);
}

/* Of replacements by sizes at random: so often all threads would write one line. */
static void one_of_several_threads_seldom_tells(void **state)
{
    (void)state;
    pthread_t other;
    uint64_t told = 0, tells = 0, most = 0, live = 0, sizes[1024] = {0};
    ca_thread_counts_join();
    begin_others(&other, 1);
    srand(7);
    for (unsigned i = 0; i < 16u * ROUNDS; i++) {
        uint64_t *one = &sizes[(unsigned)rand() % 1024];
        if (*one)
            ca_live_remove(*one);
        live -= *one;
        *one = 1 + (uint64_t)rand() % (SPARE / 2);
        live += *one;
        ca_live_add(*one);
        most = live > most ? live : most;
        assert_int_equal(live_bytes(), live);
        if (i > 10000)
            tells += atomic_load(&ca_live.published) != told;
        told = atomic_load(&ca_live.published);
    }
    assert_in_range(tells, 1, 16u * ROUNDS / 20);
    assert_in_range(ca_registry_peak_bytes(), most,
                    most + most / (2 * CA_LIVE_CREDIT_SHARED) + SPARE);
    end_others(&other, 1);
}

static void *remove_as_many(void *count)
{
    ca_thread_counts_join();
    for (size_t i = 0; i < *(const size_t *)count; i++)
        ca_live_remove(1000);
    return NULL;
}

static void what_one_thread_adds_another_may_remove(void **state)
{
    (void)state;
    size_t count = 10000;
    ca_thread_counts_join();
    for (size_t i = 0; i < count; i++)
        ca_live_add(1000);
    assert_int_equal(ca_registry_total().count, count);
    run_in_thread(remove_as_many, &count);
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(live_bytes(), 0);
    assert_int_equal(ca_registry_peak_bytes(), count * 1000);
}

/* --- sequence numbers ------------------------------------------------------------------------- */

static void *take_numbers(void *numbers)
{
    uint64_t *taken = numbers;
    ca_thread_counts_join();
    for (int i = 0; i < ROUNDS; i++)
        taken[i] = ca_live_number(ca_thread_counts);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void no_two_allocations_have_one_number(void **state)
{
    (void)state;
    static uint64_t taken[THREADS][ROUNDS];
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_numbers, taken[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++)
        for (size_t k = 1; k < ROUNDS; k++)
            assert_true(taken[i][k] > taken[i][k - 1]);
    uint64_t *all = &taken[0][0];
    qsort(all, THREADS * ROUNDS, sizeof *all, by_value);
    assert_true(all[0] >= 1);
    for (size_t k = 1; k < THREADS * ROUNDS; k++)
        assert_true(all[k] > all[k - 1]);
    assert_true(ca_registry_sequence() >= all[THREADS * ROUNDS - 1]);
}

static void one_thread_numbers_without_gaps(void **state)
{
    (void)state;
    ca_thread_counts_join();
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_int_equal(ca_live_number(ca_thread_counts), i);
        assert_int_equal(ca_registry_sequence(), i);
    }
}

/* A thread that slept does not go on with numbers of long ago. */
static void numbers_of_long_ago_are_dropped(void **state)
{
    (void)state;
    static uint64_t others[ROUNDS];
    ca_thread_counts_join();
    assert_int_equal(ca_live_number(ca_thread_counts), 1);
    run_in_thread(take_numbers, others);
    assert_true(ca_live_number(ca_thread_counts) > others[ROUNDS - 1]);
}

static uint64_t newest(void)
{
    return atomic_load(&ca_live.sequence);
}

static void each_of_the_first_is_a_batch(void **state)
{
    (void)state;
    ca_thread_counts_t fast = {0}, slow = {0};
    for (uint64_t n = 1; n <= CA_TIMELINE_SINGLE; n++) {
        assert_int_equal(ca_live_number(n % 2 ? &fast : &slow), n);
        assert_int_equal(newest(), n);
    }
}

static void a_batch_is_a_part_of_what_there_is(void **state)
{
    (void)state;
    ca_thread_counts_t fast = {0};
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

#define MANY 8

/* As on a machine with a processor for each: were their batches stale by then, each number would
 * take one, and all would wait for the line with the next. */
static void threads_that_take_turns_use_up_their_batches(void **state)
{
    (void)state;
    pthread_t threads[MANY];
    ca_thread_counts_t turns[MANY] = {0};
    uint64_t batches = 0, before = 0, last = 0, part;
    begin_others(threads, MANY);
    assert_int_equal(ca_thread_counts_threads(), MANY);
    for (uint64_t n = 0; n < 1u << 20; n++) {
        uint64_t number = ca_live_number(&turns[n % MANY]);
        if (n < 1u << 17)
            continue;
        batches += newest() != before;
        before = newest();
        part = before / CA_LIVE_BATCH_SHARE;
        if (part < (uint64_t)MANY * CA_LIVE_BATCH)
            part = (uint64_t)MANY * CA_LIVE_BATCH;
        assert_true(number + 3 * part >= last);
        last = number > last ? number : last;
    }
    assert_in_range(batches, 1, (1u << 20) / CA_LIVE_BATCH);
    end_others(threads, MANY);
    assert_int_equal(ca_thread_counts_threads(), 1);
}

static void a_thread_that_is_slower_keeps_up(void **state)
{
    (void)state;
    ca_thread_counts_t fast = {0}, slow = {0};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(counts_of_all_threads_add_up, fresh),
        cmocka_unit_test_setup(a_hit_counts_as_all_that_it_is, fresh),
        cmocka_unit_test_setup(a_thread_that_ends_leaves_its_tally_to_the_next, fresh),
        cmocka_unit_test_setup(the_child_of_a_fork_counts_from_nothing, fresh),
        cmocka_unit_test_setup(one_thread_has_the_exact_peak, fresh),
        cmocka_unit_test_setup(the_peak_of_many_threads_is_little_too_high, fresh),
        cmocka_unit_test_setup(what_a_thread_may_keep_grows_with_what_is_live, fresh),
        cmocka_unit_test_setup(one_of_several_threads_seldom_tells, fresh),
        cmocka_unit_test_setup(what_one_thread_adds_another_may_remove, fresh),
        cmocka_unit_test_setup(no_two_allocations_have_one_number, fresh),
        cmocka_unit_test_setup(one_thread_numbers_without_gaps, fresh),
        cmocka_unit_test_setup(numbers_of_long_ago_are_dropped, fresh),
        cmocka_unit_test_setup(each_of_the_first_is_a_batch, fresh),
        cmocka_unit_test_setup(a_batch_is_a_part_of_what_there_is, fresh),
        cmocka_unit_test_setup(threads_that_take_turns_use_up_their_batches, fresh),
        cmocka_unit_test_setup(a_thread_that_is_slower_keeps_up, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
