/* Arrays, mipmapped arrays and registered host memory through the runtime. arrays keep: two arrays,
 * a mipmap and a registered buffer are forgotten. */
#include <cuda_runtime_api.h>
#include "check.h"

static char buffer[5000];

int main(int argc, char **argv)
{
    int keep = argc > 1 && strcmp(argv[1], "keep") == 0;
    struct cudaChannelFormatDesc floats = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    struct cudaChannelFormatDesc bytes = {8, 8, 8, 8, cudaChannelFormatKindUnsigned};
    for (int i = 0; i < 20; i++) {
        cudaArray_t flat, deep;
        cudaMipmappedArray_t mipmap;
        OK(cudaMallocArray(&flat, &floats, 100, 10, 0));
        OK(cudaMalloc3DArray(&deep, &bytes, (struct cudaExtent){16, 8, 4}, 0));
        OK(cudaMallocMipmappedArray(&mipmap, &floats, (struct cudaExtent){8, 8, 0}, 4, 0));
        OK(cudaHostRegister(buffer, sizeof(buffer), cudaHostRegisterDefault));
        if (keep)
            break;
        OK(cudaHostUnregister(buffer));
        OK(cudaFreeMipmappedArray(mipmap));
        OK(cudaFreeArray(deep));
        OK(cudaFreeArray(flat));
    }
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
