/* As deadlock.c, with two contexts on one device: memory of the first is freed, work that never
 * ends of itself is launched in the second, and memory is allocated before that work is let go.
 *
 * drv_deadlock CASE [BYTES [COUNT]]
 *   same     allocated in the first context, by whom the memory was freed
 *   foreign  as same, but freed while the second context was current
 *   other    allocated in the second context: the first must have let go of the memory
 *   before   as same, but that work was launched before the memory is freed, which waits for the
 *            work of the first context alone
 *   array    as before, but an array is made of the memory, which the driver serves */
#include <cuda.h>
#include <semaphore.h>
#include <stdbool.h>
#include "check.h"

#define BUFFERS_MOST 4096
#define HOGS_MOST 65536

static CUdeviceptr buffers[BUFFERS_MOST], hogs[HOGS_MOST];
static size_t bytes, count, hog_count;
static CUstream stream;
static sem_t gate;

static void wait_for_gate(void *unused)
{
    (void)unused;
    sem_wait(&gate);
}

static void allocate(void)
{
    for (size_t i = 0; i < count; i++) {
        OK(cuMemAlloc(&buffers[i], bytes));
        CHECK(buffers[i] != 0);
    }
}

static void release(void)
{
    for (size_t i = 0; i < count; i++)
        OK(cuMemFree(buffers[i]));
}

static void hold(CUcontext context)
{
    OK(cuCtxSetCurrent(context));
    OK(cuLaunchHostFunc(stream, wait_for_gate, NULL));
}

static void occupy(void)
{
    size_t available, total;
    OK(cuMemGetInfo(&available, &total));
    for (size_t size = available; size > bytes;) {
        size = size / 2 > bytes ? size / 2 : bytes;
        while (hog_count < HOGS_MOST && cuMemAlloc(&hogs[hog_count], size) == CUDA_SUCCESS)
            hog_count++;
    }
    CHECK(hog_count < HOGS_MOST);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "same";
    CUcontext first, second;
    CUdevice device;
    CUarray flat;
    bytes = number_argument(argc, argv, 2, (size_t)16 << 20);
    count = number_argument(argc, argv, 3, 4);
    CUDA_ARRAY_DESCRIPTOR of_bytes = {4096, bytes / 4096, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CHECK(count <= BUFFERS_MOST && sem_init(&gate, 0, 0) == 0);
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate(&second, NULL, 0, device));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuCtxCreate(&first, NULL, 0, device));
    allocate();
    occupy();

    bool array = strcmp(name, "array") == 0, before = array || strcmp(name, "before") == 0;
    if (before)
        hold(second);
    if (strcmp(name, "foreign") == 0)
        OK(cuCtxSetCurrent(second));
    else
        OK(cuCtxSetCurrent(first));
    release();
    if (!before)
        hold(second);
    if (strcmp(name, "other") != 0)
        OK(cuCtxSetCurrent(first));
    if (array)
        OK(cuArrayCreate(&flat, &of_bytes));
    else
        allocate();
    OK(cuCtxSetCurrent(second));
    ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    OK(sem_post(&gate));
    OK(cuStreamSynchronize(stream));

    if (array)
        OK(cuArrayDestroy(flat));
    else
        release();
    while (hog_count > 0)
        OK(cuMemFree(hogs[--hog_count]));
    OK(cuCtxDestroy(first));
    OK(cuCtxDestroy(second));
    return 0;
}
