/* Several threads of one context: what is promised of the pool holds for all of them. They leave
 * memory behind; the rest is asked by the program's own thread.
 *
 * threads_leave full    what the others left idle makes room (256 MiB of device)
 * threads_leave trim    a trim reaches all, in pin mode none
 * threads_leave limit   they have no more than the limit together (limit:64M)
 * threads_leave reset   all goes with the context, and comes again
 * threads_leave fork    the child has none of it, and no CUDA */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "api.h"

#define MIB ((size_t)1 << 20)
#define THREADS 8

static pthread_barrier_t together;
static char *held[THREADS];
static size_t each;

static void *leave_thread(void *number)
{
    size_t self = (size_t)(uintptr_t)number;
    OK(cudaMalloc((void **)&held[self], each));
    OK(cudaMemset(held[self], (int)self, each));
    pthread_barrier_wait(&together); /* none has another's */
    unsigned char seen;
    OK(cudaMemcpy(&seen, held[self] + each - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(seen == self);
    OK(cudaFree(held[self]));
    return NULL;
}

static void on_threads(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));
}

static void leave(size_t bytes)
{
    each = bytes;
    OK(cudaFree(NULL)); /* threads that make the context together go to the driver meanwhile */
    on_threads(leave_thread);
    OK(cudaDeviceSynchronize());
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.reserved_bytes >= THREADS * bytes && stats.block_bytes == 0);
    CHECK(stats.reserved_peak_bytes >= stats.reserved_bytes);
    CHECK(stats.pending_bytes + stats.ready_bytes == stats.reserved_bytes);
    CHECK(stats.idle_bytes == stats.reserved_bytes);
}

static void full(void)
{
    void *large, *more = NULL;
    leave(25 * MIB);
    OK(cudaMalloc(&large, 240 * MIB));
    OK(cudaMemset(large, 1, 240 * MIB));
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&more, 240 * MIB));
    OK(cudaFree(large));
    leave(25 * MIB);
}

static void trim(void)
{
    leave(10 * MIB);
    size_t reserved = api_stats().reserved_bytes;
    OK(cachealloc_set_pin_mode(1));
    CHECK(cachealloc_trim() == 0);
    OK(cachealloc_set_pin_mode(0));
    CHECK(cachealloc_trim() == reserved);
    CHECK(api_stats().reserved_bytes == 0 && api_stats().segments == 0);
}

static void *limit_thread(void *number)
{
    void **mine = (void **)&held[(uintptr_t)number];
    for (int round = 0; round < 200; round++) {
        *mine = NULL;
        cudaError_t code = cudaMalloc(mine, (size_t)(1 + round % 12) * MIB);
        CHECK(code == cudaSuccess || code == cudaErrorMemoryAllocation);
        CHECK(api_stats().reserved_bytes <= 64 * MIB);
        if (code == cudaSuccess)
            OK(cudaFree(*mine));
        else
            ANSWERS(code, cudaGetLastError());
    }
    return NULL;
}

static void limit(void)
{
    on_threads(limit_thread);
    void *whole;
    OK(cudaMalloc(&whole, 64 * MIB));
    OK(cudaFree(whole));
    CHECK(api_stats().reserved_peak_bytes <= 64 * MIB);
}

static void reset(void)
{
    for (int i = 0; i < 3; i++) {
        leave(10 * MIB);
        OK(cudaMalloc((void **)&held[0], MIB)); /* lost */
        OK(cudaDeviceReset());
        CHECK(api_stats().reserved_bytes == 0);
    }
}

static void child(void)
{
    leave(10 * MIB);
    pid_t pid = fork();
    if (pid == 0) {
        void *pointer;
        CHECK(cudaMalloc(&pointer, 1) != cudaSuccess);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    leave(10 * MIB);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"full", full}, {"trim", trim}, {"limit", limit}, {"reset", reset}, {"fork", child}};
    if (!api_there())
        return 0;
    OK(pthread_barrier_init(&together, NULL, THREADS));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (argc > 1 && strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("unknown case");
}
