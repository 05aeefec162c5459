/* The main job as one procedure over a small table of calls, so that the runtime and the driver
 * program do exactly the same and print the same digest.
 *
 * A seeded mix of allocations and frees, sizes log-uniform from 1 B to 64 MiB. Both ends and some
 * pages of every buffer are written when it is born and verified when it dies, so that two live
 * buffers that overlap anywhere near those places are found. The digest covers sizes, codes and
 * contents, never addresses. */
#ifndef CA_TESTS_PRELOAD_MIX_H
#define CA_TESTS_PRELOAD_MIX_H

#include <stdbool.h>
#include "check.h"

#define MIX_PROBE 32      /* bytes written at each probed place */
#define MIX_PROBES_MOST 4 /* both ends and two pages between them */
#define MIX_EXPONENTS 26  /* sizes up to 2^26 = 64 MiB */

typedef struct mix_calls {
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*release)(uint64_t address);
    int (*fill)(uint64_t address, unsigned char value, size_t bytes);
    /* Asynchronous, in order, from and to the pinned area; `wait` completes them. */
    int (*write)(uint64_t address, const void *from, size_t bytes);
    int (*read)(void *to, uint64_t address, size_t bytes);
    int (*wait)(void);
    unsigned char *pinned; /* MIX_PROBE * MIX_PROBES_MOST bytes */
} mix_calls_t;

typedef struct mix_buffer {
    uint64_t address;
    size_t bytes;
    uint64_t tag;
} mix_buffer_t;

static uint64_t mix_digest = UINT64_C(14695981039346656037);

/* FNV-1a */
static void mix_digest_add(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        mix_digest = (mix_digest ^ at[i]) * UINT64_C(1099511628211);
}

static size_t mix_size(uint64_t *random)
{
    size_t power = (size_t)1 << (next_random(random) % MIX_EXPONENTS);
    return power + next_random(random) % power;
}

/* Where a buffer is probed: offsets follow from its tag alone. Returns how many. */
static unsigned mix_places(const mix_buffer_t *buffer, size_t *offsets, size_t *lengths)
{
    unsigned count = 0;
    size_t length = buffer->bytes < MIX_PROBE ? buffer->bytes : MIX_PROBE;
    offsets[count++] = 0;
    if (buffer->bytes > length)
        offsets[count++] = buffer->bytes - length;
    uint64_t random = buffer->tag | 1;
    size_t pages = buffer->bytes / 4096;
    for (unsigned i = 0; i < 2 && pages > 2;
         i++) /* the last whole page may hold the tail's probe */
        offsets[count++] = (1 + next_random(&random) % (pages - 2)) * 4096;
    for (unsigned i = 0; i < count; i++)
        lengths[i] = length;
    return count;
}

/* The pattern depends on buffer and offset only: where probes overlap they agree. */
static void mix_pattern(const mix_buffer_t *buffer, size_t offset, unsigned char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        uint64_t word = (buffer->tag + (offset + i) / 8) * UINT64_C(0x9E3779B97F4A7C15);
        to[i] = (unsigned char)(word >> (8 * ((offset + i) % 8)));
    }
}

static void mix_birth(const mix_calls_t *calls, mix_buffer_t *buffer)
{
    size_t offsets[MIX_PROBES_MOST], lengths[MIX_PROBES_MOST];
    OK(calls->allocate(&buffer->address, buffer->bytes));
    CHECK(buffer->address != 0 && buffer->address % 256 == 0);
    /* What the buffer's last owner left must be overwritten in order, too. */
    OK(calls->fill(buffer->address, 0xEE, buffer->bytes < 512 ? buffer->bytes : 512));
    unsigned count = mix_places(buffer, offsets, lengths);
    for (unsigned i = 0; i < count; i++) {
        unsigned char *from = calls->pinned + i * MIX_PROBE;
        mix_pattern(buffer, offsets[i], from, lengths[i]);
        OK(calls->write(buffer->address + offsets[i], from, lengths[i]));
    }
    OK(calls->wait());
}

static void mix_death(const mix_calls_t *calls, const mix_buffer_t *buffer)
{
    size_t offsets[MIX_PROBES_MOST], lengths[MIX_PROBES_MOST];
    unsigned char expected[MIX_PROBE];
    unsigned count = mix_places(buffer, offsets, lengths);
    for (unsigned i = 0; i < count; i++)
        OK(calls->read(calls->pinned + i * MIX_PROBE, buffer->address + offsets[i], lengths[i]));
    OK(calls->wait());
    for (unsigned i = 0; i < count; i++) {
        mix_pattern(buffer, offsets[i], expected, lengths[i]);
        if (memcmp(expected, calls->pinned + i * MIX_PROBE, lengths[i]) != 0)
            FAIL("buffer of %zu bytes differs at offset %zu", buffer->bytes, offsets[i]);
        mix_digest_add(calls->pinned + i * MIX_PROBE, lengths[i]);
    }
    mix_digest_add(&buffer->bytes, sizeof(buffer->bytes));
    OK(calls->release(buffer->address));
}

/* `count` calls in all, at most `most` buffers live; frees what is left at the end. */
static void mix_run(const mix_calls_t *calls, uint64_t count, size_t most, uint64_t seed)
{
    mix_buffer_t *live = calloc(most, sizeof(*live));
    CHECK(live && most > 0 && seed != 0);
    uint64_t random = seed, done = 0, live_bytes = 0, peak_bytes = 0;
    size_t used = 0;
    while (done < count) {
        /* Two allocations to one free until the set is full, then a coin: it stays near full. */
        bool allocate = used == 0 || (used < most && next_random(&random) % 3 != 0);
        if (allocate) {
            mix_buffer_t *buffer = &live[used++];
            buffer->bytes = mix_size(&random);
            buffer->tag = next_random(&random);
            mix_birth(calls, buffer);
            live_bytes += buffer->bytes;
            peak_bytes = live_bytes > peak_bytes ? live_bytes : peak_bytes;
        } else {
            size_t victim = next_random(&random) % used;
            mix_death(calls, &live[victim]);
            live_bytes -= live[victim].bytes;
            live[victim] = live[--used];
        }
        done++;
    }
    while (used > 0)
        mix_death(calls, &live[--used]);
    free(live);
    printf("digest %016llx\npeak_live_bytes %llu\n", (unsigned long long)mix_digest,
           (unsigned long long)peak_bytes);
}

#endif
