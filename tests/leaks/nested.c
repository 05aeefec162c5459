/* Three functions deep, in every way that a program may be built.
 *
 * builds: O0 O3 no_fp g0 g1 split dwarf4 gz lto no_pie no_tables static_runtime stripped debuglink
 * expect: 4096 bytes in 2, device: forget@forget < fill@fill < main@main
 * expect[static_runtime]: 4096 bytes in 2, device: ... < forget@forget < fill@fill < main@main
 * expect[stripped]: 4096 bytes in 2, device: ?forget@forget < ?fill@fill < ?main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

static volatile int calls = 2; /* unrolled they would be calls in several places */

FRAME static int fill(void)
{
    int done = 0;
    for (int i = 0; i < calls; i++)
        done += forget(2048); /* @fill */
    return done;
}

int main(void)
{
    CHECK(fill() == 2); /* @main */
    return 0;
}
