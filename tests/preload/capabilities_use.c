/* As capabilities.c: those that need streams, devices, or the public interface.
 *
 * capabilities_use CASE    fails with a message, or ends well; some cases print figures */
#include "gate.h"
#include "api.h"

#define MIB ((size_t)1 << 20)

static char *take(size_t bytes)
{
    char *pointer;
    OK(cudaMalloc((void **)&pointer, bytes));
    return pointer;
}

static char *take_on(cudaStream_t stream, size_t bytes)
{
    char *pointer;
    OK(cudaMallocAsync((void **)&pointer, bytes, stream));
    return pointer;
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static uint64_t upstream(void)
{
    return api_stats().upstream_allocs;
}

/* Each buffer is freed while the other device is current, and the work on its own one goes on: the
 * free returns, the memory does not come back, and afterwards it does, on the same device. */
static void devices(void)
{
    enum { BYTES = 20 << 20 };
    static gate_t gates[2] = {GATE_CLOSED, GATE_CLOSED};
    for (int device = 0; device < 2; device++) {
        OK(cudaSetDevice(1 - device));
        OK(cudaFree(take(1000))); /* both contexts are there */
        OK(cudaSetDevice(device));
        cudaStream_t stream = make_stream();
        char *first = take(BYTES);
        uint64_t before = upstream();
        gate_hold(&gates[device], stream);
        OK(cudaMemsetAsync(first, 1, BYTES, stream));
        OK(cudaSetDevice(1 - device));
        OK(cudaFree(first));
        OK(cudaDeviceSynchronize()); /* of the idle device: nothing follows from it */
        OK(cudaSetDevice(device));
        ANSWERS(cudaErrorNotReady, cudaStreamQuery(stream));
        CHECK(api_stats().pending_bytes >= BYTES);
        char *second = take(BYTES);
        CHECK((second >= first + BYTES || first >= second + BYTES) && upstream() == before + 1);
        gate_open(&gates[device]);
        OK(cudaStreamSynchronize(stream));
        char *third = take(BYTES);
        struct cudaPointerAttributes attributes;
        OK(cudaPointerGetAttributes(&attributes, third));
        CHECK(third == first && attributes.device == device && upstream() == before + 1);
        OK(cudaSetDevice(1 - device));
        OK(cudaFree(second));
        OK(cudaFree(third));
        OK(cudaDeviceSynchronize());
        OK(cudaSetDevice(device));
        OK(cudaDeviceSynchronize());
    }
    cachealloc_trim();
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.reserved_bytes == 0 && stats.pending_bytes == 0 && stats.live_bytes == 0);
}

/* On its own stream memory comes back while its work goes on; on another one not before its end. */
static void ordered(void)
{
    enum { BYTES = (6 << 20) - 4096 }; /* no piece of a pool of its own: pool/range/export.h */
    static gate_t gate = GATE_CLOSED;
    cudaStream_t own = make_stream(), other = make_stream();
    OK(cudaFree(take(100)));                       /* the pool is there */
    OK(cudaFreeAsync(take_on(other, 100), other)); /* a second stream is known */
    char *first = take_on(own, BYTES);
    cachealloc_info_t info = api_info(first);
    CHECK(info.kind == CACHEALLOC_KIND_ASYNC && info.stream == own && info.block_bytes >= BYTES);
    gate_hold(&gate, own);
    OK(cudaMemsetAsync(first, 1, BYTES, own));
    OK(cudaFreeAsync(first, own));
    char *elsewhere = take_on(other, BYTES);
    CHECK(elsewhere >= first + BYTES || first >= elsewhere + BYTES);
    char *again = take_on(own, BYTES);
    CHECK(again == first);
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(own));
    OK(cudaFreeAsync(again, own));
    gate_open(&gate);
    OK(cudaStreamSynchronize(own));
    uint64_t before = upstream();
    again = take_on(other, BYTES);
    CHECK(again == first && upstream() == before);
    OK(cudaFreeAsync(again, other));
    OK(cudaFreeAsync(elsewhere, other));
    OK(cudaDeviceSynchronize());
}

/* Two streams, both held: each goes on with its own memory, and nobody asks or waits. */
static void per_stream(void)
{
    enum { BYTES = 1 << 20, ROUNDS = 200 };
    static gate_t gate = GATE_CLOSED;
    cudaStream_t streams[2] = {make_stream(), make_stream()};
    char *first[2], *rest[] = {take(5 * BYTES), take(3 * BYTES)}; /* of the segment */
    for (int i = 0; i < 2; i++) {
        first[i] = take_on(streams[i], BYTES);
        gate_hold(&gate, streams[i]);
        OK(cudaFreeAsync(first[i], streams[i]));
    }
    CHECK(first[0] != first[1]);
    cachealloc_stats_t before = api_stats();
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < 2; i++) {
            char *again = take_on(streams[i], BYTES);
            CHECK(again == first[i]);
            OK(cudaMemsetAsync(again, round, BYTES, streams[i]));
            OK(cudaFreeAsync(again, streams[i]));
        }
    cachealloc_stats_t after = api_stats();
    CHECK(after.hits - before.hits == 2 * ROUNDS && after.fence_waits == before.fence_waits);
    CHECK(after.fence_queries == before.fence_queries);
    gate_open(&gate);
    OK(cudaFree(rest[0]));
    OK(cudaFree(rest[1]));
    OK(cudaDeviceSynchronize());
}

/* A hundred pairs of each call, and one buffer that is forgotten. */
NOINLINE static void back_end(void)
{
    cudaStream_t stream = make_stream();
    CHECK(take(12345));
    for (int i = 0; i < 100; i++) {
        OK(cudaFree(take(100000)));
        OK(cudaFreeAsync(take_on(stream, 100000), stream));
    }
    OK(cudaDeviceSynchronize());
}

static void aliases(void)
{
    enum { BYTES = 8 << 20 };
    char *base = take(BYTES), *middle = base + 4096, *end = base + BYTES - 1, value = 0;
    OK(cudaMemset(base, 5, BYTES));
    OK(cachealloc_alias(base, middle));
    OK(cachealloc_alias(middle, end));
    CHECK(api_info(end).names == 3 && api_info(end).base == base);
    CHECK(api_stats().live_allocations == 1 && api_stats().live_bytes == BYTES);
    OK(cudaFree(base));
    OK(cudaFree(end));
    OK(cudaDeviceSynchronize());
    cachealloc_trim();
    CHECK(api_info(middle).names == 1);
    char *other = take(BYTES);
    CHECK(other != base);
    OK(cudaMemset(other, 6, BYTES));
    OK(cudaMemcpy(&value, end, 1, cudaMemcpyDeviceToHost));
    CHECK(value == 5);
    OK(cudaFree(middle));
    ANSWERS(cudaErrorInvalidValue, cudaFree(middle));
    cudaGetLastError();
    OK(cudaDeviceSynchronize());
    uint64_t before = upstream();
    char *again = take(BYTES);
    CHECK(again == base && upstream() == before);
    OK(cudaFree(again));
    OK(cudaFree(other));
}

static struct {
    int calls;
    void *pointer, *arg;
    size_t bytes;
} deleted[2];

static void note(int which, void *pointer, size_t bytes, void *arg)
{
    deleted[which].calls++;
    deleted[which].pointer = pointer;
    deleted[which].bytes = bytes;
    deleted[which].arg = arg;
}

static void delete_first(void *pointer, size_t bytes, void *arg)
{
    note(0, pointer, bytes, arg);
}

static void delete_second(void *pointer, size_t bytes, void *arg)
{
    note(1, pointer, bytes, arg);
}

static void deleters(void)
{
    static char memory[2][100];
    OK(cachealloc_register(memory[0], 100, delete_first, &deleted[0]));
    OK(cachealloc_register(memory[1], 50, delete_second, memory));
    CHECK(api_info(memory[0]).kind == CACHEALLOC_KIND_EXTERNAL && api_stats().live_bytes == 150);
    OK(cudaFreeHost(memory[1]));
    CHECK(deleted[0].calls == 0 && deleted[1].calls == 1);
    OK(cudaFree(memory[0]));
    CHECK(deleted[0].calls == 1 && deleted[1].calls == 1);
    CHECK(deleted[0].pointer == memory[0] && deleted[0].bytes == 100);
    CHECK(deleted[1].pointer == memory[1] && deleted[1].bytes == 50);
    CHECK(deleted[0].arg == &deleted[0] && deleted[1].arg == memory);
    CHECK(!cachealloc_is_registered(memory[0]) && api_stats().live_bytes == 0);
}

/* Prints the highest reserve, for a comparison with what the driver gave. */
static void statistics(void)
{
    char *small = take(1000), *large = take(20 * MIB);
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.alloc_calls == 2 && stats.hits == 0 && stats.misses == 2);
    CHECK(stats.live_bytes == 1000 + 20 * MIB && stats.block_bytes == 1024 + 20 * MIB);
    CHECK(stats.segments == 2 && stats.blocks == 3 && stats.contexts == 1);
    CHECK(stats.reserved_bytes == stats.block_bytes + stats.ready_bytes && !stats.idle_bytes);
    OK(cudaFree(small));
    stats = api_stats();
    CHECK(stats.pending_bytes == 1024 && stats.free_calls == 1 && stats.live_bytes == 20 * MIB);
    CHECK(stats.idle_bytes == stats.reserved_bytes - 20 * MIB && !stats.passed_through);
    OK(cudaFree(large));
    OK(cudaDeviceSynchronize());
    cachealloc_trim();
    stats = api_stats();
    CHECK(stats.reserved_bytes == 0 && stats.segments == 0 && stats.live_bytes == 0);
    CHECK(stats.upstream_allocs == 2 && stats.upstream_frees == 2 && stats.out_of_memory == 0);
    CHECK(stats.live_peak_bytes == 1000 + 20 * MIB);
    printf("%zu\n", (size_t)stats.reserved_peak_bytes);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"devices", devices},      {"ordered", ordered}, {"per_stream", per_stream},
                 {"back_end", back_end},    {"aliases", aliases}, {"deleters", deleters},
                 {"statistics", statistics}};
    CHECK(argc > 1 && api_there());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("unknown case %s", argv[1]);
}
