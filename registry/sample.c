/* Drawing samples.
 *
 * The distance from one sample to the next has an exponential distribution: -ln(u) for u between 0
 * and 1. The logarithm is made here, as libm is not linked: to some 1e-11, which no number of
 * allocations would tell from an exact one. */
#include "registry/sample.h"

#include <string.h>
#include <sys/auxv.h>

static size_t mean = CA_SAMPLE_ALL; /* written before any other thread reads it */
static _Thread_local uint64_t random_state;
static _Thread_local bool drawn; /* this thread has its first sample */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random64(void)
{
    return mix(random_state += 0x9e3779b97f4a7c15u);
}

/* -ln(u), with u uniform in (0, 1]: u is m * 2^-k with m around 1. */
static double exponential(uint64_t random)
{
    static const double ln2 = 0.69314718055994530942;
    uint64_t number = (random >> 11) + 1; /* of 2^53 */
    int zeros = __builtin_clzll(number);
    double m = (double)(number << zeros) / 9223372036854775808.0; /* in [1, 2) */
    int k = 53 - (63 - zeros);
    if (m > 1.41421356237309504880) {
        m /= 2;
        k--;
    }
    double t = (m - 1) / (m + 1), square = t * t, term = t, sum = 0;
    for (int i = 1; i <= 13; i += 2) {
        sum += term / i;
        term *= square;
    }
    return k * ln2 - 2 * sum;
}

static int64_t next_distance(void)
{
    return (int64_t)(exponential(random64()) * (double)mean);
}

void ca_sample_seed(uint64_t seed)
{
    random_state = mix(seed + 1);
    drawn = false;
    ca_mine.sample_left = -1;
}

/* The kernel gives each process some random bytes; the address is the thread's own. */
static void seed_thread(void)
{
    uint64_t words[2] = {0, 0};
    const void *given = (const void *)getauxval(AT_RANDOM);
    if (given)
        memcpy(words, given, sizeof words);
    random_state = mix(mix(words[0] + (uintptr_t)&random_state) + words[1]);
}

bool ca_sample_draw(size_t bytes)
{
    if (mean == CA_SAMPLE_ALL || mean == CA_SAMPLE_NONE) {
        ca_mine.sample_left = mean == CA_SAMPLE_ALL ? -1 : INT64_MAX;
        return mean == CA_SAMPLE_ALL;
    }
    if (!drawn) {
        if (random_state == 0)
            seed_thread();
        drawn = true;
        ca_mine.sample_left = next_distance();
        if (ca_sample_passes(bytes))
            return false;
    }
    ca_mine.sample_left = next_distance();
    return true;
}

void ca_sample_start(size_t every)
{
    mean = every;
    ca_mine.sample_left = -1;
    drawn = false;
}
