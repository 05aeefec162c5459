/* Handlers of atexit run before the report: what they leak is in it, what they free is not. To one
 * that is older than the first CUDA call the driver has ended.
 *
 * expect: 950 bytes in 1, device: forget@forget < handler@handler < ...
 */
#include "tests/leaks/leak.h"

static void *kept;

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static void handler(void)
{
    OK(cudaFree(kept));
    CHECK(forget(950) == 1); /* @handler */
}

int main(void)
{
    OK(cudaMalloc(&kept, 77777));
    CHECK(atexit(handler) == 0);
    return 0;
}
