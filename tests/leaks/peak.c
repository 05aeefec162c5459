/* Who held the memory when there was most of it stands below what is left in the end.
 *
 * expect: 1000 bytes in 1, device: forget@forget < main@main
 * expect peak: 90000 bytes in 3, device: load@load < main@load_main
 * expect peak: 1000 bytes in 1, device: forget@forget < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static void *load(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @load */
    return pointer;
}

int main(void)
{
    void *tiles[3];
    CHECK(forget(1000) == 1); /* @main */
    for (int i = 0; i < 3; i++)
        tiles[i] = load(30000); /* @load_main */
    for (int i = 0; i < 3; i++)
        OK(cudaFree(tiles[i]));
    return 0;
}
