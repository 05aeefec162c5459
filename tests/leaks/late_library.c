/* liblate_library.so: frees in its destructor, which runs after the report. */
#include <unistd.h>
#include "tests/leaks/leak.h"
#include "tests/leaks/late_library.h"

static void *kept;

SEEN FRAME int late_take(size_t bytes)
{
    OK(cudaMalloc(&kept, bytes)); /* @take */
    return 1;
}

__attribute__((destructor)) static void release(void)
{
    if (cudaFree(kept) != cudaSuccess || write(STDOUT_FILENO, "freed\n", 6) != 6)
        _exit(1);
}
