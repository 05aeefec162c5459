/* A call that is a function's last act becomes a jump: the function has no frame any more, and its
 * caller is told with the line where it called.
 *
 * builds: tail
 * expect[tail]: 700 bytes in 1, device: forget@forget < main@main
 * expect: 700 bytes in 1, device: forget@forget < hand_on@hand_on < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static int hand_on(size_t bytes)
{
    return forget(bytes); /* @hand_on */
}

int main(void)
{
    CHECK(hand_on(700) == 1); /* @main */
    return 0;
}
