/* Kernels in flight: before each burst of pairs one is launched on each stream, and the host is
 * held back so that it never runs more than a few kernels ahead. Launching and holding back are not
 * the allocator's and are excluded. One stream is the legacy one, on which the peers allocate plain
 * memory; several are each thread's own. The kernel runs for 20 us; the simulator takes any image,
 * and SIMCUDA says how long. A burst that takes longer than a kernel is followed by one of half as
 * many pairs, so that a slow allocator does not find the device idle. */
#include <cuda.h>
#include "cases.h"

#define BURST 32 /* pairs, at most */
#define AHEAD 8

static const char image[] = ".version 6.0\n"
                            ".target sm_50\n"
                            ".address_size 64\n"
                            ".visible .entry kernel(.param .u64 most_ns)\n"
                            "{\n"
                            " .reg .pred %p; .reg .u64 %most, %begin, %now;\n"
                            " ld.param.u64 %most, [most_ns];\n"
                            " mov.u64 %begin, %globaltimer;\n"
                            "AGAIN:\n"
                            " mov.u64 %now, %globaltimer;\n"
                            " sub.u64 %now, %now, %begin;\n"
                            " setp.lt.u64 %p, %now, %most;\n"
                            " @%p bra AGAIN;\n"
                            " ret;\n"
                            "}\n";

static uint64_t kernel_ns = 20000;

struct busy {
    CUfunction kernel;
    size_t streams;
    cudaStream_t stream[MAX_STREAMS];
    cudaEvent_t ends[MAX_STREAMS][AHEAD];
    uint64_t launched; /* on each */
};

void busy_open(worker_t *worker, size_t streams)
{
    struct busy *busy = calloc(1, sizeof *busy);
    CUmodule module;
    CHECK(busy && streams <= MAX_STREAMS);
    OK(cudaFree(NULL)); /* the context, for the driver's calls */
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&busy->kernel, module, "kernel"));
    busy->streams = streams;
    for (size_t i = 0; i < streams; i++) {
        if (worker->what->streams >= streams)
            busy->stream[i] = worker->streams[i];
        else if (streams > 1)
            OK(cudaStreamCreateWithFlags(&busy->stream[i], cudaStreamNonBlocking));
        for (int k = 0; k < AHEAD; k++)
            OK(cudaEventCreateWithFlags(&busy->ends[i][k], cudaEventDisableTiming));
    }
    worker->busy = busy;
}

static void launch(struct busy *busy)
{
    void *arguments[] = {&kernel_ns};
    for (size_t i = 0; i < busy->streams; i++) {
        cudaEvent_t end = busy->ends[i][busy->launched % AHEAD];
        OK(cudaEventSynchronize(end));
        OK(cuLaunchKernel(busy->kernel, 1, 1, 1, 1, 1, 1, 0, busy->stream[i], arguments, NULL));
        OK(cudaEventRecord(end, busy->stream[i]));
    }
    busy->launched++;
}

void busy_run(worker_t *worker, uint64_t pairs)
{
    uint64_t burst = BURST, end = now_ns();
    for (uint64_t done = 0, some; done < pairs; done += some) {
        uint64_t start = end;
        launch(worker->busy);
        uint64_t launched_at = now_ns();
        worker->excluded_ns += launched_at - start;
        some = pairs - done < burst ? pairs - done : burst;
        worker->what->run(worker, some);
        end = now_ns();
        if (end - launched_at > kernel_ns && burst > 1)
            burst /= 2;
        else if (end - launched_at < kernel_ns / 4 && burst < BURST)
            burst *= 2;
    }
}
