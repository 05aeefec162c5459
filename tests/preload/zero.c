/* Counts the bytes of reused memory that are not zero: fills buffers, frees them, allocates them
 * again and looks. With debug:zero there must be none; without, there usually are. */
#include <cuda_runtime_api.h>
#include "check.h"

static const size_t sizes[] = {1, 511, 513, 4096, 100000, (size_t)3 << 20};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

int main(void)
{
    void *pointers[SIZES];
    size_t dirty = 0;
    unsigned char *seen = malloc(sizes[SIZES - 1]);
    CHECK(seen);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < SIZES; i++)
            OK(cudaMalloc(&pointers[i], sizes[i]));
        for (size_t i = 0; i < SIZES; i++) {
            if (round > 0) {
                OK(cudaMemcpy(seen, pointers[i], sizes[i], cudaMemcpyDeviceToHost));
                for (size_t k = 0; k < sizes[i]; k++)
                    dirty += seen[k] != 0;
            }
            OK(cudaMemset(pointers[i], 0xFF, sizes[i]));
        }
        OK(cudaDeviceSynchronize());
        for (size_t i = 0; i < SIZES; i++)
            OK(cudaFree(pointers[i]));
    }
    free(seen);
    printf("%s\n", dirty ? "dirty" : "clean");
    return 0;
}
