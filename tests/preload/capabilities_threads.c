/* As capabilities.c: those that need several threads.
 *
 * capabilities_threads CASE    fails with a message, or ends well */
#include <pthread.h>
#include "api.h"

#define MIB ((size_t)1 << 20)
#define THREADS 8

static char *take(size_t bytes)
{
    char *pointer;
    OK(cudaMalloc((void **)&pointer, bytes));
    return pointer;
}

static uint64_t upstream(void)
{
    return api_stats().upstream_allocs;
}

static void on_threads(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));
}

enum { OWN = 1000 };
static char *found[THREADS][OWN];
static pthread_barrier_t together;

static size_t size_of(size_t thread, size_t i)
{
    return 1 + thread * OWN + i;
}

/* All threads add, ask and take away at the same time, and each frees what another one made. */
static void *map_thread(void *number)
{
    size_t self = (size_t)(uintptr_t)number, neighbour = (self + 1) % THREADS;
    for (size_t i = 0; i < OWN; i++)
        found[self][i] = take(size_of(self, i));
    pthread_barrier_wait(&together);
    for (size_t i = 0; i < OWN; i++) {
        cachealloc_info_t info = api_info(found[neighbour][i]);
        CHECK(info.base == found[neighbour][i] && info.bytes == size_of(neighbour, i));
    }
    pthread_barrier_wait(&together);
    if (self == 0)
        CHECK(api_stats().live_allocations == THREADS * OWN);
    pthread_barrier_wait(&together);
    for (size_t i = 0; i < OWN; i++) {
        OK(cudaFree(found[neighbour][i]));
        api_unknown(found[neighbour][i]);
    }
    return NULL;
}

static void map(void)
{
    OK(pthread_barrier_init(&together, NULL, THREADS));
    on_threads(map_thread);
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.live_allocations == 0 && stats.live_bytes == 0 && stats.wrong_frees == 0);
    CHECK(stats.live_peak_bytes == (size_t)THREADS * OWN * (THREADS * OWN + 1) / 2);
}

/* Threads that use and free buffers of their own at the same time; nobody else's is among them. */
static void *workspace_thread(void *number)
{
    size_t self = (size_t)(uintptr_t)number, bytes = (64 + 8 * self) << 10;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int round = 0; round < 500; round++) {
        unsigned char *memory = (unsigned char *)take(bytes), seen[2];
        int value = (int)self * 16 + round % 16;
        OK(cudaMemsetAsync(memory, value, bytes, stream));
        OK(cudaMemcpyAsync(&seen[0], memory, 1, cudaMemcpyDeviceToHost, stream));
        OK(cudaMemcpyAsync(&seen[1], memory + bytes - 1, 1, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        CHECK(seen[0] == value && seen[1] == value);
        OK(cudaFree(memory));
    }
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void workspaces(void)
{
    on_threads(workspace_thread);
    OK(cudaDeviceSynchronize());
    on_threads(workspace_thread);
    /* For 8,000 pairs. How much is pending at once depends on the scheduler: up to 64 MiB more than
     * what lives may be had, in segments of 8 MiB or so. */
    CHECK(upstream() <= 64 / 8 + THREADS + 2);
}

/* Each thread leaves a free block of its own size. Requests of one thread for
 * which one of them alone is large enough find it. Then of three blocks that one thread made
 * each request takes the one that it fits best. */
static char *left[THREADS];

static size_t left_bytes(size_t i)
{
    return (66 + 4 * i) * MIB; /* a segment of its own */
}

static void *leave_thread(void *number)
{
    size_t self = (size_t)(uintptr_t)number;
    left[self] = take(left_bytes(self));
    pthread_barrier_wait(&together);
    OK(cudaFree(left[self]));
    return NULL;
}

static void expect(char *there, size_t i)
{
    char *pointer = take(left_bytes(i) - 2 * MIB);
    CHECK(pointer == there);
}

static void hints(void)
{
    char *mine[3];
    OK(pthread_barrier_init(&together, NULL, THREADS));
    on_threads(leave_thread);
    OK(cudaDeviceSynchronize());
    CHECK(upstream() == THREADS);
    for (size_t i = THREADS; i-- > 0;)
        expect(left[i], i);
    CHECK(upstream() == THREADS);

    for (size_t i = 0; i < 3; i++)
        mine[i] = take(left_bytes(i));
    for (size_t i = 0; i < 3; i++)
        OK(cudaFree(mine[i]));
    OK(cudaDeviceSynchronize());
    expect(mine[2], 2); /* was freed last: with it, all are known to be free */
    expect(mine[0], 0);
    expect(mine[1], 1);
    CHECK(upstream() == THREADS + 3);
    for (size_t i = 0; i < 3; i++)
        OK(cudaFree(mine[i]));
    for (size_t i = 0; i < THREADS; i++)
        OK(cudaFree(left[i]));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"map", map}, {"workspaces", workspaces}, {"hints", hints}};
    CHECK(argc > 1 && api_there());
    OK(cudaFree(NULL)); /* threads that make the context together go to the driver meanwhile */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("unknown case %s", argv[1]);
}
