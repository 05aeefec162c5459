/* The machine has little memory to pin.
 *
 * pinned_short count      how many buffers of 1 MiB there are; then all of it in one piece
 * pinned_short flags      memory cached with some flags is there for requests with others
 * pinned_short held       the same while work that was submitted after the free waits for this very
 *                         thread: the request may be refused, but must come back
 * pinned_short busy       the same while work takes its time: the request waits */
#include "gate.h"
#include <time.h>

#define MIB ((size_t)1 << 20)
#define MOST 1000
#define STEP ((size_t)64 << 10)

/* A byte of each step and the last one: to touch every page takes longer than all else. */
static void use(char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += STEP)
        at[i] = 1;
    at[bytes - 1] = 1;
}

static void count(void)
{
    static void *hosts[MOST];
    size_t got = 0;
    while (got < MOST && cudaMallocHost(&hosts[got], MIB) == cudaSuccess)
        got++;
    ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
    printf("%zu\n", got);
    for (size_t i = 0; i < got; i++)
        OK(cudaFreeHost(hosts[i]));
    OK(cudaMallocHost(&hosts[0], got * MIB));
    use(hosts[0], got * MIB);
    OK(cudaFreeHost(hosts[0]));
}

static void *take_and_free(size_t bytes, unsigned flags)
{
    void *host;
    OK(cudaHostAlloc(&host, bytes, flags));
    use(host, bytes);
    OK(cudaFreeHost(host));
    return host;
}

static void flags(void)
{
    for (unsigned i = 0; i < 16; i++)
        take_and_free(48 * MIB, i % 8);
}

static void take_time(void *unused)
{
    struct timespec pause = {.tv_nsec = 200000000};
    (void)unused;
    nanosleep(&pause, NULL);
}

static void under_work(bool held)
{
    static gate_t gate = GATE_CLOSED;
    cudaStream_t stream;
    void *host = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    take_and_free(48 * MIB, cudaHostAllocDefault);
    if (held)
        gate_hold(&gate, stream);
    else
        OK(cudaLaunchHostFunc(stream, take_time, NULL));
    cudaError_t code = cudaHostAlloc(&host, 48 * MIB, cudaHostAllocPortable);
    gate_open(&gate);
    printf("%d\n", (int)code);
    CHECK(code == cudaSuccess || (held && code == cudaErrorMemoryAllocation));
    OK(cudaStreamSynchronize(stream));
    OK(cudaFreeHost(code == cudaSuccess ? host : NULL));
    take_and_free(48 * MIB, cudaHostAllocPortable);
    OK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (strcmp(argv[1], "count") == 0)
        count();
    else if (strcmp(argv[1], "flags") == 0)
        flags();
    else
        under_work(strcmp(argv[1], "held") == 0);
    return 0;
}
