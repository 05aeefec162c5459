/* Pitched memory: rows have the pitch that the driver gives that width, and copies of rows and
 * volumes find their contents.
 *
 * pitched use           many widths, heights and volumes, with contents
 * pitched pairs PAIRS   for counting what pairs of allocation and free cost, after all their widths
 *                       have been seen once
 * pitched leak          forgets 512 times 16 bytes, and a volume of 512 times 4 times 3 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "check.h"

#define WIDTH_MOST 3000
#define ROWS_MOST 40

static unsigned char from[WIDTH_MOST * ROWS_MOST], to[WIDTH_MOST * ROWS_MOST];
static size_t pitch_of[WIDTH_MOST + 1]; /* as first answered */

static void fill(size_t bytes, uint64_t *random)
{
    for (size_t i = 0; i < bytes; i++)
        from[i] = (unsigned char)next_random(random);
    memset(to, 0, bytes);
}

static void check_pitch(const void *pointer, size_t pitch, size_t width)
{
    CHECK(pitch >= width && pitch % 32 == 0);
    CHECK((uintptr_t)pointer % 512 == 0);
    CHECK(!pitch_of[width] || pitch_of[width] == pitch);
    pitch_of[width] = pitch;
}

static void plane(size_t width, size_t rows, uint64_t *random)
{
    char *pointer;
    size_t pitch;
    OK(cudaMallocPitch((void **)&pointer, &pitch, width, rows));
    check_pitch(pointer, pitch, width);
    fill(width * rows, random);
    OK(cudaMemset2D(pointer, pitch, 0x11, pitch, rows)); /* all of it is there */
    OK(cudaMemcpy2D(pointer, pitch, from, width, width, rows, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(to, width, pointer, pitch, width, rows, cudaMemcpyDeviceToHost));
    CHECK(memcmp(from, to, width * rows) == 0);
    if (pitch > width) { /* and the copy wrote nothing between the rows */
        OK(cudaMemcpy(to, pointer + width, 1, cudaMemcpyDeviceToHost));
        CHECK(to[0] == 0x11);
    }
    OK(cudaFree(pointer));
}

static void volume(size_t width, size_t height, size_t depth, uint64_t *random)
{
    struct cudaPitchedPtr p;
    struct cudaExtent extent = {.width = width, .height = height, .depth = depth};
    OK(cudaMalloc3D(&p, extent));
    check_pitch(p.ptr, p.pitch, width);
    CHECK(p.xsize == width && p.ysize == height);
    fill(width * height * depth, random);
    struct cudaMemcpy3DParms there = {
        .srcPtr = {.ptr = from, .pitch = width, .xsize = width, .ysize = height},
        .dstPtr = p,
        .extent = extent,
        .kind = cudaMemcpyHostToDevice};
    struct cudaMemcpy3DParms back = {
        .srcPtr = p,
        .dstPtr = {.ptr = to, .pitch = width, .xsize = width, .ysize = height},
        .extent = extent,
        .kind = cudaMemcpyDeviceToHost};
    OK(cudaMemcpy3D(&there));
    OK(cudaMemcpy3D(&back));
    CHECK(memcmp(from, to, width * height * depth) == 0);
    OK(cudaFree(p.ptr));
}

static void use(void)
{
    static const size_t edges[] = {1, 4, 31, 32, 33, 511, 512, 513, 1024, 1025, WIDTH_MOST};
    uint64_t random = 3;
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
        plane(edges[i], 3, &random);
    for (int i = 0; i < 500; i++) {
        plane(next_random(&random) % WIDTH_MOST + 1, next_random(&random) % ROWS_MOST + 1, &random);
        volume(next_random(&random) % 300 + 1, next_random(&random) % 10 + 1,
               next_random(&random) % 4 + 1, &random);
    }
}

static void pairs(uint64_t count)
{
    static const size_t widths[] = {100, 500, 512, 600, 1000, 3000};
    void *pointer;
    size_t pitch;
    for (uint64_t i = 0; i < count + 6; i++) {
        OK(cudaMallocPitch(&pointer, &pitch, widths[i % 6] - (i >= 6), 4));
        check_pitch(pointer, pitch, widths[i % 6] - (i >= 6));
        OK(cudaFree(pointer));
    }
}

__attribute__((noinline)) static void forget_rows(void)
{
    void *pointer;
    size_t pitch;
    struct cudaPitchedPtr p;
    OK(cudaMallocPitch(&pointer, &pitch, 500, 16));
    OK(cudaMalloc3D(&p, (struct cudaExtent){.width = 500, .height = 4, .depth = 3}));
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (strcmp(argv[1], "use") == 0) {
        use();
    } else if (strcmp(argv[1], "pairs") == 0) {
        pairs(number_argument(argc, argv, 2, 60));
    } else {
        pairs(12);
        forget_rows();
    }
    return 0;
}
