/* Pin mode.
 *
 * pin_mode again   the same allocations get the same addresses while it is on
 * pin_mode short   nothing is given back while it is on, although memory is short (256 MiB of
 *                  device, headroom:0); afterwards it is, and a trim leaves nothing */
#include "api.h"

#define MIB ((size_t)1 << 20)

/* From the third round on: until then the pool has grown, and been whole again once. */
static void same_addresses(void)
{
    enum { COUNT = 40, ROUNDS = 20, SETTLED = 2 };
    void *first[COUNT], *pointer[COUNT];
    uint64_t upstream = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            OK(cudaMalloc(&pointer[i], 700 + i * i * 1500));
            if (round <= SETTLED)
                first[i] = pointer[i];
            CHECK(pointer[i] == first[i]);
        }
        if (round <= SETTLED)
            upstream = api_stats().upstream_allocs;
        for (size_t i = 0; i < COUNT; i++)
            OK(cudaFree(pointer[i]));
        OK(cudaDeviceSynchronize());
        CHECK(cachealloc_trim() == 0); /* but it makes all of it ready */
    }
    CHECK(api_stats().upstream_allocs == upstream && api_stats().upstream_frees == 0);
}

static void nothing_goes_back(void)
{
    void *kept, *large;
    OK(cudaMalloc(&kept, 100 * MIB));
    OK(cudaFree(kept));
    OK(cudaDeviceSynchronize());
    size_t reserved = api_stats().reserved_bytes;
    for (int i = 0; i < 3; i++)
        ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&large, 200 * MIB));
    CHECK(cachealloc_trim() == 0);
    CHECK(api_stats().upstream_frees == 0 && api_stats().reserved_bytes == reserved);
    OK(cudaMalloc(&large, 100 * MIB));
    CHECK(large == kept);
    OK(cudaFree(large));
    /* It is counted. */
    OK(cachealloc_set_pin_mode(1));
    OK(cachealloc_set_pin_mode(0));
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&large, 200 * MIB));
    OK(cachealloc_set_pin_mode(0));
    OK(cudaMalloc(&large, 200 * MIB));
    OK(cudaFree(large));
    cudaGetLastError();
    OK(cachealloc_set_pin_mode(1));
}

int main(int argc, char **argv)
{
    if (!api_there())
        return 0;
    CHECK(argc == 2);
    OK(cachealloc_set_pin_mode(1));
    if (strcmp(argv[1], "again") == 0)
        same_addresses();
    else
        nothing_goes_back();
    OK(cachealloc_set_pin_mode(0));
    OK(cudaDeviceSynchronize());
    cachealloc_trim();
    CHECK(api_stats().reserved_bytes == 0 && api_stats().segments == 0);
    return 0;
}
