// A program with a cache of its own, cub::CachingDeviceAllocator, on two streams: what it keeps, it
// takes once, and its blocks are written and verified while others are freed.
#include "program.cuh"

#include <cub/util_allocator.cuh>

enum { STREAMS = 2, KEPT = 8 };

int main(int argc, char **argv)
{
    start(argc, argv, 3000);
    unsigned long long *wrong, found = 0;
    TRY(cudaMalloc(&wrong, sizeof(*wrong)));
    TRY(cudaMemset(wrong, 0, sizeof(*wrong)));
    cudaStream_t streams[STREAMS];
    for (cudaStream_t &stream : streams)
        TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
        cub::CachingDeviceAllocator cache(2, 10, 22); // 1 KiB to 4 MiB
        unsigned *kept[KEPT] = {};
        start_clock();
        for (unsigned round = 0; round < (unsigned)rounds; round++) {
            unsigned tag = mix32(round), words = 1024u << tag % 12; // the largest are not kept
            unsigned *&memory = kept[round % KEPT];
            cudaStream_t stream = streams[tag >> 16 & 1];
            if (memory)
                TRY(cache.DeviceFree(memory));
            TRY(cache.DeviceAllocate((void **)&memory, words * sizeof(*memory), stream));
            (void)cudaGetLastError(); // cub asks events, of which some are not ready
            own<<<1, 256, 0, stream>>>(memory, words, tag, 5000, wrong);
            TRY(cudaGetLastError());
        }
        TRY(cudaDeviceSynchronize());
        for (unsigned *memory : kept)
            if (memory)
                TRY(cache.DeviceFree(memory));
        TRY(cache.FreeAllCached());
    }
    TRY(cudaMemcpy(&found, wrong, sizeof(found), cudaMemcpyDeviceToHost));
    return finish(found, 0);
}
