/* What the outputs are of allocations that are refused: more than any device has. Prints the code
 * and the output of each call. */
#include <cuda.h>
#include "check.h"

#define TOO_LARGE ((size_t)1 << 46)
#define MARK 0x1111u

static void say(const char *name, CUresult code, uint64_t output)
{
    printf("%s: %d, %s\n", name, (int)code, output == MARK ? "unchanged" : output ? "?" : "0");
}

int main(void)
{
    CUcontext context;
    CUstream stream;
    CUmemoryPool pool;
    CUdeviceptr p;
    size_t pitch;
    void *host;
    CUresult code;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocPitch(&p, &pitch, (size_t)1 << 20, 4, 4)); /* its pitch is known from now on */
    OK(cuMemFree(p));

    p = MARK;
    code = cuMemAlloc(&p, TOO_LARGE);
    say("cuMemAlloc", code, p);
    p = MARK;
    pitch = MARK;
    code = cuMemAllocPitch(&p, &pitch, (size_t)1 << 20, TOO_LARGE >> 20, 4);
    say("cuMemAllocPitch", code, p);
    say("its pitch", code, pitch);
    p = MARK;
    code = cuMemAllocAsync(&p, TOO_LARGE, stream);
    say("cuMemAllocAsync", code, p);
    p = MARK;
    code = cuMemAllocFromPoolAsync(&p, TOO_LARGE, pool, stream);
    say("cuMemAllocFromPoolAsync", code, p);
    p = MARK;
    code = cuMemAllocManaged(&p, TOO_LARGE, CU_MEM_ATTACH_GLOBAL);
    say("cuMemAllocManaged", code, p);
    host = (void *)(uintptr_t)MARK;
    code = cuMemAllocHost(&host, TOO_LARGE);
    say("cuMemAllocHost", code, (uintptr_t)host);
    host = (void *)(uintptr_t)MARK;
    code = cuMemHostAlloc(&host, TOO_LARGE, CU_MEMHOSTALLOC_PORTABLE);
    say("cuMemHostAlloc", code, (uintptr_t)host);
    return 0;
}
