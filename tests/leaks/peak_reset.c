/* Most memory there was when the device was reset, which freed it all: the peak is told of then.
 *
 * expect destroyed: 90000 bytes in 3, device: load@load < main@main
 * expect peak: 90000 bytes in 3, device: load@load < main@main
 */
#include "tests/leaks/leak.h"

FRAME static void *load(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @load */
    return pointer;
}

int main(void)
{
    void *small;
    for (int i = 0; i < 3; i++)
        CHECK(load(30000)); /* @main */
    OK(cudaDeviceReset());
    OK(cudaMalloc(&small, 1000));
    OK(cudaFree(small));
    return 0;
}
