/* Deeper than stacks are kept: the innermost frames are there, and depths beyond them are one
 * group.
 *
 * conf: stack_depth:8
 * expect: 900 bytes in 3, device, up to 8 frames: forget@forget < descend@last < descend@deeper <
 *     descend@deeper < descend@deeper
 * expect: 100 bytes in 1, device, up to 8 frames: forget@forget < descend@last <
 *     descend@deeper < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static int descend(int depth, size_t bytes)
{
    if (depth == 0)
        return forget(bytes) + 1;         /* @last */
    return descend(depth - 1, bytes) + 1; /* @deeper */
}

int main(void)
{
    static const int depths[] = {1, 10, 20, 1000};
    for (size_t i = 0; i < 4; i++)
        CHECK(descend(depths[i], i ? 300 : 100) == depths[i] + 2); /* @main */
    return 0;
}
