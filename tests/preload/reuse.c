/* Buffers are freed while a copy out of them waits behind a gate. With the pool the frees return at
 * once, and until the gate opens nobody else is given that memory; the copies then still see what
 * the buffers held. The driver's own free waits for its context: `plain` opens the gate before it.
 *
 * reuse BUFFERS [plain] */
#include "gate.h"
#include "shim_stats.h"

#define BUFFERS_MOST 400

static const size_t sizes[] = {1000, 100000, (size_t)1 << 20, (size_t)5 << 20};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

typedef struct buffer {
    char *pointer;
    size_t bytes;
} buffer_t;

static buffer_t in_use[BUFFERS_MOST], fresh[BUFFERS_MOST];

static bool overlap(buffer_t a, buffer_t b)
{
    return a.pointer < b.pointer + b.bytes && b.pointer < a.pointer + a.bytes;
}

int main(int argc, char **argv)
{
    static gate_t gate = GATE_CLOSED;
    cachealloc_stats_t stats;
    bool plain = argc > 2 && strcmp(argv[2], "plain") == 0;
    size_t count = number_argument(argc, argv, 1, 200);
    CHECK(count <= BUFFERS_MOST);
    cudaStream_t held, other;
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    unsigned char *seen;
    OK(cudaMallocHost((void **)&seen, 2 * count));

    /* Every buffer is filled, and read at both ends by copies that cannot run yet. */
    for (size_t i = 0; i < count; i++) {
        in_use[i].bytes = sizes[i % SIZES];
        OK(cudaMalloc((void **)&in_use[i].pointer, in_use[i].bytes));
        OK(cudaMemsetAsync(in_use[i].pointer, (int)(i % 200) + 1, in_use[i].bytes, held));
    }
    OK(cudaStreamSynchronize(held));
    gate_hold(&gate, held);
    for (size_t i = 0; i < count; i++) {
        char *last = in_use[i].pointer + in_use[i].bytes - 1;
        OK(cudaMemcpyAsync(&seen[2 * i], in_use[i].pointer, 1, cudaMemcpyDeviceToHost, held));
        OK(cudaMemcpyAsync(&seen[2 * i + 1], last, 1, cudaMemcpyDeviceToHost, held));
    }
    if (plain)
        gate_open(&gate);
    for (size_t i = 0; i < count; i++)
        OK(cudaFree(in_use[i].pointer));

    /* Whoever comes next writes at once, on a stream that waits for nobody. */
    for (size_t i = 0; i < count; i++) {
        fresh[i].bytes = sizes[i % SIZES];
        OK(cudaMalloc((void **)&fresh[i].pointer, fresh[i].bytes));
        OK(cudaMemsetAsync(fresh[i].pointer, 0xFF, fresh[i].bytes, other));
    }
    OK(cudaStreamSynchronize(other));
    if (!plain) {
        ANSWERS(cudaErrorNotReady, cudaStreamQuery(held));
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < count; k++)
                CHECK(!overlap(in_use[i], fresh[k]));
        gate_open(&gate);
    }
    OK(cudaStreamSynchronize(held));
    for (size_t i = 0; i < count; i++)
        CHECK(seen[2 * i] == i % 200 + 1 && seen[2 * i + 1] == i % 200 + 1);

    for (size_t i = 0; i < count; i++)
        OK(cudaFree(fresh[i].pointer));
    OK(cudaDeviceSynchronize());

    /* Nothing runs any more: the same set again must be served from what was freed. */
    uint64_t before = shim_stats(&stats) ? stats.reserved_bytes : 0;
    for (size_t i = 0; i < count; i++)
        OK(cudaMalloc((void **)&fresh[i].pointer, fresh[i].bytes));
    CHECK(!shim_stats(&stats) || stats.reserved_bytes <= before);
    for (size_t i = 0; i < count; i++)
        OK(cudaFree(fresh[i].pointer));
    OK(cudaFreeHost(seen));
    OK(cudaStreamDestroy(held));
    OK(cudaStreamDestroy(other));
    return 0;
}
