/* What tells of stream-ordered memory. Prints whether it is of a memory pool, and whether it has an
 * IPC handle. */
#include <cuda.h>
#include "check.h"

int main(void)
{
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory;
    CUmemoryPool pool = NULL;
    CUipcMemHandle handle;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&memory, 5000, stream));
    OK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
    puts(pool ? "of a pool" : "of no pool");
    puts(cuIpcGetMemHandle(&handle, memory) == CUDA_SUCCESS ? "has a handle" : "has no handle");
    OK(cuMemFreeAsync(memory, stream));
    OK(cuStreamSynchronize(stream));
    return 0;
}
