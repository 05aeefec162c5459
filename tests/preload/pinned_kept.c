/* How much pinned memory stays with the pool after it was freed.
 *
 * pinned_kept free       buffers go until little is kept; one that fits into that comes and goes
 *                        without the driver
 * pinned_kept busy       the same while work takes its time: the free waits, as the driver's does
 * pinned_kept elsewhere  another device is at work until this very thread goes on: not waited for
 * pinned_kept capture    a stream is captured: the pool keeps it, and the capture is not spoiled
 * pinned_kept register   host memory is registered while the pool keeps some; prints the code */
#include "gate.h"
#include "shim_stats.h"
#include "slow_work.h"

#define MIB ((size_t)1 << 20)
#define BUFFERS 10
#define KEPT (256 * MIB) /* at most */

/* 0 without the shim. */
static cachealloc_stats_t stats(void)
{
    cachealloc_stats_t now;
    (void)shim_stats(&now);
    return now;
}

static void *get(size_t bytes)
{
    void *host;
    OK(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    return host;
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void free_many(void)
{
    void *hosts[BUFFERS];
    for (unsigned i = 0; i < BUFFERS; i++)
        hosts[i] = get(100 * MIB);
    for (unsigned i = 0; i < BUFFERS; i++) {
        OK(cudaFreeHost(hosts[i]));
        CHECK(stats().pinned_reserved_bytes <= (BUFFERS - 1 - i) * 100 * MIB + KEPT);
    }
    OK(cudaFreeHost(get(100 * MIB)));
    uint64_t before = stats().upstream_allocs;
    for (unsigned i = 0; i < 20; i++)
        OK(cudaFreeHost(get(100 * MIB)));
    CHECK(stats().upstream_allocs == before);
    OK(cudaFreeHost(get(1024 * MIB)));
    CHECK(stats().pinned_reserved_bytes <= KEPT);
}

static atomic_bool done;

static void busy(void)
{
    void *host = get(1024 * MIB);
    OK(cudaLaunchHostFunc(make_stream(), take_time, &done));
    OK(cudaFreeHost(host));
    CHECK(atomic_load(&done));
    CHECK(stats().pinned_reserved_bytes <= KEPT);
}

static void elsewhere(void)
{
    static gate_t gate = GATE_CLOSED;
    void *host = get(1024 * MIB);
    OK(cudaSetDevice(1));
    gate_hold(&gate, make_stream());
    OK(cudaSetDevice(0));
    OK(cudaFreeHost(host));
    gate_open(&gate);
}

static void capture(void)
{
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    void *host = get(1024 * MIB);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaFreeHost(host));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
}

static void registers(void)
{
    static unsigned char memory[1 << 20];
    OK(cudaFreeHost(get(MIB)));
    cudaError_t code = cudaHostRegister(memory, sizeof(memory), cudaHostRegisterDefault);
    printf("%d\n", (int)code);
    if (code == cudaSuccess) {
        CHECK(stats().pinned_reserved_bytes == 0);
        OK(cudaHostUnregister(memory));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"free", free_many},
                 {"busy", busy},
                 {"elsewhere", elsewhere},
                 {"capture", capture},
                 {"register", registers}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    FAIL("unknown case %s", argv[1]);
}
