/* The work that every program of the matrix does, in whatever language: ROUNDS times, allocate,
 * copy a pattern in, copy it out, compare, free. The sum over all bytes is printed, so that the
 * same number comes out of C, Fortran, Python, Java and Go, with and without a shim.
 *
 *   round r has 1000 + 512 * (r mod 8) bytes; byte i of it is (31 r + 7 i) mod 256 and counts
 *   (i mod 251 + 1) times. */
#ifndef CA_TESTS_MATRIX_PATTERN_H
#define CA_TESTS_MATRIX_PATTERN_H

#include <stddef.h>
#include "tests/preload/check.h"

enum { ROUNDS = 200, MOST_BYTES = 1000 + 512 * 7 };

typedef struct {
    size_t bytes;
    unsigned char in[MOST_BYTES], out[MOST_BYTES];
} pattern_t;

static inline void pattern_fill(pattern_t *p, int round)
{
    p->bytes = 1000 + 512 * (size_t)(round % 8);
    for (size_t i = 0; i < p->bytes; i++)
        p->in[i] = (unsigned char)(31 * round + 7 * (int)i);
    memset(p->out, 0, sizeof(p->out));
}

static inline long long pattern_sum(const pattern_t *p)
{
    long long sum = 0;
    CHECK(memcmp(p->in, p->out, p->bytes) == 0);
    for (size_t i = 0; i < p->bytes; i++)
        sum += p->out[i] * (long long)(i % 251 + 1);
    return sum;
}

#endif
