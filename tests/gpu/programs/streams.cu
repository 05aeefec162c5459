// Many streams, plain cudaMalloc and cudaFree, kernels in flight all the time: each buffer is freed
// while the kernel that writes and verifies it still runs, and the next allocation is written at
// once on another stream. Memory that is handed out before that kernel's end shows as a foreign
// word in it. `unsafe` does just that, by a list of its own: there the check must fail.
#include "program.cuh"

#include <mutex>
#include <thread>
#include <vector>

enum { THREADS = 4, STREAMS = 4, HOLD_NS = 100000, KINDS = 4 };

static const unsigned words_of[KINDS] = {1 << 10, 1 << 12, 1 << 15, 1 << 18}; // 4 KiB to 1 MiB
static std::mutex lock;
static std::vector<unsigned *> freed[KINDS];

static unsigned *take(unsigned kind)
{
    if (is_unsafe) {
        std::lock_guard<std::mutex> guard(lock);
        if (!freed[kind].empty()) {
            unsigned *last = freed[kind].back();
            freed[kind].pop_back();
            return last;
        }
    }
    unsigned *words;
    TRY(cudaMalloc(&words, words_of[kind] * sizeof(*words)));
    return words;
}

static void give(unsigned *words, unsigned kind)
{
    if (is_unsafe) {
        std::lock_guard<std::mutex> guard(lock);
        freed[kind].push_back(words);
    } else {
        TRY(cudaFree(words));
    }
}

static void work(unsigned thread, unsigned long long *wrong)
{
    cudaStream_t streams[STREAMS];
    for (cudaStream_t &stream : streams)
        TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned round = 0; round < (unsigned)rounds; round++) {
        unsigned tag = mix32(thread << 24 | round), kind = tag % KINDS;
        unsigned *words = take(kind);
        own<<<1, 256, 0, streams[round % STREAMS]>>>(words, words_of[kind], tag, HOLD_NS, wrong);
        TRY(cudaGetLastError());
        give(words, kind);
        if (round % 64 == 63) // no more than so many are queued, whatever the allocator
            TRY(cudaStreamSynchronize(streams[round % STREAMS]));
    }
    for (cudaStream_t stream : streams) {
        TRY(cudaStreamSynchronize(stream));
        TRY(cudaStreamDestroy(stream));
    }
}

int main(int argc, char **argv)
{
    start(argc, argv, 500);
    unsigned long long *wrong, found = 0;
    TRY(cudaMalloc(&wrong, sizeof(*wrong)));
    TRY(cudaMemset(wrong, 0, sizeof(*wrong)));
    start_clock();
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < THREADS; t++)
        threads.emplace_back(work, t, wrong);
    for (std::thread &thread : threads)
        thread.join();
    TRY(cudaMemcpy(&found, wrong, sizeof(found), cudaMemcpyDeviceToHost));
    return finish(found, 0);
}
