/* Every kind of memory that the runtime gives, each a group of its own.
 *
 * expect: 60000 bytes in 1, managed: ... < forget@managed < main@main
 * expect: 50000 bytes in 1, pinned: ... < forget@pinned < main@main
 * expect: 40960 bytes in 1, pitched: ... < forget@pitched < main@main
 * expect: 30000 bytes in 1, async: ... < forget@async < main@main
 * expect: 20000 bytes in 1, array: ... < forget@array < main@main
 * expect: 10000 bytes in 1, device: forget@device < main@main
 * expect: 85 bytes in 1, mipmap: ... < forget@mipmap < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(void)
{
    struct cudaChannelFormatDesc bytes = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
    cudaArray_t array;
    cudaMipmappedArray_t mipmap;
    void *pointer;
    size_t pitch;
    OK(cudaMalloc(&pointer, 10000));                             /* @device */
    OK(cudaMallocArray(&array, &bytes, 200, 100, 0));            /* @array */
    OK(cudaMallocAsync(&pointer, 30000, 0));                     /* @async */
    OK(cudaMallocPitch(&pointer, &pitch, 512, 80));              /* @pitched */
    OK(cudaMallocHost(&pointer, 50000));                         /* @pinned */
    OK(cudaMallocManaged(&pointer, 60000, cudaMemAttachGlobal)); /* @managed */
    OK(cudaMallocMipmappedArray(&mipmap, &bytes, (struct cudaExtent){8, 8, 0}, 4, 0)); /* @mipmap */
    return 1;
}

int main(void)
{
    CHECK(forget() == 1); /* @main */
    return 0;
}
