/* A program that leaks where files cannot be read any more: unreadable descriptors|root DIR. It has
 * used up its descriptors, or has another root folder, which is empty, as a daemon does. Exit
 * status 77 where it may not. */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "check.h"

static __attribute__((noinline)) void leaks(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 4321));
    __asm__ volatile("");
}

int main(int argc, char **argv)
{
    void *pointer;
    const struct rlimit few = {64, 64};
    CHECK(argc == 3);
    OK(cudaMalloc(&pointer, 100));
    OK(cudaFree(pointer));
    if (!strcmp(argv[1], "root") && (chroot(argv[2]) != 0 || chdir("/") != 0))
        return 77;
    if (!strcmp(argv[1], "descriptors")) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        while (open("/dev/null", O_RDONLY) >= 0)
            continue;
    }
    leaks();
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&pointer, (size_t)1 << 42));
    return 0;
}
