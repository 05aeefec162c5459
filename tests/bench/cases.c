/* The cases of one thread's pairs. Every allocator sees the same sequence of sizes and slots. */
#include "cases.h"

#define MISSES 128 /* at a time: 8 GiB of the simulated device */
#define ONCE ((size_t)64 << 20)

/* --- one block after the other ------------------------------------------------------------------
 */

static void run_hot(worker_t *worker, uint64_t pairs)
{
    size_t bytes = worker->what->bytes;
    for (uint64_t i = 0; i < pairs; i++)
        peer_free(must(peer_alloc(bytes)), bytes);
}

static void run_pinned(worker_t *worker, uint64_t pairs)
{
    size_t bytes = worker->what->bytes;
    for (uint64_t i = 0; i < pairs; i++)
        peer_pinned_free(must(peer_pinned_alloc(bytes)), bytes);
}

static void open_streams(worker_t *worker)
{
    for (size_t i = 0; i < worker->what->streams; i++)
        OK(cudaStreamCreateWithFlags(&worker->streams[i], cudaStreamNonBlocking));
}

static void run_streams(worker_t *worker, uint64_t pairs)
{
    size_t bytes = worker->what->bytes, mask = worker->what->streams - 1;
    for (uint64_t i = 0; i < pairs; i++) {
        cudaStream_t stream = worker->streams[i & mask];
        peer_stream_free(must(peer_stream_alloc(bytes, stream)), bytes, stream);
    }
}

static void close_streams(worker_t *worker)
{
    for (size_t i = 0; i < worker->what->streams; i++)
        OK(cudaStreamDestroy(worker->streams[i]));
}

/* --- among live blocks --------------------------------------------------------------------------
 */

static size_t random_bytes(uint64_t random)
{
    size_t power = (size_t)256 << (random % 12);
    return power + ((random >> 8) & (power - 1));
}

static void replace(slot_t *slot, size_t bytes)
{
    peer_free(slot->block, slot->bytes);
    slot->bytes = bytes;
    slot->block = must(peer_alloc(bytes));
}

static void open_live(worker_t *worker)
{
    size_t live = worker->what->live;
    CHECK((worker->slots = calloc(live, sizeof(slot_t))) != NULL);
    for (size_t i = 0; i < live; i++) {
        slot_t *slot = &worker->slots[i];
        slot->bytes = random_bytes(next_random(&worker->random));
        slot->block = must(peer_alloc(slot->bytes));
    }
}

/* A random one is replaced: the upper half of the number chooses the slot, the lower one the size.
 */
static void run_live(worker_t *worker, uint64_t pairs)
{
    uint64_t live = worker->what->live, random = worker->random;
    for (uint64_t i = 0; i < pairs; i++) {
        uint64_t number = next_random(&random);
        replace(&worker->slots[(number >> 32) * live >> 32], random_bytes((uint32_t)number));
    }
    worker->random = random;
}

/* The oldest one is replaced. */
static void run_fifo(worker_t *worker, uint64_t pairs)
{
    for (uint64_t i = 0; i < pairs; i++) {
        replace(&worker->slots[worker->next], random_bytes((uint32_t)next_random(&worker->random)));
        worker->next = worker->next + 1 == worker->what->live ? 0 : worker->next + 1;
    }
}

/* Fills all slots and frees them in another order. A stride that has no divisor in common with the
 * number of slots visits each once. */
static void run_order(worker_t *worker, uint64_t pairs)
{
    size_t live = worker->what->live, stride = 617; /* a prime */
    CHECK(live % stride != 0);
    for (uint64_t done = 0; done < pairs; done += live) {
        size_t count = pairs - done < live ? pairs - done : live;
        for (size_t i = 0; i < count; i++) {
            slot_t *slot = &worker->slots[i];
            slot->bytes = random_bytes((uint32_t)next_random(&worker->random));
            slot->block = must(peer_alloc(slot->bytes));
        }
        size_t victim = next_random(&worker->random) % live;
        for (size_t i = 0; i < live; i++) {
            slot_t *slot = &worker->slots[victim];
            if (slot->block)
                peer_free(slot->block, slot->bytes);
            slot->block = NULL;
            victim = (victim + stride) % live;
        }
    }
}

static void open_order(worker_t *worker)
{
    CHECK((worker->slots = calloc(worker->what->live, sizeof(slot_t))) != NULL);
}

static void close_live(worker_t *worker)
{
    for (size_t i = 0; i < worker->what->live; i++) {
        if (worker->slots[i].block)
            peer_free(worker->slots[i].block, worker->slots[i].bytes);
    }
    free(worker->slots);
}

/* --- allocations that nothing cached can serve --------------------------------------------------
 */

/* Only the allocations are measured: the frees and the way back to the driver are excluded. */
static void run_miss(worker_t *worker, uint64_t pairs)
{
    size_t bytes = worker->what->bytes;
    void *blocks[MISSES];
    for (uint64_t done = 0; done < pairs; done += MISSES) {
        size_t count = pairs - done < MISSES ? pairs - done : MISSES;
        for (size_t i = 0; i < count; i++)
            blocks[i] = must(peer_alloc(bytes));
        uint64_t start = now_ns();
        for (size_t i = 0; i < count; i++)
            peer_free(blocks[i], bytes);
        CHECK(peer_trim());
        worker->excluded_ns += now_ns() - start;
    }
}

/* --- a program that allocates once --------------------------------------------------------------
 */

static void open_once(worker_t *worker)
{
    CHECK((worker->slots = calloc(1, sizeof(slot_t))) != NULL);
    worker->slots[0].bytes = ONCE;
    worker->slots[0].block = must(peer_alloc(ONCE));
}

static void run_once(worker_t *worker, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++) {
        OK(cudaMemsetAsync(worker->slots[0].block, (int)i, ONCE, NULL));
        OK(cudaStreamSynchronize(NULL));
    }
}

/* --- by name ------------------------------------------------------------------------------------
 */

/* "1KiB", "64MiB", "1GiB", "1000": what a case's name ends with. */
static size_t number_of(const char *text)
{
    char *end;
    size_t number = strtoull(text, &end, 10);
    if (strcmp(end, "KiB") == 0)
        return number << 10;
    if (strcmp(end, "MiB") == 0)
        return number << 20;
    if (strcmp(end, "GiB") == 0)
        return number << 30;
    return *end == 0 || strcmp(end, "B") == 0 ? number : 0;
}

bool case_find(const char *name, bench_case_t *found)
{
    static const struct {
        const char *family;
        bench_case_t what;
    } families[] = {
        {"hot", {.run = run_hot}},
        {"pinned", {.run = run_pinned, .memory = PEER_PINNED}},
        {"miss", {.run = run_miss}},
        {"async",
         {.open = open_streams,
          .run = run_streams,
          .close = close_streams,
          .memory = PEER_STREAM,
          .bytes = 1024}},
        {"live", {.open = open_live, .run = run_live, .close = close_live}},
        {"fifo", {.open = open_live, .run = run_fifo, .close = close_live}},
        {"order", {.open = open_order, .run = run_order, .close = close_live}},
        {"once", {.open = open_once, .run = run_once, .close = close_live}},
        {"prodcons", {.run = prodcons_run, .together = true}},
    };
    const char *number = strchr(name, '_');
    size_t length = number ? (size_t)(number - name) : strlen(name);
    size_t value = number ? number_of(number + 1) : 1024;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strlen(families[i].family) != length || strncmp(name, families[i].family, length) != 0)
            continue;
        *found = families[i].what;
        if (found->open == open_streams)
            found->streams = value;
        else if (found->open)
            found->live = value;
        else
            found->bytes = value;
        /* Streams are chosen by a mask. */
        return value && found->streams <= MAX_STREAMS && !(found->streams & (found->streams - 1));
    }
    return false;
}
