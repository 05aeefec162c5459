/* Pitched and managed memory: use, alignment, free by cudaFree; nothing of it may be left. */
#include <cuda_runtime_api.h>
#include "check.h"

int main(void)
{
    for (int i = 0; i < 50; i++) {
        void *pitched;
        size_t pitch = 0, width = 1000 + (size_t)i, height = 20;
        unsigned char row[2000], *managed;
        OK(cudaMallocPitch(&pitched, &pitch, width, height));
        CHECK(pitch >= width && pitch % 32 == 0);
        OK(cudaMemset2D(pitched, pitch, i, width, height));
        OK(cudaMemcpy(row, (char *)pitched + pitch * (height - 1), width, cudaMemcpyDeviceToHost));
        CHECK(row[0] == i && row[width - 1] == i);
        OK(cudaMallocManaged((void **)&managed, 5000, cudaMemAttachGlobal));
        OK(cudaMemset(managed, i, 5000));
        OK(cudaDeviceSynchronize());
        CHECK(managed[0] == i && managed[4999] == i);
        OK(cudaFree(managed));
        OK(cudaFree(pitched));
    }
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
