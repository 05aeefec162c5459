/* What a context keeps cached is had by a request that comes while it is about to end: in another
 * context, and in a thread whose own context that is, which is told what CUDA tells it.
 *
 * drv_ctx_room device|async|array|pinned [kept|own]: what is asked for. The context is a
 * created one, which is destroyed; with `kept` it is the primary context, which lives on; with
 * `own` it is current to who asks. The device has 256 MiB, the host as much. */
#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "check.h"

#define MIB ((size_t)1 << 20)
#define CACHED (192 * MIB)
#define PIECE (32 * MIB) /* in segments of their own */
#define ASKED (160 * MIB)

static const char *kind;
static bool kept, own;
static CUdevice device;
static CUcontext asker, victim;
static atomic_bool asking, over;

static void fill_caches(void)
{
    CUdeviceptr pointers[CACHED / PIECE];
    void *pinned[CACHED / PIECE];
    bool host = strcmp(kind, "pinned") == 0;
    for (size_t i = 0; i < CACHED / PIECE; i++) {
        OK(cuMemAlloc(&pointers[i], PIECE));
        if (host)
            OK(cuMemAllocHost(&pinned[i], PIECE));
    }
    for (size_t i = 0; i < CACHED / PIECE; i++) {
        OK(cuMemFree(pointers[i]));
        if (host)
            OK(cuMemFreeHost(pinned[i]));
    }
}

static CUresult ask(void)
{
    CUdeviceptr address;
    void *host;
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR what = {.Width = 32768,
                                        .Height = ASKED / 32768,
                                        .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                        .NumChannels = 1};
    CUresult code = CUDA_ERROR_UNKNOWN;
    if (strcmp(kind, "device") == 0 && (code = cuMemAlloc(&address, ASKED)) == CUDA_SUCCESS)
        OK(cuMemFree(address));
    if (strcmp(kind, "async") == 0 &&
        (code = cuMemAllocAsync(&address, ASKED, NULL)) == CUDA_SUCCESS)
        OK(cuMemFree(address));
    if (strcmp(kind, "array") == 0 && (code = cuArrayCreate(&array, &what)) == CUDA_SUCCESS)
        OK(cuArrayDestroy(array));
    if (strcmp(kind, "pinned") == 0 && (code = cuMemAllocHost(&host, ASKED)) == CUDA_SUCCESS)
        OK(cuMemFreeHost(host));
    return code;
}

/* Asks when the end has begun: then the cache counts as free memory no more. */
static void *thread_body(void *unused)
{
    (void)unused;
    size_t free, all;
    OK(cuCtxSetCurrent(own ? victim : asker));
    OK(cuMemGetInfo(&free, &all));
    CHECK(free >= ASKED);
    atomic_store(&asking, true);
    while (!atomic_load(&over) && cuMemGetInfo(&free, &all) == CUDA_SUCCESS && free >= ASKED)
        sched_yield();
    CUresult code = ask();
    if (own && (code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_INVALID_CONTEXT))
        code = CUDA_SUCCESS;
    CHECK(code == CUDA_SUCCESS);
    OK(cuCtxSetCurrent(NULL));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    CUcontext popped;
    kind = argc > 1 ? argv[1] : "device";
    kept = argc > 2 && strcmp(argv[2], "kept") == 0;
    own = argc > 2 && strcmp(argv[2], "own") == 0;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate(&asker, NULL, 0, device));
    OK(cuCtxPopCurrent(&popped));
    if (kept) {
        OK(cuDevicePrimaryCtxRetain(&victim, device));
        OK(cuDevicePrimaryCtxRetain(&victim, device));
        OK(cuCtxSetCurrent(victim));
    } else {
        OK(cuCtxCreate(&victim, NULL, 0, device));
    }
    fill_caches();
    OK(pthread_create(&thread, NULL, thread_body, NULL));
    while (!atomic_load(&asking))
        sched_yield();
    OK(kept ? cuDevicePrimaryCtxRelease(device) : cuCtxDestroy(victim));
    atomic_store(&over, true);
    OK(pthread_join(thread, NULL));
    OK(cuCtxDestroy(asker));
    if (kept)
        OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
