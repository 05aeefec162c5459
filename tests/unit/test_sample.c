/* Samples fall as often as they should: by bytes, whatever the sizes of the allocations are. The
 * numbers are fixed, so that 5 sigma are never passed by chance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>

#include "registry/table/sample.h"
#include "one_thread.h"

#define EVERY ((size_t)512 << 10)

/* Whether an allocation of `bytes` has its stack. */
static bool sampled(size_t bytes)
{
    return !ca_sample_passes(bytes) && ca_sample_draw(bytes);
}

static double chance(size_t bytes)
{
    return 1 - exp(-(double)bytes / (double)EVERY);
}

static void assert_within(double found, double expected, double sigma)
{
    if (fabs(found - expected) > 5 * sigma)
        fail_msg("%.1f, should be %.1f within 5 sigma of %.2f", found, expected, sigma);
}

static int start(void **state)
{
    (void)state;
    ca_sample_start(EVERY);
    ca_sample_seed(7);
    return 0;
}

static void each_size_is_sampled_as_often_as_its_bytes_say(void **state)
{
    ONE_THREAD();
    static const size_t sizes[] = {1, 256, 4096, 65536, EVERY / 2, EVERY, EVERY * 2, EVERY * 5};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t tries = sizes[i] < 65536 ? 20000000 : 1000000;
        double number = (double)tries, count = 0, p = chance(sizes[i]);
        for (uint64_t j = 0; j < tries; j++)
            count += sampled(sizes[i]);
        assert_within(count, number * p, sqrt(number * p * (1 - p)));
    }
}

static void large_ones_are_nearly_always_sampled(void **state)
{
    (void)state;
    for (int i = 0; i < 1000000; i++)
        assert_true(sampled(EVERY * 24)); /* one of 26 thousand million is not */
}

/* Each sampled allocation stands for 1/p of its size. */
static void bytes_can_be_told_from_the_samples(void **state)
{
    uint64_t random = 1;
    double all = 0, told = 0, variance = 0;
    (void)state;
    for (int i = 0; i < 5000000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t bytes = (size_t)(random >> 33) % 4096 << (random >> 60);
        double p = chance(bytes);
        all += (double)bytes;
        if (bytes > 0 && sampled(bytes))
            told += (double)bytes / p;
        if (bytes > 0)
            variance += (double)bytes * (double)bytes * (1 - p) / p;
    }
    assert_within(told, all, sqrt(variance));
}

/* The distances between samples have the right distribution, not the right mean alone. */
static void distances_are_exponential(void **state)
{
    ONE_THREAD();
    enum { UNIT = 1024, BINS = 8, SAMPLES = 200000 };
    double bins[BINS] = {0};
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        size_t distance = 0;
        while (!sampled(UNIT))
            distance += UNIT;
        size_t bin = distance / (EVERY / 2);
        bins[bin < BINS ? bin : BINS - 1]++;
    }
    for (int bin = 0; bin < BINS; bin++) {
        double p = exp(-bin / 2.0) - (bin < BINS - 1 ? exp(-(bin + 1) / 2.0) : 0);
        assert_within(bins[bin], SAMPLES * p, sqrt(SAMPLES * p * (1 - p)));
    }
}

/* What came to nothing and is counted again is as likely to be sampled. */
static void an_attempt_before_changes_nothing(void **state)
{
    const uint64_t tries = 2000000;
    double number = (double)tries, count = 0, p = chance(65536);
    (void)state;
    for (uint64_t i = 0; i < tries; i++) {
        sampled(65536);
        count += sampled(65536);
    }
    assert_within(count, number * p, sqrt(number * p * (1 - p)));
}

static void all_and_none_are_what_they_say(void **state)
{
    (void)state;
    ca_sample_start(CA_SAMPLE_ALL);
    for (size_t i = 0; i < 100000; i++)
        assert_true(sampled(i << 20));
    ca_sample_start(CA_SAMPLE_NONE);
    for (size_t i = 0; i < 100000; i++)
        assert_false(sampled((size_t)1 << 47));
    ca_sample_start(1);
    for (size_t i = 0; i < 100000; i++)
        assert_true(sampled(64));
}

static void *count_in_thread(void *arg)
{
    uint64_t *pattern = arg;
    for (int i = 0; i < 64; i++)
        *pattern |= (uint64_t)sampled(EVERY) << i;
    return NULL;
}

static void threads_draw_for_themselves(void **state)
{
    uint64_t patterns[2] = {0, 0};
    (void)state;
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, count_in_thread, &patterns[i]), 0);
        pthread_join(thread, NULL);
        assert_true(patterns[i] != 0 && patterns[i] != UINT64_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_size_is_sampled_as_often_as_its_bytes_say, start),
        cmocka_unit_test_setup(large_ones_are_nearly_always_sampled, start),
        cmocka_unit_test_setup(bytes_can_be_told_from_the_samples, start),
        cmocka_unit_test_setup(distances_are_exponential, start),
        cmocka_unit_test_setup(an_attempt_before_changes_nothing, start),
        cmocka_unit_test_setup(all_and_none_are_what_they_say, start),
        cmocka_unit_test_setup(threads_draw_for_themselves, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
