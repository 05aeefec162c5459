// What the programs for nvcc share: PROGRAM [ROUNDS] [dry | unsafe] prints one line of JSON and
// leaves 0 where its own check holds, 1 where it does not. `result` depends on neither time nor
// allocator; `ms` is the wall time of the rounds. With `dry` results are not looked at: kernels of
// the simulated CUDA do nothing. 77: no device.
#ifndef CA_TESTS_GPU_PROGRAMS_PROGRAM_H
#define CA_TESTS_GPU_PROGRAMS_PROGRAM_H

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(code_));                                                    \
            _Exit(1); /* other threads may be at work */                                           \
        }                                                                                          \
    } while (0)

static int rounds;
static bool dry, is_unsafe;
static std::chrono::steady_clock::time_point begun;

static inline void start(int argc, char **argv, int usual_rounds)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
        puts("no CUDA device");
        exit(77);
    }
    rounds = argc > 1 ? atoi(argv[1]) : usual_rounds;
    dry = argc > 2 && strcmp(argv[2], "dry") == 0;
    is_unsafe = argc > 2 && strcmp(argv[2], "unsafe") == 0;
    TRY(cudaFree(nullptr));
}

// The first rounds bring modules and pools; what follows is timed.
static inline void start_clock()
{
    TRY(cudaDeviceSynchronize());
    begun = std::chrono::steady_clock::now();
}

// `wrong`: what the check found, 0 where it holds.
static inline int finish(unsigned long long wrong, unsigned long long result)
{
    TRY(cudaDeviceSynchronize());
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    printf("{\"check\": \"%s\", \"wrong\": %llu, \"result\": \"%016llx\", \"rounds\": %d, "
           "\"ms\": %.3f}\n",
           dry     ? "not looked at"
           : wrong ? "failed"
                   : "ok",
           dry ? 0 : wrong, dry ? 0 : result, rounds, took.count());
    return !dry && wrong != 0;
}

static inline unsigned long long bits_of(double value)
{
    unsigned long long bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

__host__ __device__ static inline unsigned mix32(unsigned x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// Writes the pattern of `tag`, holds the memory for a while and checks whether another kernel wrote
// there: its own words are unchanged only where it has the memory alone. One block, so that all of
// it runs at once.
__global__ void own(unsigned *words, unsigned n, unsigned tag, unsigned hold_ns,
                    unsigned long long *wrong)
{
    volatile unsigned *at = words;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        at[i] = mix32(tag + i);
    __syncthreads();
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < hold_ns);
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        if (at[i] != mix32(tag + i))
            atomicAdd(wrong, 1ull);
}

#endif
