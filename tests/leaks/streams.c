/* Stream-ordered memory names its stream; what was freed on it is not told.
 *
 * expect: 3000 bytes in 2, async, a stream: ... < forget@forget < main@main
 * expect: 3000 bytes in 1, async: ... < forget_on_legacy@legacy < main@legacy_main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(cudaStream_t stream)
{
    void *pointer, *freed;
    OK(cudaMallocAsync(&pointer, 1500, stream)); /* @forget */
    OK(cudaMallocAsync(&freed, 900000, stream));
    OK(cudaFreeAsync(freed, stream));
    return 1;
}

FRAME static int forget_on_legacy(void)
{
    void *pointer;
    OK(cudaMallocAsync(&pointer, 3000, 0)); /* @legacy */
    return 1;
}

int main(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int i = 0; i < 2; i++)
        CHECK(forget(stream) == 1); /* @main */
    CHECK(forget_on_legacy() == 1); /* @legacy_main */
    OK(cudaStreamDestroy(stream));
    return 0;
}
