/* Memory of this process that another one opens. The other one is a child that is forked before
 * either uses CUDA; it opens what it is told to, keeps it open, and says whether all bytes are what
 * they should be.
 *
 *   ipc offsets       what UCX and NCCL do: handle of the range's base, and the offset
 *   ipc own MIB       a handle for each pointer, opened at offset 0: says for each of four blocks
 *                     whether the other process sees it ("right", "other")
 *   ipc kept MIB      a block is exported by its own pointer and freed; a thousand others come
 *   ipc base MIB      the same, exported by the base of its range
 *   ipc memory        what is exported stays when memory is trimmed and when it runs out
 *   ipc refused       a handle that could not be had changes nothing
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>
#include "api.h"

#define MIB ((size_t)1 << 20)

typedef struct order {
    cudaIpcMemHandle_t handle;
    size_t offset, bytes;
    unsigned char value;
} order_t;

static int to_other = -1, from_other = -1;
static pid_t other;

/* --- the other process ------------------------------------------------------------------------ */

static bool sees(const order_t *order)
{
    void *base = NULL;
    unsigned char *copy = malloc(order->bytes);
    bool same = true;
    OK(cudaIpcOpenMemHandle(&base, order->handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaMemcpy(copy, (char *)base + order->offset, order->bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < order->bytes; i++)
        same &= copy[i] == order->value;
    free(copy);
    return same;
}

static void other_main(int in, int out)
{
    order_t order;
    while (read(in, &order, sizeof(order)) == sizeof(order)) {
        char answer = sees(&order) ? 'y' : 'n';
        CHECK(write(out, &answer, 1) == 1);
    }
    exit(0);
}

static void other_start(void)
{
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    other = fork();
    if (other == 0) {
        close(to[1]);
        close(from[0]);
        other_main(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    to_other = to[1];
    from_other = from[0];
}

static void other_end(void)
{
    int status = -1;
    close(to_other);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
}

static bool other_sees(const order_t *order)
{
    char answer = 0;
    CHECK(write(to_other, order, sizeof(*order)) == sizeof(*order));
    CHECK(read(from_other, &answer, 1) == 1);
    return answer == 'y';
}

/* --- this one --------------------------------------------------------------------------------- */

static void *filled(size_t bytes, unsigned char value)
{
    void *p = NULL;
    OK(cudaMalloc(&p, bytes));
    OK(cudaMemset(p, value, bytes));
    OK(cudaDeviceSynchronize());
    return p;
}

static char *base_of(const void *p)
{
    static CUresult(CUDAAPI * range)(CUdeviceptr *, size_t *, CUdeviceptr);
    CUdeviceptr base = 0;
    size_t bytes;
    if (!range)
        OK(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", (void **)&range, 3020,
                                            cudaEnableDefault, NULL));
    OK(range(&base, &bytes, (CUdeviceptr)(uintptr_t)p));
    return (char *)(uintptr_t)base; /* NOLINT: as the interface has it */
}

static order_t by_offset(void *p, size_t bytes, unsigned char value)
{
    char *base = base_of(p);
    order_t order = {.offset = (size_t)((char *)p - base), .bytes = bytes, .value = value};
    OK(cudaIpcGetMemHandle(&order.handle, base));
    return order;
}

static order_t by_pointer(void *p, size_t bytes, unsigned char value)
{
    order_t order = {.bytes = bytes, .value = value};
    OK(cudaIpcGetMemHandle(&order.handle, p));
    return order;
}

static void offsets(void)
{
    static const size_t sizes[] = {512, 4096, 100000, MIB, 3 * MIB, 2 * MIB, 20 * MIB, 1};
    enum { COUNT = sizeof(sizes) / sizeof(sizes[0]), ROUNDS = 3 };
    void *blocks[COUNT * ROUNDS];
    order_t orders[COUNT * ROUNDS];
    for (unsigned i = 0; i < COUNT * ROUNDS; i++) {
        blocks[i] = filled(sizes[i % COUNT], (unsigned char)(i + 1));
        orders[i] = by_offset(blocks[i], sizes[i % COUNT], (unsigned char)(i + 1));
        CHECK(other_sees(&orders[i]));
    }
    for (unsigned i = 0; i < COUNT * ROUNDS; i++) /* and all still do */
        CHECK(other_sees(&orders[i]));
    /* One that remembers a range does not ask again for what it has the handle of. */
    void *later = filled(512, 99);
    for (unsigned i = 0; i < COUNT * ROUNDS; i++) {
        order_t order = orders[i];
        if (base_of(blocks[i]) != base_of(later))
            continue;
        order.offset = (size_t)((char *)later - base_of(later));
        order.bytes = 512;
        order.value = 99;
        CHECK(other_sees(&order));
    }
    OK(cudaFree(later));
    for (unsigned i = 0; i < COUNT * ROUNDS; i++)
        OK(cudaFree(blocks[i]));
}

static void own(size_t bytes)
{
    void *blocks[4];
    order_t order;
    for (unsigned i = 0; i < 2; i++) /* the second one lies behind the first */
        blocks[i] = filled(bytes, (unsigned char)(i + 1));
    for (unsigned i = 0; i < 4; i++) {
        if (i > 1)
            blocks[i] = filled(bytes, (unsigned char)(i + 1));
        order = by_pointer(blocks[i], bytes, (unsigned char)(i + 1));
        puts(other_sees(&order) ? "right" : "other");
    }
    for (unsigned i = 0; i < 4; i++)
        OK(cudaFree(blocks[i]));
}

static bool overlap(const char *a, const char *b, size_t bytes)
{
    return a < b + bytes && b < a + bytes;
}

static void kept(size_t bytes, bool by_base)
{
    enum { LIVE = 8 };
    void *before = filled(bytes, 1), *held[LIVE] = {NULL};
    char *p = filled(bytes, 2);
    order_t order = by_base ? by_offset(p, bytes, 2) : by_pointer(p, bytes, 2);
    order.offset = (size_t)(p - base_of(p));
    CHECK(other_sees(&order));
    OK(cudaFree(p));
    for (unsigned i = 0; i < 1000; i++) {
        OK(cudaFree(held[i % LIVE]));
        held[i % LIVE] = filled(bytes, 3);
        CHECK(!overlap(held[i % LIVE], p, bytes));
    }
    CHECK(other_sees(&order));
    for (unsigned i = 0; i < LIVE; i++)
        OK(cudaFree(held[i]));
    OK(cudaFree(before));
    if (api_there()) {
        cachealloc_stats_t stats = api_stats();
        CHECK(stats.exported_bytes >= bytes && stats.block_bytes == 0);
        CHECK(stats.pending_bytes + stats.ready_bytes + stats.exported_bytes ==
              stats.reserved_bytes);
        printf("kept %zu\n", (size_t)stats.exported_bytes);
    }
    CHECK(other_sees(&order));
}

/* By the segment: nothing that the pool may give includes it. */
static void memory(void)
{
    size_t left, total, after;
    void *p = filled(32 * MIB, 1), *more = filled(32 * MIB, 2), *big = NULL;
    order_t order = by_offset(p, 32 * MIB, 1);
    CHECK(other_sees(&order));
    OK(cudaFree(p));
    OK(cudaFree(more));
    OK(cudaDeviceSynchronize());
    size_t given = cachealloc_trim();
    CHECK(other_sees(&order));
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.exported_bytes == 32 * MIB && stats.idle_bytes == 0);
    CHECK(stats.reserved_bytes == 32 * MIB && given == 32 * MIB);
    OK(cudaMemGetInfo(&left, &total));
    CHECK(left == total - 32 * MIB); /* it is not free to anybody */
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&big, total - 16 * MIB));
    (void)cudaGetLastError();
    CHECK(other_sees(&order));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == left);
    OK(cudaMalloc(&big, left - 16 * MIB));
    OK(cudaFree(big));
    CHECK(other_sees(&order));
}

/* SIMCUDA=fail:cuIpcGetMemHandle@1 */
static void refused(void)
{
    cudaIpcMemHandle_t handle;
    void *before = filled(4 * MIB, 1), *p = filled(4 * MIB, 2), *again;
    CHECK(cudaIpcGetMemHandle(&handle, p) != cudaSuccess);
    (void)cudaGetLastError();
    OK(cudaFree(p));
    OK(cudaDeviceSynchronize());
    cachealloc_trim(); /* looks at what has passed */
    CHECK(api_stats().exported_bytes == 0);
    OK(cudaMalloc(&again, 4 * MIB));
    CHECK(again == p);
    OK(cudaFree(again));
    OK(cudaFree(before));
    CHECK(cachealloc_trim() > 0 && api_stats().reserved_bytes == 0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "offsets";
    size_t bytes = number_argument(argc, argv, 2, 4) * MIB;
    other_start();
    if (strcmp(what, "offsets") == 0)
        offsets();
    else if (strcmp(what, "own") == 0)
        own(bytes);
    else if (strcmp(what, "kept") == 0 || strcmp(what, "base") == 0)
        kept(bytes, strcmp(what, "base") == 0);
    else if (strcmp(what, "memory") == 0)
        memory();
    else
        refused();
    other_end();
    return 0;
}
