/* Drawing samples.
 *
 * The distance from one sample to the next has an exponential distribution: -ln(u) for u between 0
 * and 1. The logarithm is made here, of integers, since floating point may trap or leave its flags
 * in the program: to some 1e-11, which no number of allocations would tell from an exact one. */
#include "registry/table/sample.h"

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

typedef unsigned __int128 wide_t;

#define LOG_BITS 56 /* of a logarithm, behind the point; 62 of what it is made of */
#define ONE ((uint64_t)1 << 63)

static uint64_t times(uint64_t a, uint64_t b)
{
    return (uint64_t)((wide_t)a * b >> 62);
}

/* -ln(u), with u uniform in (0, 1]: u is m * 2^-k with m around 1, and ln(m) is twice the inverse
 * hyperbolic tangent of (m - 1) / (m + 1). */
static int64_t exponential(uint64_t random)
{
    static const uint64_t ln2 = 49946518145322874, root2 = 13043817825332782212u;
    uint64_t number = (random >> 11) + 1; /* of 2^53 */
    int zeros = __builtin_clzll(number);
    uint64_t m = number << zeros; /* in [ONE, 2 * ONE) */
    int k = 53 - (63 - zeros);
    bool below = m > root2; /* then it is half of that, and below 1 */
    wide_t one = below ? (wide_t)1 << 64 : ONE;
    wide_t distance = below ? one - m : m - one;
    uint64_t t = (uint64_t)((distance << 62) / (one + m));
    uint64_t square = times(t, t), term = t, sum = 0;
    for (unsigned i = 1; i <= 13; i += 2) {
        sum += term / i;
        term = times(term, square);
    }
    int64_t twice = (int64_t)(sum >> (62 - LOG_BITS - 1));
    return below ? (k - 1) * (int64_t)ln2 + twice : k * (int64_t)ln2 - twice;
}

static int64_t next_distance(void)
{
    return (int64_t)((wide_t)exponential(random64()) * mean >> LOG_BITS);
}

void ca_sample_seed(uint64_t seed)
{
    random_state = mix(seed + 1);
    drawn = false;
    ca_thread.sample_left = -1;
}

/* The kernel gives each process some random bytes; the address is the thread's own. */
static void seed_thread(void)
{
    uint64_t words[2] = {0, 0};
    const void *entropy = (const void *)getauxval(AT_RANDOM);
    if (entropy)
        memcpy(words, entropy, sizeof words);
    random_state = mix(mix(words[0] + (uintptr_t)&random_state) + words[1]);
}

bool ca_sample_draw(size_t bytes)
{
    if (mean == CA_SAMPLE_ALL || mean == CA_SAMPLE_NONE) {
        ca_thread.sample_left = mean == CA_SAMPLE_ALL ? -1 : INT64_MAX;
        return mean == CA_SAMPLE_ALL;
    }
    if (!drawn) {
        if (random_state == 0)
            seed_thread();
        drawn = true;
        ca_thread.sample_left = next_distance();
        if (ca_sample_passes(bytes))
            return false;
    }
    ca_thread.sample_left = next_distance();
    return true;
}

void ca_sample_start(size_t every)
{
    mean = every;
    ca_thread.sample_left = -1;
    drawn = false;
}
