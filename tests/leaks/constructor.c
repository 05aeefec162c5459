/* The program allocates before main, in a function that the loader calls.
 *
 * expect: 210 bytes in 1, device: forget@forget < prepare@prepare
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

__attribute__((constructor)) FRAME static void prepare(void)
{
    CHECK(forget(210) == 1); /* @prepare */
}

int main(void)
{
    return 0;
}
