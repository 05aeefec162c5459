/* What was alive when its device was reset is gone, and told apart from what is live at the end.
 *
 * expect destroyed: 7000 bytes in 2, device: forget@forget < main@before
 * expect: 1300 bytes in 1, device: forget@forget < main@after
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

int main(void)
{
    for (int i = 0; i < 2; i++)
        CHECK(forget(3500) == 1); /* @before */
    OK(cudaDeviceReset());
    CHECK(forget(1300) == 1); /* @after */
    return 0;
}
