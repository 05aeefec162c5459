/* What every fuzz target includes: a claim that holds in all builds, and a reader of the input.
 * Each file here is a program of libFuzzer's, which calls LLVMFuzzerTestOneInput. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM(claim)                                                                               \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim);                    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *at;
    size_t left;
} input_t;

/* The next byte, or 0 at the end. */
static inline uint8_t next_byte(input_t *input)
{
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->at++;
}

/* The next `bytes` of a number; what is missing is 0. */
static inline uint64_t next_number(input_t *input, unsigned bytes)
{
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes; i++)
        number |= (uint64_t)next_byte(input) << (8 * i);
    return number;
}

#endif
