/* One line that leaks many sizes is one group, with the least and the largest.
 *
 * expect: 505000 bytes in 100, device, sizes 100 to 10000: forget@forget < main@main
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
    for (size_t i = 1; i <= 100; i++)
        CHECK(forget(100 * i) == 1); /* @main */
    return 0;
}
