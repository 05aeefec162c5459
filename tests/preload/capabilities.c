/* What the pool can do, each capability in its smallest form; tests/test_capabilities.py names them
 * and says with which options they are run.
 *
 * capabilities CASE [NUMBER]    fails with a message, or ends well; some cases print figures */
#include "gate.h"
#include "api.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static char *take(size_t bytes)
{
    char *pointer;
    OK(cudaMalloc((void **)&pointer, bytes));
    return pointer;
}

/* Until nothing runs any more. */
static void release(void *pointer)
{
    OK(cudaFree(pointer));
    OK(cudaDeviceSynchronize());
}

static uint64_t upstream(void)
{
    return api_stats().upstream_allocs;
}

static bool inside(const char *pointer, const char *base, size_t bytes)
{
    return pointer >= base && pointer < base + bytes;
}

/* size_classes: the eleven of the test. */
static void classes(void)
{
    static const size_t sizes[] = {32 * KIB, 256 * KIB, 1 * MIB,  2 * MIB,   4 * MIB,  8 * MIB,
                                   16 * MIB, 32 * MIB,  64 * MIB, 128 * MIB, 256 * MIB};
    for (size_t i = 0, below = 0; i < sizeof(sizes) / sizeof(sizes[0]); below = sizes[i++]) {
        char *least = take(below + 1), *most = take(sizes[i]);
        CHECK(api_info(least).block_bytes == sizes[i] && api_info(most).block_bytes == sizes[i]);
        OK(cudaFree(least));
        release(most);
        uint64_t before = upstream();
        char *again = take(below + (sizes[i] - below) / 2); /* another size of the same class */
        CHECK(upstream() == before);
        release(again);
    }
    char *larger = take(256 * MIB + 1);
    CHECK(api_info(larger).block_bytes == 256 * MIB + 4096);
    release(larger);
}

/* From the third round on: until then the pool has grown, and been whole again once. */
static void pin(void)
{
    enum { COUNT = 30, SETTLED = 2 };
    char *first[COUNT], *pointer[COUNT];
    OK(cachealloc_set_pin_mode(1));
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            pointer[i] = take(1000 + i * i * 3000);
            if (round <= SETTLED)
                first[i] = pointer[i];
            CHECK(pointer[i] == first[i]);
        }
        for (size_t i = 0; i < COUNT; i++) /* in another order each time */
            OK(cudaFree(pointer[(i * 7 + (size_t)round) % COUNT]));
        OK(cudaDeviceSynchronize());
        CHECK(cachealloc_trim() == 0 && api_stats().upstream_frees == 0);
    }
    OK(cachealloc_set_pin_mode(0));
    CHECK(cachealloc_trim() > 0);
}

/* All that is idle goes back; what is live, or still in use by the device, does not. */
static void trim(void)
{
    static gate_t gate = GATE_CLOSED;
    enum { COUNT = 4 };
    char *buffers[COUNT], *live = take(20 * MIB), *busy = take(20 * MIB);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    size_t kept = api_stats().reserved_bytes;
    for (int i = 0; i < COUNT; i++)
        buffers[i] = take(20 * MIB);
    size_t added = api_stats().reserved_bytes - kept;
    OK(cudaMemset(live, 7, 20 * MIB));
    for (int i = 0; i < COUNT; i++)
        OK(cudaFree(buffers[i]));
    OK(cudaDeviceSynchronize());
    CHECK(added >= COUNT * 20 * MIB && api_stats().upstream_frees == 0);
    CHECK(cachealloc_trim() == added);
    CHECK(api_stats().reserved_bytes == kept && api_stats().upstream_frees > 0);
    CHECK(cachealloc_trim() == 0);

    gate_hold(&gate, stream);
    OK(cudaMemsetAsync(busy, 1, 20 * MIB, stream));
    OK(cudaFree(busy));
    CHECK(cachealloc_trim() == 0); /* else it would wait for the gate */
    gate_open(&gate);
    OK(cudaDeviceSynchronize());
    CHECK(cachealloc_trim() >= 20 * MIB);

    char last = 0;
    OK(cudaMemcpy(&last, live + 20 * MIB - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(last == 7);
    release(live);
    cachealloc_trim();
    CHECK(api_stats().reserved_bytes == 0);
}

/* A second free is refused, and so is one inside a block; the neighbours keep their memory. */
static void twice(void)
{
    char *first = take(5000), *neighbour = take(5000), value = 0;
    OK(cudaMemset(neighbour, 9, 5000));
    OK(cudaFree(first));
    ANSWERS(cudaErrorInvalidValue, cudaFree(first));
    ANSWERS(cudaErrorInvalidValue, cudaFree(neighbour + 512));
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
    CHECK(api_stats().wrong_frees == 2 && api_stats().free_calls == 3);
    char *one = take(5000), *other = take(5000);
    CHECK(one != other && one != neighbour && other != neighbour);
    OK(cudaMemcpy(&value, neighbour + 4999, 1, cudaMemcpyDeviceToHost));
    CHECK(value == 9 && api_stats().live_allocations == 3);
    OK(cudaFree(one));
    OK(cudaFree(other));
    OK(cudaFree(neighbour));
}

/* Ten neighbours fill a segment; freed in
 * any order they are one block again. */
static void neighbours(void)
{
    enum { COUNT = 10 };
    static const int order[COUNT] = {3, 0, 7, 1, 5, 9, 2, 6, 8, 4};
    char *buffers[COUNT];
    for (int i = 0; i < COUNT; i++)
        buffers[i] = take(MIB);
    for (int i = 1; i < COUNT; i++)
        CHECK(buffers[i] == buffers[0] + (size_t)i * MIB);
    CHECK(upstream() == 1 && api_stats().splits == COUNT - 1 && api_stats().merges == 0);
    for (int i = 0; i < COUNT; i++)
        OK(cudaFree(buffers[order[i]]));
    OK(cudaDeviceSynchronize());
    char *large = take(COUNT * MIB);
    CHECK(large == buffers[0] && upstream() == 1 && api_stats().merges == COUNT - 1);
    CHECK(api_stats().blocks == 1);
    release(large);
    char *small = take(MIB), *next = take(MIB);
    CHECK(small == large && next == large + MIB && api_stats().splits == COUNT + 1);
    OK(cudaFree(small));
    release(next);
}

/* Three segments, `last` freed last: above the threshold a growth gives the two others back. */
static void by_age(size_t last)
{
    char *buffers[3];
    for (int i = 0; i < 3; i++)
        buffers[i] = take(64 * MIB);
    for (size_t i = 1; i <= 3; i++)
        release(buffers[(last + i) % 3]);
    CHECK(upstream() == 3);
    char *grown = take(100 * MIB);
    CHECK(upstream() == 4 && api_stats().upstream_frees == 2);
    char *youngest = take(64 * MIB);
    CHECK(youngest == buffers[last] && upstream() == 4);
    OK(cudaFree(youngest));
    release(grown);
}

static uint64_t waits_before;

/* Opens the gate once the pool waits for what is behind it: from its waits, not after a time. */
static void *open_when_waited_for(void *gate)
{
    while (api_stats().fence_waits == waits_before)
        sched_yield();
    gate_open(gate);
    return NULL;
}

/* A full device of 256 MiB: idle segments that are too small go back, what is in flight is waited
 * for, and only then the program is out of memory. */
static void ladder(void)
{
    static gate_t gate = GATE_CLOSED;
    pthread_t thread;
    cudaStream_t stream;
    char *buffers[3], *large;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++)
        buffers[i] = take(64 * MIB);
    for (int i = 0; i < 3; i++)
        release(buffers[i]);
    large = take(200 * MIB);
    CHECK(api_stats().upstream_frees >= 2 && api_stats().out_of_memory == 0);

    gate_hold(&gate, stream);
    OK(cudaMemsetAsync(large, 1, 200 * MIB, stream));
    waits_before = api_stats().fence_waits;
    OK(pthread_create(&thread, NULL, open_when_waited_for, &gate));
    OK(cudaFree(large));
    large = take(180 * MIB);
    CHECK(api_stats().fence_waits > waits_before && api_stats().out_of_memory == 0);
    OK(pthread_join(thread, NULL));

    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc((void **)&buffers[0], 180 * MIB));
    ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
    CHECK(api_stats().out_of_memory == 1);
    release(large);
    release(take(200 * MIB));
}

/* After a large buffer came and went, and a small one came: prints how many segments there were,
 * how many with a buffer of 4 MiB more, and what is held when only the small one is left. */
static void two_pools(void)
{
    release(take(64 * MIB));
    char *small = take(4 * KIB);
    printf("%zu ", (size_t)upstream());
    char *middle = take(4 * MIB + 4 * KIB); /* no piece of a pool: see pool/range/export.h */
    printf("%zu ", (size_t)upstream());
    release(middle);
    cachealloc_trim();
    printf("%zu\n", (size_t)api_stats().reserved_bytes);
    release(small);
}

/* Until more was held once, idle memory goes back before the pool grows. */
static void raise_peak(void)
{
    release(take(256 * MIB));
    cachealloc_trim();
    CHECK(upstream() == 1 && api_stats().reserved_bytes == 0);
}

/* Prints 1 where a small request was cut from a large freed block, 0 where it was not. */
static void max_split(void)
{
    raise_peak();
    char *large = take(32 * MIB);
    release(large);
    char *small = take(4 * KIB);
    bool cut = inside(small, large, 32 * MIB);
    CHECK(upstream() == (cut ? 2 : 3));
    char *again = take(32 * MIB);
    CHECK((again == large) == !cut);
    printf("%d\n", cut);
    OK(cudaFree(small));
    release(again);
}

/* With max_split:16M. At most 1/8 of the block may be unused. */
static void near_size(void)
{
    raise_peak();
    char *large = take(32 * MIB), *nearly, *far;
    release(large);
    nearly = take(29 * MIB);
    CHECK(nearly == large && upstream() == 2 && api_stats().splits == 0);
    CHECK(api_info(nearly).block_bytes == 32 * MIB && api_info(nearly).bytes == 29 * MIB);
    release(nearly);
    far = take(20 * MIB);
    CHECK(far != large && upstream() == 3 && api_info(far).block_bytes == 20 * MIB);
    release(far);
}

/* Of every kind of device memory: blocks at 512 bytes, at 4 KiB from 64 KiB up; pinned at 4 KiB. */
static void aligned(void)
{
    enum { COUNT = 600 };
    static char *buffers[COUNT];
    uint64_t random = 5;
    void *pinned;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            size_t bytes =
                1 + next_random(&random) % ((size_t)1 << (8 + next_random(&random) % 12));
            if (buffers[i])
                OK(cudaFree(buffers[i]));
            buffers[i] = take(bytes);
            CHECK((uintptr_t)buffers[i] % (bytes >= 64 * KIB ? 4096 : 512) == 0);
            if (i % 100 == 0) {
                OK(cudaMallocHost(&pinned, bytes));
                CHECK((uintptr_t)pinned % 4096 == 0);
                OK(cudaFreeHost(pinned));
            }
        }
    }
    for (int i = 0; i < COUNT; i++)
        OK(cudaFree(buffers[i]));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"classes", classes},     {"pin", pin},         {"trim", trim},
                 {"twice", twice},         {"ladder", ladder},   {"neighbours", neighbours},
                 {"two_pools", two_pools}, {"aligned", aligned}, {"max_split", max_split},
                 {"near_size", near_size}};
    CHECK(argc > 1 && api_there());
    if (strcmp(argv[1], "by_age") == 0) {
        by_age(number_argument(argc, argv, 2, 0));
        return 0;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("unknown case %s", argv[1]);
}
