/* A program that has floating-point traps on, or looks at the flags: fp_traps flags|traps DUMP. The
 * calls that are hooked leave the flags as they were and trap nowhere; nor does the report at exit,
 * of what is left there. */
#include "api.h"

#include <fenv.h>

static void *left;

static NOINLINE void device_memory(void)
{
    void *pointer;
    for (unsigned i = 0; i < 3000; i++) {
        OK(cudaMalloc(&pointer, 1000 + i * 7));
        OK(cudaFree(pointer));
    }
    OK(cudaMalloc(&pointer, (size_t)40 << 20));
    OK(cudaFree(pointer));
}

static NOINLINE void other_kinds(void)
{
    void *pointer;
    size_t pitch;
    cudaArray_t array;
    cudaStream_t stream;
    const struct cudaChannelFormatDesc format = {.x = 32, .f = cudaChannelFormatKindUnsigned};
    OK(cudaMallocPitch(&pointer, &pitch, 1000, 30));
    OK(cudaFree(pointer));
    OK(cudaMallocHost(&pointer, 5000));
    OK(cudaFreeHost(pointer));
    OK(cudaMallocManaged(&pointer, 5000, cudaMemAttachGlobal));
    OK(cudaFree(pointer));
    OK(cudaMallocArray(&array, &format, 64, 64, 0));
    OK(cudaFreeArray(array));
    OK(cudaStreamCreate(&stream));
    for (unsigned i = 0; i < 100; i++) {
        OK(cudaMallocAsync(&pointer, 3000 + i * 100, stream));
        OK(cudaFreeAsync(pointer, stream));
    }
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}

static NOINLINE void out_of_memory(void)
{
    void *pointer;
    size_t free_bytes, all;
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&pointer, (size_t)1 << 42));
    cudaGetLastError();
    OK(cudaMemGetInfo(&free_bytes, &all));
    OK(cudaFree(NULL));
}

static NOINLINE void own_interface(const char *dump)
{
    if (!api_there())
        return;
    api_stats();
    cachealloc_trim();
    OK(cachealloc_dump(dump));
    api_info(left);
}

static void (*const steps[])(void) = {device_memory, other_kinds, out_of_memory};

static void look(const char *after)
{
    int flags = fetestexcept(FE_ALL_EXCEPT);
    if (flags)
        FAIL("flags %#x after %s", (unsigned)flags, after);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    feclearexcept(FE_ALL_EXCEPT);
    if (!strcmp(argv[1], "traps"))
        CHECK(feenableexcept(FE_ALL_EXCEPT) != -1);
    OK(cudaMalloc(&left, 5000));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char name[16];
        steps[i]();
        snprintf(name, sizeof name, "step %zu", i);
        look(name);
    }
    own_interface(argv[2]);
    look("the library's own");
    if (!strcmp(argv[1], "traps"))
        CHECK(fegetexcept() == FE_ALL_EXCEPT);
    return 0;
}
