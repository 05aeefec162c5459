/* More groups than are listed, or smaller ones: the rest is counted. The depth makes each call
 * another way.
 *
 * conf: stack_depth:64,leak_max:2,leak_min:450
 * omitted: leak_max 4 groups 2600 bytes, leak_min 4 groups 1000 bytes
 * expect: 1000 bytes in 1, device: descend@last < descend@deeper < ... < main@main
 * expect: 900 bytes in 1, device: descend@last < descend@deeper < ... < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int descend(size_t depth, size_t bytes)
{
    void *pointer;
    if (depth > 0)
        return descend(depth - 1, bytes) + 1; /* @deeper */
    OK(cudaMalloc(&pointer, bytes));          /* @last */
    return 1;
}

int main(void)
{
    for (size_t i = 1; i <= 10; i++)
        CHECK(descend(i, 100 * i) == (int)i + 1); /* @main */
    return 0;
}
