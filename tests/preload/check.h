/* What the test programs share: checks that end the program with a message, a seeded generator, and
 * a look at the shim's statistics where a shim is preloaded.
 *
 * The programs are ordinary users of CUDA: they include nothing of ours but this file, and they run
 * on the simulator and on hardware, with and without the shim. */
#ifndef CA_TESTS_PRELOAD_CHECK_H
#define CA_TESTS_PRELOAD_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            FAIL("%s does not hold", #condition);                                                  \
    } while (0)

/* The call must succeed; codes of the runtime and of the driver are both 0 then. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        int code_ = (int)(call);                                                                   \
        if (code_ != 0)                                                                            \
            FAIL("%s answered %d", #call, code_);                                                  \
    } while (0)

/* The call must answer exactly this code. */
#define ANSWERS(expected, call)                                                                    \
    do {                                                                                           \
        int code_ = (int)(call);                                                                   \
        if (code_ != (int)(expected))                                                              \
            FAIL("%s answered %d, expected %d (%s)", #call, code_, (int)(expected), #expected);    \
    } while (0)

/* xorshift64*: the same numbers everywhere for the same seed, which must not be 0. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* The argument at `index` as a number, or `otherwise` where there is none. */
static inline uint64_t number_argument(int argc, char **argv, int index, uint64_t otherwise)
{
    return index < argc ? strtoull(argv[index], NULL, 0) : otherwise;
}

#endif
