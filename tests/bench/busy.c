/* Kernels in flight: between bursts of pairs a kernel is launched, and the host is held back so
 * that it never runs more than a few kernels ahead. Launching and holding back are not the
 * allocator's and are excluded. The stream is the legacy one, on which the peers allocate plain
 * memory. The kernel runs for 20 us; the simulator takes any image, and SIMCUDA says how long. A
 * burst that takes longer than a kernel is followed by one of half as many pairs, so that a slow
 * allocator does not find the device idle. */
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

static CUfunction kernel;
static uint64_t kernel_ns = 20000;
static cudaEvent_t ends[AHEAD];
static uint64_t launched;

void busy_open(void)
{
    CUmodule module;
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "kernel"));
    for (int i = 0; i < AHEAD; i++)
        OK(cudaEventCreateWithFlags(&ends[i], cudaEventDisableTiming));
}

static void launch(void)
{
    cudaEvent_t end = ends[launched++ % AHEAD];
    OK(cudaEventSynchronize(end));
    void *arguments[] = {&kernel_ns};
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    OK(cudaEventRecord(end, NULL));
}

void busy_run(worker_t *worker, uint64_t pairs)
{
    uint64_t burst = BURST, end = now_ns();
    for (uint64_t done = 0, some; done < pairs; done += some) {
        uint64_t start = end;
        launch();
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
