/* cuMemAllocPitch with every element size: the pitch is the driver's, on every device and in every
 * context, bad arguments answer as the driver does, and more than there is, is refused. Prints what
 * was answered: the lines are the same with and without a pool.
 *
 * drv_pitched [odd] */
#include <cuda.h>
#include "check.h"

static void ask(size_t width, size_t height, unsigned element)
{
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    int code = (int)cuMemAllocPitch(&pointer, &pitch, width, height, element);
    printf("%zu x %zu of %u: %d, %zu\n", width, height, element, code, pitch);
    if (code != 0)
        return;
    OK(cuMemsetD2D8(pointer, pitch, 1, pitch, height));
    OK(cuMemFree(pointer));
}

static void ask_all(void)
{
    static const unsigned elements[] = {4, 8, 16, 0, 1, 5, 32};
    static const size_t widths[] = {100, 512, 513, 300, 1024, 1000, 0, 60000, (size_t)1 << 46};
    for (size_t e = 0; e < sizeof(elements) / sizeof(elements[0]); e++) {
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
            ask(widths[w], 3, elements[e]);
            ask(widths[w], 0, elements[e]);
        }
        ask(100, SIZE_MAX / 256, elements[e]); /* the product does not fit */
        ask(100, SIZE_MAX / 512, elements[e]);
        ask(100, (size_t)1 << 40, elements[e]);
    }
    CUdeviceptr pointer;
    size_t pitch;
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(NULL, &pitch, 100, 3, 4));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&pointer, NULL, 100, 3, 4));
}

/* More widths than anybody remembers. */
static void ask_many(void)
{
    size_t sum = 0;
    for (size_t i = 0; i < 2000; i++) {
        CUdeviceptr pointer;
        size_t pitch, width = i * 37 % 700 * 512 + i % 512 + 1;
        OK(cuMemAllocPitch(&pointer, &pitch, width, 2, 4));
        CHECK(pitch >= width);
        OK(cuMemsetD8(pointer + pitch, 1, pitch));
        OK(cuMemFree(pointer));
        sum = sum * 3 + pitch;
    }
    printf("many: %zu\n", sum);
}

/* For a driver whose pitch depends on the height, which ours takes for impossible. */
static void ask_odd(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuCtxCreate(&context, NULL, 0, 0));
    ask(100, 2, 4);
    ask(50, 3, 4); /* here it shows */
    ask(100, 3, 4);
    ask(100, 2, 4);
    ask(50, 4, 8);
    ask(60, 5, 8);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "odd") == 0) {
        ask_odd();
        return 0;
    }
    CUcontext context;
    CUdeviceptr pointer;
    size_t pitch;
    int devices;
    OK(cuInit(0));
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocPitch(&pointer, &pitch, 100, 3, 4));
    OK(cuDeviceGetCount(&devices));
    for (int i = 0; i < 2 * devices; i++) {
        OK(cuCtxCreate(&context, NULL, 0, i % devices));
        ask_all();
        ask_many();
        OK(cuMemAllocPitch(&pointer, &pitch, 100, 3, 4)); /* goes with its context */
        OK(cuCtxDestroy(context));
    }
    return 0;
}
