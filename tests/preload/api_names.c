/* Aliases: every name is freed once, and the last one frees the memory.
 *
 * api_names        each rule in turn; nothing is left
 * api_names leak   memory whose own name is freed and whose alias is not: one allocation of 54321
 *                  bytes by `lose_buffer` */
#include "gate.h"
#include "api.h"

#define BYTES ((size_t)100000)

static char elsewhere[3]; /* addresses that are nobody's, as a second mapping's would be */

static void wrong(cudaError_t answer)
{
    CHECK(answer == cudaErrorInvalidValue);
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
}

static void check_names(const void *name, const void *base, size_t names)
{
    cachealloc_info_t info = api_info(name);
    CHECK(info.base == base && info.names == names && info.bytes == BYTES);
    CHECK(info.kind == CACHEALLOC_KIND_DEVICE);
}

static char *allocate(void)
{
    char *pointer;
    OK(cudaMalloc((void **)&pointer, BYTES));
    return pointer;
}

static void check_live(uint64_t allocations, uint64_t bytes)
{
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.live_allocations == allocations && stats.live_bytes == bytes);
}

/* Three names, freed in every order. */
static void any_order(void)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        char *base = allocate(), *names[3] = {base, base + 4096, elsewhere};
        OK(cachealloc_alias(base, names[1]));
        OK(cachealloc_alias(names[1], names[2])); /* an alias of an alias */
        check_live(1, BYTES);
        for (size_t freed = 0; freed < 3; freed++) {
            char *name = names[orders[i][freed]];
            check_names(name, base, 3 - freed);
            OK(cudaMemset(base, (int)freed, BYTES));
            OK(cudaFree(name));
            wrong(cudaFree(name));
            check_live(freed < 2, freed < 2 ? BYTES : 0);
        }
        for (size_t n = 0; n < 3; n++)
            wrong(cudaFree(names[n]));
    }
}

static void memory_is_kept(void)
{
    uint64_t pending = api_stats().pending_bytes;
    char *base = allocate(), *others[200];
    bool pooled = api_info(base).block_bytes > 0;
    OK(cachealloc_alias(base, base + 8));
    OK(cudaMemset(base, 42, BYTES));
    OK(cudaFree(base));
    CHECK(api_stats().pending_bytes == pending);
    for (size_t i = 0; i < 200; i++) {
        others[i] = allocate();
        CHECK(others[i] + BYTES <= base || base + BYTES <= others[i]);
        OK(cudaMemset(others[i], 1, BYTES));
    }
    char byte = 0;
    OK(cudaMemcpy(&byte, base + BYTES - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(byte == 42);
    for (size_t i = 0; i < 200; i++)
        OK(cudaFree(others[i]));
    OK(cudaDeviceSynchronize());
    cachealloc_trim();
    CHECK(api_stats().pending_bytes == 0);
    OK(cudaFree(base + 8));
    CHECK(!pooled || api_stats().pending_bytes >= BYTES);
}

/* An alias that comes and goes leaves an allocation like any other. */
static void one_name_again(void)
{
    char *base = allocate();
    for (int i = 0; i < 3; i++) {
        OK(cachealloc_alias(base, base + 1));
        OK(cudaFree(base + 1));
        check_names(base, base, 1);
    }
    wrong(cudaFree(base + 1));
    /* Its own name, freed and given anew. */
    OK(cachealloc_alias(base, base + 1));
    OK(cudaFree(base));
    ANSWERS(ENOENT, cachealloc_alias(base, base + 2));
    OK(cachealloc_alias(base + 1, base));
    ANSWERS(EEXIST, cachealloc_alias(base + 1, base));
    OK(cudaFree(base + 1));
    check_names(base, base, 1);
    OK(cudaFree(base));
}

static void errors(void)
{
    char *one = allocate(), *other = allocate();
    ANSWERS(EINVAL, cachealloc_alias(NULL, elsewhere));
    ANSWERS(EINVAL, cachealloc_alias(one, NULL));
    ANSWERS(ENOENT, cachealloc_alias(elsewhere, one + 1));
    ANSWERS(ENOENT, cachealloc_alias(one + 1, one + 2));
    ANSWERS(EEXIST, cachealloc_alias(one, one));
    ANSWERS(EEXIST, cachealloc_alias(one, other));
    OK(cachealloc_alias(one, elsewhere));
    ANSWERS(EEXIST, cachealloc_alias(one, elsewhere));
    ANSWERS(EEXIST, cachealloc_alias(other, elsewhere));
    OK(cudaFree(one));
    ANSWERS(EEXIST, cachealloc_alias(other, one)); /* which lies in other memory that is live */
    check_names(other, other, 1);
    OK(cudaFree(elsewhere));
    OK(cudaFree(other));
    ANSWERS(ENOENT, cachealloc_alias(other, elsewhere));
}

/* Names of memory of other kinds are freed by those kinds' calls, and by no other. */
static void other_kinds(void)
{
    char *pinned, *managed, *async;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int last = 0; last < 2; last++) {
        OK(cudaMallocHost((void **)&pinned, BYTES));
        OK(cachealloc_alias(pinned, pinned + 64));
        wrong(cudaFree(pinned + 64));
        wrong(cudaFree(pinned));
        OK(cudaFreeHost(last ? pinned : pinned + 64));
        memset(pinned, 1, BYTES);
        wrong(cudaFree(last ? pinned + 64 : pinned));
        OK(cudaFreeHost(last ? pinned + 64 : pinned));
        wrong(cudaFreeHost(pinned));

        OK(cudaMallocManaged((void **)&managed, BYTES, cudaMemAttachGlobal));
        OK(cachealloc_alias(managed, managed + 64));
        wrong(cudaFreeHost(managed + 64));
        OK(cudaFree(last ? managed : managed + 64));
        managed[BYTES - 1] = 1;
        OK(cudaFree(last ? managed + 64 : managed));

        OK(cudaMallocAsync((void **)&async, BYTES, stream));
        OK(cachealloc_alias(async, async + 64));
        CHECK(api_info(async + 64).stream == stream && api_info(async).stream == stream);
        OK(cudaFreeAsync(last ? async : async + 64, stream));
        OK(cudaMemsetAsync(async, 1, BYTES, stream));
        OK(cudaStreamSynchronize(stream)); /* a plain free need not wait for this kind */
        CHECK(last || api_info(async).stream == stream);
        OK(last ? cudaFree(async + 64) : cudaFreeAsync(async, stream));
    }
    OK(cudaStreamDestroy(stream));
    check_live(0, 0);
}

/* The last free is what counts for work in flight, by whichever call it comes. */
static void work_in_flight(bool by_stream)
{
    static gate_t gates[2] = {GATE_CLOSED, GATE_CLOSED};
    unsigned char *seen; /* pinned: a copy to other memory would wait for the gate */
    cudaStream_t held, other;
    char *base = allocate(), *fresh[50];
    OK(cudaMallocHost((void **)&seen, 1));
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cachealloc_alias(base, base + 8));
    OK(cudaMemset(base, 7, BYTES));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(base));
    gate_hold(&gates[by_stream], held);
    OK(cudaMemcpyAsync(seen, base, 1, cudaMemcpyDeviceToHost, held));
    OK(by_stream ? cudaFreeAsync(base + 8, other) : cudaFree(base + 8));
    for (size_t i = 0; i < 50; i++) {
        fresh[i] = allocate();
        CHECK(fresh[i] + BYTES <= base || base + BYTES <= fresh[i]);
        OK(cudaMemsetAsync(fresh[i], 9, BYTES, other));
    }
    gate_open(&gates[by_stream]);
    OK(cudaDeviceSynchronize());
    CHECK(*seen == 7);
    for (size_t i = 0; i < 50; i++)
        OK(cudaFree(fresh[i]));
    OK(cudaFreeHost(seen));
    OK(cudaStreamDestroy(held));
    OK(cudaStreamDestroy(other));
}

static NOINLINE void *lose_buffer(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 54321));
    return pointer;
}

int main(int argc, char **argv)
{
    if (!api_there())
        return 0;
    if (argc > 1 && strcmp(argv[1], "leak") == 0) {
        void *pointer = lose_buffer();
        OK(cachealloc_alias(pointer, elsewhere));
        OK(cachealloc_alias(pointer, elsewhere + 1));
        OK(cudaFree(pointer));
        OK(cudaFree(elsewhere + 1));
        return 0;
    }
    any_order();
    memory_is_kept();
    one_name_again();
    errors();
    other_kinds();
    char *probe = allocate();
    bool pooled = api_info(probe).block_bytes > 0;
    OK(cudaFree(probe));
    if (pooled) { /* the driver's own free would wait for the gate */
        work_in_flight(false);
        work_in_flight(true);
    }
    check_live(0, 0);
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
