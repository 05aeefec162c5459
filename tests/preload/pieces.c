/* Large buffers between others: what fits a device, wherever its free memory lies.
 *
 *   pieces shapes SEED [STREAMS]  large buffers come and go behind work in flight, each of them
 *                                 written in order of its stream, and read at the end
 *   pieces hole                   half of a device is freed, every other buffer of it, and asked
 * for in one piece pieces resets N               a device is reset N times, with such memory live
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "check.h"
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"

#define MIB ((size_t)1 << 20)
#define BUFFERS 40
#define STEPS 250
#define PITCH (MIB / 2) /* of the rows that are written and read */
#define ROW ((size_t)2048)

static cudaKernel_t kernel;

static void launch(cudaStream_t stream)
{
    OK(cudaLaunchKernel((const void *)kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, stream));
}

static void load(void)
{
    cudaLibrary_t library;
    OK(cudaLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&kernel, library, "kernel"));
}

typedef struct buffer {
    unsigned char *address;
    size_t bytes;
    unsigned char value;
    cudaStream_t stream;
} buffer_t;

static void look(const buffer_t *buffer)
{
    size_t rows = buffer->bytes / PITCH, parts = rows < 4 ? rows : 4;
    for (size_t i = 0; i < parts; i++) {
        unsigned char seen;
        size_t at = (i + 1) * rows / parts * PITCH - PITCH + ROW - 1;
        OK(cudaMemcpyAsync(&seen, buffer->address + at, 1, cudaMemcpyDeviceToHost, buffer->stream));
        OK(cudaStreamSynchronize(buffer->stream));
        if (seen != buffer->value)
            FAIL("byte %zu of %zu at %p is %u and not %u", at, buffer->bytes,
                 (void *)buffer->address, seen, buffer->value);
    }
}

static void shapes(uint64_t random, unsigned streams)
{
    cudaStream_t all[4];
    buffer_t buffers[BUFFERS] = {0};
    for (unsigned i = 0; i < streams; i++)
        OK(cudaStreamCreateWithFlags(&all[i], cudaStreamNonBlocking));
    for (unsigned i = 0; i < STEPS; i++) {
        buffer_t *one = &buffers[next_random(&random) % BUFFERS];
        if (one->address) {
            if (next_random(&random) % 8 == 0)
                look(one);
            OK(cudaFree(one->address));
            one->address = NULL;
            if (next_random(&random) % 64 == 0 && cachealloc_trim)
                cachealloc_trim();
            continue;
        }
        size_t most = next_random(&random) % 4 ? 12 * MIB : 60 * MIB;
        one->bytes = PITCH + next_random(&random) % most;
        one->value = (unsigned char)(i % 255 + 1);
        one->stream = all[next_random(&random) % streams];
        OK(cudaMalloc((void **)&one->address, one->bytes));
        launch(one->stream);
        OK(cudaMemset2DAsync(one->address, PITCH, one->value, ROW, one->bytes / PITCH,
                             one->stream));
    }
    for (unsigned i = 0; i < BUFFERS; i++) {
        if (!buffers[i].address)
            continue;
        look(&buffers[i]);
        OK(cudaFree(buffers[i].address));
    }
}

static void hole(void)
{
    enum { COUNT = 400 };
    void *pieces[COUNT], *whole;
    size_t free, total, piece;
    OK(cudaMemGetInfo(&free, &total));
    piece = free / COUNT - MIB / 2;
    for (int i = 0; i < COUNT; i++)
        OK(cudaMalloc(&pieces[i], piece));
    for (int i = 0; i < COUNT; i += 2)
        OK(cudaFree(pieces[i]));
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&free, &total));
    size_t bytes = COUNT / 2 * piece / 4; /* pages have 2 MiB, and some lie at an edge */
    int code = (int)cudaMalloc(&whole, bytes);
    printf("%s\n", code == 0 ? "fits" : "refused");
    (void)cudaGetLastError();
    if (code == 0) {
        OK(cudaMemset2D(whole, PITCH, 1, ROW, bytes / PITCH));
        OK(cudaFree(whole));
    }
    for (int i = 1; i < COUNT; i += 2)
        OK(cudaFree(pieces[i]));
}

static void resets(unsigned count)
{
    size_t first = 0, free, total;
    for (unsigned i = 0; i < count; i++) {
        void *buffers[12], *one;
        OK(cudaMemGetInfo(&free, &total));
        first = first ? first : free;
        if (free != first)
            FAIL("%zu bytes are free after %u resets, before %zu", free, i, first);
        for (int k = 0; k < 12; k++)
            OK(cudaMalloc(&buffers[k], 10 * MIB));
        for (int k = 6; k < 12; k += 2)
            OK(cudaFree(buffers[k]));
        OK(cudaDeviceSynchronize());
        OK(cudaMalloc(&one, 24 * MIB));
        OK(cudaMemset2D(one, PITCH, 1, ROW, 24 * MIB / PITCH));
        OK(cudaDeviceReset());
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "hole";
    if (strcmp(what, "resets") == 0) {
        resets((unsigned)number_argument(argc, argv, 2, 50));
        return 0;
    }
    OK(cudaFree(NULL));
    if (strcmp(what, "shapes") == 0) {
        load();
        shapes(number_argument(argc, argv, 2, 1), (unsigned)number_argument(argc, argv, 3, 1));
    } else {
        hole();
    }
    return 0;
}
