/* sampled COUNT BYTES: allocates and frees COUNT times BYTES, by cudaMalloc, and prints how many of
 * the allocations had a call stack. */
#include "api.h"

int main(int argc, char **argv)
{
    uint64_t count = number_argument(argc, argv, 1, 1000), sampled = 0;
    uint64_t bytes = number_argument(argc, argv, 2, 1000);
    for (uint64_t i = 0; i < count; i++) {
        void *pointer, *stack[4];
        cachealloc_info_t info = {.size = sizeof(info), .stack = stack, .stack_capacity = 4};
        OK(cudaMalloc(&pointer, bytes));
        OK(cachealloc_info(pointer, &info));
        CHECK(info.stack_count == 0 || info.stack_count > 1);
        sampled += info.stack_count != 0;
        OK(cudaFree(pointer));
    }
    printf("%llu\n", (unsigned long long)sampled);
    return 0;
}
