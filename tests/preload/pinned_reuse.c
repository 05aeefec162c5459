/* Pinned buffers are freed while copies out of them wait on a stream.
 *
 * pinned_reuse same|other [plain]  The stream, of this device or of another, is held by a gate.
 * With the pool the frees return at once, and until the gate opens nobody else is given that
 * memory: the copies then still see what the buffers held. The driver's own free waits, for its
 * own device's context: `plain` opens the gate before it. pinned_reuse race ROUNDS  For the
 * simulator's race check: what is written into new buffers must be ordered after the reads of old
 * ones. */
#include "gate.h"

#define BUFFERS 60

static const size_t sizes[] = {1000, 70000, (size_t)1 << 20, (size_t)5 << 20};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

typedef struct buffer {
    unsigned char *host, *device;
    size_t bytes;
} buffer_t;

static buffer_t old[BUFFERS];
static unsigned char *fresh[BUFFERS];

static bool overlaps_old(const unsigned char *begin, size_t bytes)
{
    for (size_t i = 0; i < BUFFERS; i++)
        if (begin < old[i].host + old[i].bytes && old[i].host < begin + bytes)
            return true;
    return false;
}

static void check_device(const buffer_t *b, unsigned char value)
{
    unsigned char ends[2] = {0, 0};
    OK(cudaMemcpy(&ends[0], b->device, 1, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&ends[1], b->device + b->bytes - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(ends[0] == value && ends[1] == value);
}

static void behind_a_gate(int device, bool plain)
{
    static gate_t gate = GATE_CLOSED;
    cudaStream_t held;
    size_t came_back = 0;
    OK(cudaSetDevice(device));
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    for (size_t i = 0; i < BUFFERS; i++) {
        old[i].bytes = sizes[i % SIZES];
        OK(cudaMalloc((void **)&old[i].device, old[i].bytes));
    }
    OK(cudaSetDevice(0));
    for (size_t i = 0; i < BUFFERS; i++) {
        OK(cudaHostAlloc((void **)&old[i].host, old[i].bytes, cudaHostAllocPortable));
        memset(old[i].host, (int)i + 1, old[i].bytes);
    }
    OK(cudaSetDevice(device));
    gate_hold(&gate, held);
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cudaMemcpyAsync(old[i].device, old[i].host, old[i].bytes, cudaMemcpyHostToDevice, held));
    OK(cudaSetDevice(0));
    if (plain)
        gate_open(&gate);
    if (plain && device != 0) /* the driver's free waits for the memory's own context alone */
        OK(cudaStreamSynchronize(held));
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cudaFreeHost(old[i].host));

    /* Whoever comes next writes at once. */
    for (size_t i = 0; i < BUFFERS; i++) {
        OK(cudaHostAlloc((void **)&fresh[i], sizes[i % SIZES], cudaHostAllocPortable));
        CHECK(plain || !overlaps_old(fresh[i], sizes[i % SIZES]));
        memset(fresh[i], 0xFF, sizes[i % SIZES]);
    }
    OK(cudaSetDevice(device));
    if (!plain)
        ANSWERS(cudaErrorNotReady, cudaStreamQuery(held));
    gate_open(&gate);
    OK(cudaStreamSynchronize(held));
    for (size_t i = 0; i < BUFFERS; i++) {
        check_device(&old[i], (unsigned char)(i + 1));
        OK(cudaFree(old[i].device));
    }
    OK(cudaStreamDestroy(held));
    OK(cudaSetDevice(0));
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cudaFreeHost(fresh[i]));

    /* Nothing runs any more: what was freed first is handed out again. */
    for (size_t i = 0; i < BUFFERS; i++) {
        OK(cudaHostAlloc((void **)&fresh[i], sizes[i % SIZES], cudaHostAllocPortable));
        came_back += overlaps_old(fresh[i], sizes[i % SIZES]);
    }
    CHECK(plain || came_back > 0);
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cudaFreeHost(fresh[i]));
}

static void race(uint64_t rounds)
{
    uint64_t random = 5;
    unsigned char *device;
    void *host;
    cudaStream_t streams[2];
    OK(cudaMalloc((void **)&device, 2 << 20));
    for (int i = 0; i < 2; i++)
        OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    for (uint64_t i = 0; i < rounds; i++) {
        size_t bytes = sizes[next_random(&random) % 3];
        bool reads = next_random(&random) % 2;
        cudaStream_t stream = streams[next_random(&random) % 2];
        unsigned char *mine = device + (stream == streams[0] ? 0 : 1 << 20);
        if (next_random(&random) % 2)
            OK(cudaMallocHost(&host, bytes));
        else
            OK(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
        if (reads)
            OK(cudaMemcpyAsync(mine, host, bytes, cudaMemcpyHostToDevice, stream));
        else
            OK(cudaMemcpyAsync(host, mine, bytes, cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeHost(host));
    }
    for (int i = 0; i < 2; i++)
        OK(cudaStreamDestroy(streams[i]));
    OK(cudaFree(device));
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    bool plain = argc > 2 && strcmp(argv[2], "plain") == 0;
    if (strcmp(argv[1], "race") == 0)
        race(number_argument(argc, argv, 2, 1000));
    else
        behind_a_gate(strcmp(argv[1], "other") == 0, plain);
    return 0;
}
