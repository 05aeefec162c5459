/* What kinds of programs are drawn: one row per profile. A weight is how often an operation is
 * tried; a profile names those that differ from the usual. */
#ifndef CA_TESTS_RANDOM_PROFILES_H
#define CA_TESTS_RANDOM_PROFILES_H

#include "random.h"

enum { CHANGES = 14, LARGE = -1 };

typedef struct profile {
    const char *name, *what;
    int threads, devices; /* most */
    int streams;          /* most */
    int blocking;         /* of a hundred streams */
    int bursts;           /* of a thousand operations: work held, free, malloc, write elsewhere */
    int async_bursts, pinned_bursts; /* of a hundred bursts: with such memory */
    int sizes;   /* 0: log-uniform; else as many different small sizes; LARGE: large ones */
    int buffers; /* per thread, that the allocations aim at */
    bool peers, peer_free, launches;
    struct {
        op_kind_t kind;
        int weight;
    } change[CHANGES];
} profile_t;

enum { NEVER = -1 };

static const int usual_weight[OP_COUNT] = {
    [OP_ALLOC] = 140,      [OP_FREE] = 130,       [OP_HOST_ALLOC] = 12, [OP_HOST_FREE] = 8,
    [OP_SET] = 140,        [OP_SET_2D] = 30,      [OP_UPLOAD] = 90,     [OP_DOWNLOAD] = 50,
    [OP_COPY] = 100,       [OP_CHECK] = 70,       [OP_HOST_CHECK] = 15, [OP_HOST_FILL] = 20,
    [OP_HOLD] = 3,         [OP_OPEN] = 6,         [OP_PAUSE] = 10,      [OP_FORK] = 30,
    [OP_POLL] = 30,        [OP_SYNC] = 12,        [OP_EVENT_SYNC] = 12, [OP_DEVICE_SYNC] = 5,
    [OP_STREAM_NEW] = 10,  [OP_STREAM_END] = 9,   [OP_GIVE] = 40,       [OP_TAKE] = 60,
    [OP_GIVE_STREAM] = 10, [OP_TAKE_STREAM] = 15, [OP_CTX_NEW] = 1,     [OP_CTX_USE] = 4,
    [OP_CTX_END] = 1,
};

static const profile_t profiles[] = {
    {.name = "mixed",
     .what = "everything but resets",
     .threads = 4,
     .devices = 2,
     .streams = 8,
     .blocking = 50,
     .bursts = 5,
     .buffers = 24,
     .peers = true,
     .change = {{OP_ALLOC_ASYNC, 20}, {OP_FREE_ASYNC, 20}, {OP_ALLOC_PITCHED, 10}}},
    {.name = "nonblocking",
     .what = "one thread, non-blocking streams, frees under work that is held",
     .threads = 1,
     .devices = 1,
     .streams = 8,
     .bursts = 60,
     .sizes = LARGE,
     .buffers = 8,
     .change = {{OP_DEVICE_SYNC, NEVER}, {OP_SYNC, 2}}},
    {.name = "churn",
     .what = "few sizes, many allocations and frees",
     .threads = 2,
     .devices = 1,
     .streams = 4,
     .blocking = 50,
     .bursts = 40,
     .sizes = 3,
     .buffers = 32,
     .change = {{OP_ALLOC, 300}, {OP_FREE, 280}}},
    {.name = "threads",
     .what = "four threads that hand over buffers and streams",
     .threads = 4,
     .devices = 1,
     .streams = 8,
     .blocking = 50,
     .bursts = 5,
     .buffers = 16,
     .change = {{OP_GIVE, 150}, {OP_TAKE, 200}, {OP_GIVE_STREAM, 30}, {OP_TAKE_STREAM, 40}}},
    {.name = "peers",
     .what = "two devices with peer access",
     .threads = 2,
     .devices = 2,
     .streams = 8,
     .blocking = 50,
     .bursts = 5,
     .buffers = 16,
     .peers = true},
    {.name = "peerfree",
     .what = "frees while a peer's stream is at work; the driver's do not wait for it",
     .threads = 1,
     .devices = 2,
     .streams = 6,
     .bursts = 60,
     .sizes = LARGE,
     .buffers = 8,
     .peers = true,
     .peer_free = true,
     .change = {{OP_DEVICE_SYNC, NEVER}, {OP_SYNC, 2}}},
    {.name = "resets",
     .what = "cudaDeviceReset again and again",
     .threads = 3,
     .devices = 2,
     .streams = 6,
     .blocking = 50,
     .bursts = 5,
     .buffers = 16,
     .peers = true,
     .change = {{OP_RESET, 5},
                {OP_ALLOC_ASYNC, 20},
                {OP_FREE_ASYNC, 15},
                {OP_ALLOC_PITCHED, 10},
                {OP_ALIAS, 10},
                {OP_TRIM, 1}}},
    {.name = "contexts",
     .what = "contexts of the driver come and go",
     .threads = 3,
     .devices = 2,
     .streams = 4,
     .blocking = 50,
     .bursts = 5,
     .buffers = 16,
     .change = {{OP_CTX_NEW, 20}, {OP_CTX_USE, 80}, {OP_CTX_END, 18}, {OP_RESET, 1}}},
    {.name = "async",
     .what = "stream-ordered memory, freed in each way, on streams that come and go",
     .threads = 3,
     .devices = 2,
     .streams = 8,
     .blocking = 30,
     .bursts = 60,
     .async_bursts = 80,
     .buffers = 12,
     .change = {{OP_ALLOC, 60},
                {OP_FREE, 60},
                {OP_ALLOC_ASYNC, 140},
                {OP_FREE_ASYNC, 130},
                {OP_STREAM_NEW, 30},
                {OP_STREAM_END, 25},
                {OP_SYNC, 4},
                {OP_DEVICE_SYNC, 1}}},
    {.name = "pinned",
     .what = "pinned memory, freed while it is copied from and to",
     .threads = 2,
     .devices = 2,
     .streams = 6,
     .blocking = 30,
     .bursts = 60,
     .pinned_bursts = 80,
     .buffers = 8,
     .change = {{OP_HOST_ALLOC, 120},
                {OP_HOST_FREE, 100},
                {OP_UPLOAD, 180},
                {OP_DOWNLOAD, 180},
                {OP_HOST_CHECK, 60},
                {OP_HOST_FILL, 60},
                {OP_SYNC, 4},
                {OP_DEVICE_SYNC, 1}}},
    {.name = "api",
     .what = "every kind of memory, second names, pin mode, trims at any time",
     .threads = 3,
     .devices = 2,
     .streams = 6,
     .blocking = 40,
     .bursts = 20,
     .async_bursts = 30,
     .pinned_bursts = 30,
     .buffers = 16,
     .peers = true,
     .change = {{OP_ALLOC, 70},
                {OP_ALLOC_ASYNC, 50},
                {OP_FREE_ASYNC, 60},
                {OP_ALLOC_PITCHED, 40},
                {OP_HOST_ALLOC, 30},
                {OP_HOST_FREE, 25},
                {OP_ALIAS, 40},
                {OP_TRIM, 6},
                {OP_PIN, 5},
                {OP_UNPIN, 6}}},
    {.name = "graphs",
     .what = "captures that begin and end between allocations and frees, and launches of graphs",
     .launches = true,
     .threads = 3,
     .devices = 2,
     .streams = 8,
     .bursts = 20,
     .async_bursts = 30,
     .buffers = 12,
     .change = {{OP_CAPTURE, 60},
                {OP_CAPTURE_END, 60},
                {OP_LAUNCH, 100},
                {OP_GRAPH_END, 25},
                {OP_REFUSED, 15},
                {OP_ALLOC_ASYNC, 20},
                {OP_FREE_ASYNC, 20},
                {OP_TRIM, 2},
                {OP_DEVICE_SYNC, NEVER},
                {OP_CTX_NEW, NEVER},
                {OP_CTX_END, NEVER},
                {OP_CTX_USE, NEVER}}},
};

enum { PROFILES = sizeof(profiles) / sizeof(profiles[0]) };

static inline int weight_of(const profile_t *profile, op_kind_t kind)
{
    for (int i = 0; i < CHANGES; i++)
        if (profile->change[i].weight && profile->change[i].kind == kind)
            return profile->change[i].weight == NEVER ? 0 : profile->change[i].weight;
    return usual_weight[kind];
}

#endif
