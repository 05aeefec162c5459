/* A buffer is freed while work that uses it is held up behind a gate, and one of the same size is
 * allocated.
 *
 * held room   the free returns at once, and so does the allocation, with another address
 * held kept   the same, with the last memory in the driver's own pool, which keeps it until it is
 *             told to give it back
 * held short  the free returns at once; no memory is left, so the allocation waits until another
 *             thread has opened the gate
 * held plain  the free waits for that thread (the program without the shim)
 * held any    whoever waits, the work sees the old contents
 *
 * held MODE [BYTES] */
#include <stdatomic.h>
#include <time.h>
#include "gate.h"

#define HOGS_MOST 65536
#define OPEN_AFTER_NS 50000000 /* longer than the pool's bounded wait */

static gate_t gate = GATE_CLOSED;
static atomic_bool let_go, opened;
static void *hogs[HOGS_MOST];
static size_t hog_count;

/* Lets time pass before it opens the gate: nothing tells that the main thread is waiting. A wait
 * that ends too early is told from `opened`, however long this takes. */
static void *open_later(void *unused)
{
    struct timespec while_waiting = {.tv_nsec = OPEN_AFTER_NS}, step = {.tv_nsec = 100000};
    while (!atomic_load(&let_go))
        nanosleep(&step, NULL);
    nanosleep(&while_waiting, NULL);
    atomic_store(&opened, true);
    gate_open(&gate);
    return unused;
}

static void occupy(size_t least)
{
    size_t available, total;
    OK(cudaMemGetInfo(&available, &total));
    for (size_t size = available; size > least;) {
        size = size / 2 > least ? size / 2 : least;
        while (hog_count < HOGS_MOST && cudaMalloc(&hogs[hog_count], size) == cudaSuccess)
            hog_count++;
    }
    CHECK(hog_count < HOGS_MOST);
    ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
}

/* The driver's pool is given all that there is, and keeps it. */
static void fill_pool(cudaStream_t stream)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    size_t available, total;
    void *memory;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    OK(cudaMemGetInfo(&available, &total));
    OK(cudaMallocAsync(&memory, available, stream));
    OK(cudaFreeAsync(memory, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemGetInfo(&available, &total));
    CHECK(available == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    bool is_short = strcmp(argv[1], "short") == 0, plain = strcmp(argv[1], "plain") == 0;
    bool any = strcmp(argv[1], "any") == 0, kept = strcmp(argv[1], "kept") == 0;
    CHECK(any || plain || is_short || kept || strcmp(argv[1], "room") == 0);
    size_t bytes = number_argument(argc, argv, 2, (size_t)16 << 20);
    unsigned char *seen;
    char *in_use, *fresh;
    cudaStream_t held, other;
    pthread_t opener;
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&seen, 1));
    OK(cudaMalloc((void **)&in_use, bytes));
    OK(cudaMemset(in_use, 42, bytes));
    OK(cudaDeviceSynchronize());
    if (is_short)
        occupy(bytes);
    if (kept)
        fill_pool(other);
    OK(pthread_create(&opener, NULL, open_later, NULL));

    gate_hold(&gate, held);
    OK(cudaMemcpyAsync(seen, in_use + bytes - 1, 1, cudaMemcpyDeviceToHost, held));
    atomic_store(&let_go, plain || any);
    OK(cudaFree(in_use));
    CHECK(any || atomic_load(&opened) == plain);
    atomic_store(&let_go, is_short || plain || any);
    OK(cudaMalloc((void **)&fresh, bytes));
    if (is_short)
        CHECK(atomic_load(&opened));
    if (!is_short && !plain && !any) {
        CHECK(!atomic_load(&opened) && cudaStreamQuery(held) == cudaErrorNotReady);
        CHECK(fresh + bytes <= in_use || in_use + bytes <= fresh);
    }
    OK(cudaMemsetAsync(fresh, 7, bytes, other));
    OK(cudaStreamSynchronize(other));
    atomic_store(&let_go, true);
    OK(pthread_join(opener, NULL));
    OK(cudaStreamSynchronize(held));
    CHECK(*seen == 42);

    OK(cudaFree(fresh));
    while (hog_count > 0)
        OK(cudaFree(hogs[--hog_count]));
    OK(cudaFreeHost(seen));
    return 0;
}
