/* An illegal access spoils the context: from then on calls succeed or report that access, and
 * nothing else; after a reset everything works again. Needs the simulator, whose fills reach any
 * address. sticky [ROUNDS [THREADS]]: other threads allocate and free all the while. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include "check.h"
#include "shim_stats.h"

#define BUFFERS 80
#define THREADS_MOST 8

static void *buffers[BUFFERS];
static atomic_bool over;

static size_t bytes_of(size_t i)
{
    return (size_t)1000 << (i % 13);
}

#define LEGAL(call)                                                                                \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess && code_ != cudaErrorIllegalAddress)                              \
            FAIL("%s answered %d", #call, (int)code_);                                             \
    } while (0)

/* Memory that works, from the first byte to the last; `kept` of it stays allocated. */
static void use(size_t kept)
{
    for (size_t i = 0; i < BUFFERS; i++) {
        unsigned char last = 0xFF;
        OK(cudaMalloc(&buffers[i], bytes_of(i)));
        OK(cudaMemset(buffers[i], (int)i, bytes_of(i)));
        OK(cudaMemcpy(&last, (char *)buffers[i] + bytes_of(i) - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(last == i);
    }
    for (size_t i = kept; i < BUFFERS; i++)
        OK(cudaFree(buffers[i]));
}

/* Until told to stop, on a context that may be spoilt or gone at any moment. */
static void *churn(void *number)
{
    uint64_t random = 1 + (uint64_t)(uintptr_t)number;
    while (!atomic_load(&over)) {
        void *pointer = NULL;
        LEGAL(cudaMalloc(&pointer, 1 + next_random(&random) % 3000000));
        if (pointer)
            LEGAL(cudaFree(pointer));
        LEGAL(cudaGetLastError());
    }
    return NULL;
}

static void spoil(void)
{
    (void)cudaMemsetAsync((char *)buffers[0] + ((size_t)1 << 38), 1, 64, NULL);
    if (cudaDeviceSynchronize() != cudaErrorIllegalAddress) {
        puts("needs a fill of an illegal address to be submitted");
        exit(77);
    }
}

static void use_spoilt(void)
{
    for (size_t i = 0; i < 4 * BUFFERS; i++) {
        size_t available, total;
        void *pointer = NULL;
        LEGAL(cudaMalloc(&pointer, bytes_of(i)));
        if (pointer)
            LEGAL(cudaFree(pointer));
        LEGAL(cudaMemGetInfo(&available, &total));
        LEGAL(cudaGetLastError());
    }
    for (size_t i = 0; i < BUFFERS / 2; i++)
        LEGAL(cudaFree(buffers[i]));
    if (cachealloc_trim)
        (void)cachealloc_trim();
    ANSWERS(cudaErrorIllegalAddress, cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MOST];
    uint64_t rounds = number_argument(argc, argv, 1, 3);
    uint64_t count = number_argument(argc, argv, 2, 0);
    cachealloc_stats_t stats;
    CHECK(count <= THREADS_MOST);
    for (uint64_t round = 0; round < rounds; round++) {
        atomic_store(&over, false);
        use(BUFFERS / 2);
        for (uint64_t i = 0; i < count; i++)
            OK(pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)i));
        spoil();
        use_spoilt();
        atomic_store(&over, true);
        for (uint64_t i = 0; i < count; i++)
            OK(pthread_join(threads[i], NULL));
        OK(cudaDeviceReset());
        (void)cudaGetLastError();
    }
    use(0);
    uint64_t hits = shim_stats(&stats) ? stats.hits : 0;
    use(0);
    if (shim_stats(&stats))
        CHECK(stats.hits - hits >= BUFFERS && stats.live_bytes == 0);
    if (argc > 3) { /* the process may also end with its context spoilt */
        use(1);
        spoil();
    }
    return 0;
}
