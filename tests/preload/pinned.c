/* Pinned host memory: both calls, flags, alignment, contents through the device. */
#include <cuda_runtime_api.h>
#include "check.h"

int main(void)
{
    static unsigned char plain[8192];
    void *device;
    OK(cudaMalloc(&device, sizeof(plain)));
    for (int i = 0; i < 200; i++) {
        unsigned flags = i % 2 ? cudaHostAllocPortable : cudaHostAllocDefault, seen = 99;
        unsigned char *host;
        if (i % 3 == 0)
            OK(cudaMallocHost((void **)&host, sizeof(plain)));
        else
            OK(cudaHostAlloc((void **)&host, sizeof(plain), flags));
        CHECK((uintptr_t)host % 4096 == 0);
        if (i % 3 != 0) {
            OK(cudaHostGetFlags(&seen, host));
            CHECK((seen & cudaHostAllocPortable) == (flags & cudaHostAllocPortable));
        }
        memset(host, i, sizeof(plain));
        OK(cudaMemcpy(device, host, sizeof(plain), cudaMemcpyHostToDevice));
        OK(cudaMemcpy(plain, device, sizeof(plain), cudaMemcpyDeviceToHost));
        CHECK(plain[0] == i && plain[sizeof(plain) - 1] == i);
        OK(cudaFreeHost(host));
    }
    OK(cudaFreeHost(NULL));
    OK(cudaFree(device));
    return 0;
}
