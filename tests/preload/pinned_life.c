/* Pinned memory over the life of a process.
 *
 * pinned_life reset    contexts are reset under cached and live memory
 * pinned_life fork     the child can do nothing with it and leaves the parent's alone
 * pinned_life zero     whether reused memory is clean or dirty
 * pinned_life barrier  whether cudaFreeHost waited for work that takes its time
 * pinned_life held     it does not wait for work that ends after it
 * pinned_life leak     5555 and 70000 bytes are forgotten, one more of each is not */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gate.h"
#include "slow_work.h"

#define BUFFERS 40

static unsigned char *get(size_t bytes, unsigned flags)
{
    unsigned char *host;
    OK(cudaHostAlloc((void **)&host, bytes, flags));
    return host;
}

static void reset(void)
{
    unsigned char *hosts[BUFFERS];
    void *device;
    for (int round = 0; round < 10; round++) {
        for (unsigned i = 0; i < BUFFERS; i++) {
            hosts[i] = get(5000u * (i + 1), i % 8);
            memset(hosts[i], (int)i, 5000u * (i + 1));
        }
        for (unsigned i = 0; i < BUFFERS; i += 2)
            OK(cudaFreeHost(hosts[i]));
        OK(cudaDeviceReset());
        ANSWERS(cudaErrorInvalidValue, cudaFreeHost(hosts[1]));
        (void)cudaGetLastError();
        /* What comes now is alive: the host may write it, the device may read it. */
        OK(cudaMalloc(&device, 5000));
        for (unsigned i = 0; i < BUFFERS; i++) {
            hosts[i] = get(5000u * (i + 1), i % 8);
            memset(hosts[i], 3, 5000u * (i + 1));
            OK(cudaMemcpy(device, hosts[i], 5000, cudaMemcpyHostToDevice));
        }
        for (unsigned i = 0; i < BUFFERS; i++)
            OK(cudaFreeHost(hosts[i]));
        OK(cudaFree(device));
    }
}

static void forks(void)
{
    unsigned char *live = get(5000, 0), *freed = get(5000, 0);
    int status = -1;
    memset(live, 7, 5000);
    OK(cudaFreeHost(freed));
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *mine;
        CHECK(live[0] == 7 && live[4999] == 7);
        CHECK(cudaFreeHost(live) != cudaSuccess);
        CHECK(cudaMallocHost(&mine, 5000) != cudaSuccess);
        exit(5);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    for (int i = 0; i < 300; i++) { /* the parent goes on as before */
        freed = get(5000, 0);
        memset(freed, 9, 5000);
        OK(cudaFreeHost(freed));
    }
    CHECK(live[0] == 7 && live[4999] == 7);
    OK(cudaFreeHost(live));
}

static void zero(void)
{
    bool dirty = false;
    for (int i = 0; i < 2000; i++) {
        unsigned char *host = get(3000, 0);
        for (size_t k = 0; k < 3000; k++)
            dirty |= host[k] != 0;
        memset(host, 1, 3000);
        OK(cudaFreeHost(host));
    }
    printf("%s\n", dirty ? "dirty" : "clean");
}

static atomic_bool done;

static void barrier(void)
{
    cudaStream_t stream;
    unsigned char *host = get(3000, 0);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaLaunchHostFunc(stream, take_time, &done));
    OK(cudaFreeHost(host));
    printf("%s\n", atomic_load(&done) ? "waited" : "went on");
    OK(cudaStreamDestroy(stream));
}

static void held(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stream;
    unsigned char *host = get(3000, 0);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    gate_hold(&gate, stream);
    OK(cudaFreeHost(host));
    gate_open(&gate);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    puts("went on");
}

__attribute__((noinline)) static void forget_pages(void)
{
    void *host;
    OK(cudaMallocHost(&host, 5555));
    get(70000, cudaHostAllocPortable);
}

static void leak(void)
{
    void *host;
    for (int i = 0; i < 2; i++) {
        OK(cudaMallocHost(&host, 5555));
        OK(cudaFreeHost(host));
        OK(cudaFreeHost(get(70000, cudaHostAllocPortable)));
    }
    forget_pages();
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"reset", reset},     {"fork", forks}, {"zero", zero},
                 {"barrier", barrier}, {"held", held},  {"leak", leak}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    FAIL("unknown case %s", argv[1]);
}
