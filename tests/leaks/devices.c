/* Two devices: a group for each.
 *
 * sim: devices:2
 * expect: 4400 bytes in 2, device, device 1: forget@forget < main@main
 * expect: 2200 bytes in 1, device, device 0: forget@forget < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(int device)
{
    void *pointer;
    OK(cudaSetDevice(device));
    OK(cudaMalloc(&pointer, 2200)); /* @forget */
    return 1;
}

int main(void)
{
    static const int order[] = {1, 0, 1};
    for (size_t i = 0; i < 3; i++)
        CHECK(forget(order[i]) == 1); /* @main */
    return 0;
}
