/* Memory of this process that another one opens. The other one is a child that is forked before
 * either uses CUDA; it opens what it is told to, keeps it open, and says whether all bytes are what
 * they should be.
 *
 *   ipc offsets       what UCX and NCCL do: handle of the range's base, and the offset
 *   ipc own BYTES     a handle for each pointer, opened at offset 0: says for each of four blocks
 *                     whether the other process sees it ("right", "other"), or the code without one
 *   ipc pool          what a pool of the program's own does (PyTorch's): pieces of its sizes, some
 *                     little ones between, each piece opened at offset 0 as the first of its kind
 *   ipc kept MIB      a block is exported by its own pointer and freed; a thousand others come
 *   ipc base MIB      the same, exported by the base of its range
 *   ipc memory        what is exported stays when memory is trimmed and when it runs out, until
 *                     nothing lives beside it
 *   ipc held          of two blocks of 1 MiB one is exported and freed, the other lives at the end
 *   ipc loop          memory is allocated, exported and freed, again and again: it goes back
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
    OK(cudaIpcOpenMemHandle(&base, order->handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaMemcpy(copy, (char *)base + order->offset, order->bytes, cudaMemcpyDeviceToHost));
    /* Each byte is the one before it: megabytes are compared here, in a program not optimised. */
    bool same = copy[0] == order->value && memcmp(copy, copy + 1, order->bytes - 1) == 0;
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

/* What becomes of a handle of `p`, whose bytes are all `value`. */
static void say(void *p, size_t bytes, unsigned char value)
{
    order_t order = {.bytes = bytes, .value = value};
    cudaError_t code = cudaIpcGetMemHandle(&order.handle, p);
    if (code == cudaSuccess)
        puts(other_sees(&order) ? "right" : "other");
    else
        printf("%d\n", (int)cudaGetLastError());
}

static void own(size_t bytes)
{
    void *blocks[4];
    for (unsigned i = 0; i < 2; i++) /* the second one lies behind the first */
        blocks[i] = filled(bytes, (unsigned char)(i + 1));
    for (unsigned i = 0; i < 4; i++) {
        if (i > 1)
            blocks[i] = filled(bytes, (unsigned char)(i + 1));
        say(blocks[i], bytes, (unsigned char)(i + 1));
    }
    for (unsigned i = 0; i < 4; i++)
        OK(cudaFree(blocks[i]));
}

static void pool(void)
{
    static const size_t pieces[] = {2, 20, 2, 16, 20, 34, 20, 2, 20};
    enum { COUNT = sizeof(pieces) / sizeof(pieces[0]), ROUNDS = 3 };
    void *blocks[COUNT * ROUNDS], *little[COUNT];
    for (unsigned i = 0; i < COUNT * ROUNDS; i++) {
        if (i % ROUNDS == 0) /* of other libraries */
            OK(cudaMalloc(&little[i / ROUNDS], 700));
        blocks[i] = filled(pieces[i % COUNT] * MIB, (unsigned char)(i + 1));
    }
    for (unsigned i = COUNT; i < 2 * COUNT; i++) { /* some are given up, and asked for again */
        OK(cudaFree(blocks[i]));
        blocks[i] = filled(pieces[i % COUNT] * MIB, (unsigned char)(i + 1));
    }
    for (unsigned i = 0; i < COUNT * ROUNDS; i++)
        say(blocks[i], pieces[i % COUNT] * MIB, (unsigned char)(i + 1));
    for (unsigned i = 0; i < COUNT * ROUNDS; i++)
        OK(cudaFree(blocks[i]));
    for (unsigned i = 0; i < COUNT; i++)
        OK(cudaFree(little[i]));
}

static bool overlap(const char *a, const char *b, size_t bytes)
{
    return a < b + bytes && b < a + bytes;
}

/* Freed memory that has passed; what is idle goes back. */
static size_t exported_bytes(void)
{
    OK(cudaDeviceSynchronize());
    cachealloc_trim();
    return api_stats().exported_bytes;
}

static void kept(size_t bytes, bool by_base)
{
    enum { LIVE = 8 };
    void *first = filled(bytes, 2), *second = filled(bytes, 2), *held[LIVE] = {NULL};
    char *p = by_base ? second : first; /* what begins its segment has a handle of its own */
    void *beside = by_base ? first : second;
    order_t order = by_base ? by_offset(p, bytes, 2) : by_pointer(p, bytes, 2);
    order.offset = (size_t)(p - base_of(p));
    CHECK(other_sees(&order));
    OK(cudaFree(p));
    bool shares = bytes < 2 * MIB; /* a segment with others */
    size_t stays = exported_bytes();
    printf("kept %zu\n", stays);
    for (unsigned i = 0; i < 1000; i++) {
        OK(cudaFree(held[i % LIVE]));
        held[i % LIVE] = filled(bytes, 3);
        CHECK(!shares || !overlap(held[i % LIVE], p, bytes));
    }
    CHECK(!shares || other_sees(&order));
    for (unsigned i = 0; i < LIVE; i++)
        OK(cudaFree(held[i]));
    CHECK(exported_bytes() == stays);
    OK(cudaFree(beside));
    CHECK(exported_bytes() == 0 && api_stats().reserved_bytes == 0);
}

static void memory(void)
{
    size_t bytes = 3 * MIB + 512, left, total, after;
    void *p = filled(bytes, 1), *beside = filled(MIB, 2), *big = NULL;
    CHECK(base_of(p) == base_of(beside));
    order_t order = by_offset(p, bytes, 1);
    CHECK(other_sees(&order));
    OK(cudaFree(p));
    size_t stays = exported_bytes();
    CHECK(stays >= bytes && stays < bytes + 8192 && other_sees(&order));
    OK(cudaMemGetInfo(&left, &total));
    CHECK(left < total - bytes && api_stats().idle_bytes == 0); /* it is not free to anybody */
    OK(cudaMalloc(&big, left - 16 * MIB));
    OK(cudaFree(big));
    CHECK(exported_bytes() == stays && other_sees(&order));
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&big, total - 2 * MIB));
    (void)cudaGetLastError();
    CHECK(other_sees(&order));
    OK(cudaFree(beside));
    CHECK(exported_bytes() == 0);
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == total);
}

static void held(void)
{
    void *p = filled(MIB, 1);
    static void *beside; /* a leak */
    beside = filled(MIB, 2);
    order_t order = by_pointer(p, MIB, 1);
    CHECK(other_sees(&order) && beside);
    OK(cudaFree(p));
    CHECK(exported_bytes() == MIB);
}

static void loop(void)
{
    static const size_t sizes[] = {8 * MIB, 5 * MIB + 100, 8 * MIB, 100000, 40 * MIB};
    size_t before, after, total;
    void *p;
    OK(cudaMemGetInfo(&before, &total));
    for (unsigned i = 0; i < 100; i++) {
        size_t bytes = sizes[i % (sizeof(sizes) / sizeof(sizes[0]))];
        OK(cudaMalloc(&p, bytes));
        by_offset(p, bytes, 0);
        OK(cudaFree(p));
    }
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after >= before - 10 * MIB);
    if (api_there())
        CHECK(api_stats().exported_bytes < MIB);
    OK(cudaMalloc(&p, before - 16 * MIB)); /* one large array */
    OK(cudaFree(p));
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
    size_t bytes = number_argument(argc, argv, 2, 4);
    other_start();
    if (strcmp(what, "offsets") == 0)
        offsets();
    else if (strcmp(what, "own") == 0)
        own(bytes);
    else if (strcmp(what, "pool") == 0)
        pool();
    else if (strcmp(what, "kept") == 0 || strcmp(what, "base") == 0)
        kept(bytes * MIB, strcmp(what, "base") == 0);
    else if (strcmp(what, "memory") == 0)
        memory();
    else if (strcmp(what, "held") == 0)
        held();
    else if (strcmp(what, "loop") == 0)
        loop();
    else
        refused();
    other_end();
    return 0;
}
