/* How much of the device a program can have. Sizes are in MiB, on a device of 24 GiB.
 *
 *   fits layers TEMP KEEP [async|pinned]   a buffer of TEMP comes and goes, one of KEEP stays, and
 * so on until there is no memory: prints how many stay fits random LIVE MOST SEED      buffers of
 * up to MOST come and go in disorder, up to LIVE in all: prints how many were refused */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "check.h"

#define MIB ((size_t)1 << 20)
#define BUFFERS 64
#define STEPS 2000

static bool in_order; /* of a stream */
static bool pinned;

static bool get(void **buffer, size_t bytes)
{
    int code = (int)(in_order ? cudaMallocAsync(buffer, bytes, NULL)
                     : pinned ? cudaMallocHost(buffer, bytes)
                              : cudaMalloc(buffer, bytes));
    if (code == cudaErrorMemoryAllocation)
        ANSWERS(code, cudaGetLastError());
    else
        OK(code);
    return code == 0;
}

static void drop(void *buffer)
{
    OK(in_order ? cudaFreeAsync(buffer, NULL) : pinned ? cudaFreeHost(buffer) : cudaFree(buffer));
}

static unsigned layers(size_t temporary, size_t kept)
{
    unsigned count = 0;
    for (void *buffer = NULL; get(&buffer, temporary); count++) {
        drop(buffer);
        if (!get(&buffer, kept))
            break;
    }
    return count;
}

static unsigned refused(size_t most_live, size_t most, uint64_t random)
{
    static struct {
        void *address;
        size_t bytes;
    } live[BUFFERS];
    size_t bytes = 0;
    unsigned count = 0, refusals = 0;
    for (int i = 0; i < STEPS; i++) {
        size_t wanted = next_random(&random) % most + 1;
        bool gets = next_random(&random) % 4 != 0;
        if (gets && bytes + wanted <= most_live && count < BUFFERS) {
            bool got = get(&live[count].address, wanted);
            refusals += !got;
            live[count].bytes = wanted;
            bytes += got ? wanted : 0;
            count += got;
        } else if (count > 0) {
            size_t which = next_random(&random) % count;
            drop(live[which].address);
            bytes -= live[which].bytes;
            live[which] = live[--count];
        }
    }
    return refusals;
}

int main(int argc, char **argv)
{
    size_t first = number_argument(argc, argv, 2, 0), second = number_argument(argc, argv, 3, 0);
    CHECK(argc > 3 && first && second);
    in_order = argc > 4 && strcmp(argv[4], "async") == 0;
    pinned = argc > 4 && strcmp(argv[4], "pinned") == 0;
    if (strcmp(argv[1], "layers") == 0)
        printf("%u\n", layers(first * MIB, second * MIB));
    else
        printf("%u\n", refused(first * MIB, second * MIB, number_argument(argc, argv, 4, 1)));
    fflush(stdout);
    _Exit(0); /* what stays is no leak */
}
