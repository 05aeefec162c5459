/* Without call stacks there are sums, by device and kind.
 *
 * conf: stacks:off
 * expect: 4000 bytes in 2, device, sizes 1000 to 3000, no stack
 * expect: 2000 bytes in 1, pinned, no stack
 */
#include "tests/leaks/leak.h"

FRAME static void forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes));
}

int main(void)
{
    void *pinned;
    forget(1000);
    forget(3000);
    OK(cudaMallocHost(&pinned, 2000));
    return 0;
}
