/* Green contexts: their memory is the primary context's, their streams are their own. "drv_green
 * MODE [stream]"; with `stream` their contexts are learned from their streams (cuStreamGetCtx).
 *   serve  allocates and frees with a green or the primary context current, and from either
 *   fence  memory is freed with work in flight on streams of green contexts, and allocated again
 *   own    what is freed in the order of a green context's default stream is read there before
 *   leak   forgets 3 buffers of 1000 bytes that were allocated with a green context current
 *   last   a green context holds the last reference to its primary, whose memory goes with it
 *   reset  the primary is reset under a green context, and used again
 *   captured  the same, with a stream of the green context in capture
 *   after  the green context is destroyed after a reset, with the last reference to the primary */
#include <cuda.h>
#include <stdbool.h>
#include <time.h>
#include "check.h"
#include "green.h"
#include "shim_stats.h"

#define BUFFERS 40
#define ROUNDS 300

typedef struct green {
    CUgreenCtx handle;
    CUcontext context;
    CUstream stream;
} green_t;

static CUcontext primary;
static bool by_stream;

static green_t make(void)
{
    green_t green = {.handle = green_handle()};
    OK(cuGreenCtxStreamCreate(&green.stream, green.handle, CU_STREAM_NON_BLOCKING, 0));
    if (by_stream)
        OK(cuStreamGetCtx(green.stream, &green.context));
    else
        OK(cuCtxFromGreenCtx(&green.context, green.handle));
    return green;
}

static void end(green_t green)
{
    OK(cuStreamSynchronize(green.stream));
    OK(cuStreamDestroy(green.stream));
    OK(cuGreenCtxDestroy(green.handle));
}

static size_t bytes_of(size_t i)
{
    static const size_t sizes[] = {500, 70000, (size_t)1 << 20, (size_t)5 << 20};
    return sizes[i % 4];
}

static void write_and_read(CUdeviceptr p, size_t bytes, unsigned char value)
{
    unsigned char last = 0;
    OK(cuMemsetD8(p, value, bytes));
    OK(cuMemcpyDtoH(&last, p + bytes - 1, 1));
    CHECK(last == value);
}

static void serve(void)
{
    cachealloc_stats_t stats;
    CUdeviceptr p[BUFFERS];
    green_t green = make();
    for (int round = 0; round < 6; round++) {
        for (size_t i = 0; i < BUFFERS; i++) {
            CUcontext owner = NULL;
            OK(cuCtxSetCurrent(i % 2 ? green.context : primary));
            OK(cuMemAlloc(&p[i], bytes_of(i)));
            OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p[i]));
            CHECK(owner == primary || owner == green.context); /* [hw: which one?] */
            write_and_read(p[i], bytes_of(i), (unsigned char)i);
        }
        OK(cuCtxSetCurrent(round % 2 ? green.context : primary));
        for (size_t i = 0; i < BUFFERS; i++)
            if (round != 4 || i % 4 != 1)
                OK(cuMemFree(p[i]));
        if (round != 4)
            continue;
        /* A quarter outlives the green context it was made with. */
        OK(cuCtxSetCurrent(primary));
        end(green);
        for (size_t i = 1; i < BUFFERS; i += 4) {
            write_and_read(p[i], bytes_of(i), 7);
            OK(cuMemFree(p[i]));
        }
        green = make();
    }
    OK(cuCtxSetCurrent(primary));
    end(green);
    if (shim_stats(&stats))
        CHECK(stats.live_bytes == 0 && stats.reserved_bytes < (size_t)256 << 20);
}

static void fence(void)
{
    green_t greens[2] = {make(), make()};
    CUdeviceptr p[BUFFERS];
    CUstream other;
    uint64_t random = 5;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cuMemAlloc(&p[i], bytes_of(i)));
    for (int round = 0; round < ROUNDS; round++) {
        size_t i = next_random(&random) % BUFFERS;
        green_t *green = &greens[round % 2];
        /* Whichever context is current, the work is a green context's or the primary's. */
        OK(cuCtxSetCurrent(round % 3 ? green->context : primary));
        OK(cuMemsetD8Async(p[i], 1, bytes_of(i), round % 5 ? green->stream : other));
        OK(cuMemFree(p[i]));
        OK(cuCtxSetCurrent(round % 7 ? primary : green->context));
        OK(cuMemAlloc(&p[i], bytes_of(i)));
    }
    OK(cuCtxSetCurrent(primary));
    OK(cuCtxSynchronize());
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cuMemFree(p[i]));
    end(greens[0]);
    end(greens[1]);
    OK(cuStreamDestroy(other));
}

/* Work that takes a while. */
static void dawdle(void *nothing)
{
    const struct timespec while_ = {.tv_nsec = 20000000};
    (void)nothing;
    nanosleep(&while_, NULL);
}

static void own(CUstream stream)
{
    enum { BYTES = 100000 };
    unsigned char *host;
    CUdeviceptr p;
    green_t green = make();
    OK(cuMemAllocHost((void **)&host, BYTES));
    OK(cuCtxSetCurrent(green.context));
    OK(cuMemAllocAsync(&p, BYTES, stream));
    OK(cuMemsetD8Async(p, 0x11, BYTES, stream));
    OK(cuLaunchHostFunc(stream, dawdle, NULL));
    OK(cuMemcpyDtoHAsync(host, p, BYTES, stream));
    OK(cuMemFreeAsync(p, stream));
    OK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(host[i] == 0x11);
    OK(cuCtxSetCurrent(primary));
    OK(cuMemFreeHost(host));
    end(green);
}

static void leak(void)
{
    CUdeviceptr forgotten;
    green_t green = make();
    OK(cuCtxSetCurrent(green.context));
    for (int i = 0; i < 3; i++)
        OK(cuMemAlloc(&forgotten, 1000));
    OK(cuCtxSetCurrent(primary));
    end(green);
}

/* All that is served now must be there: what died with the primary faults. */
static void use_again(void)
{
    CUdeviceptr p[BUFFERS];
    green_t green = make();
    for (int round = 0; round < 20; round++) {
        OK(cuCtxSetCurrent(round % 2 ? green.context : primary));
        for (size_t i = 0; i < BUFFERS; i++) {
            OK(cuMemAlloc(&p[i], bytes_of(i)));
            write_and_read(p[i], bytes_of(i), (unsigned char)round);
        }
        for (size_t i = 0; i < BUFFERS; i++)
            OK(cuMemFree(p[i]));
    }
    OK(cuCtxSetCurrent(primary));
    end(green);
}

static void primary_ends(bool by_reset, bool captured)
{
    cachealloc_stats_t stats;
    CUdeviceptr lost;
    green_t green = make();
    OK(cuCtxSetCurrent(green.context));
    for (int i = 0; i < 5; i++)
        OK(cuMemAlloc(&lost, bytes_of((size_t)i)));
    OK(cuCtxSetCurrent(NULL));
    if (captured)
        OK(cuStreamBeginCapture(green.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    else
        OK(cuStreamDestroy(green.stream));
    if (by_reset) {
        OK(cuDevicePrimaryCtxReset(0));
        (void)cuGreenCtxDestroy(green.handle); /* [hw: its answer] */
    } else {
        OK(cuDevicePrimaryCtxRelease(0));
        if (shim_stats(&stats))
            CHECK(stats.live_bytes != 0); /* the green context still holds it */
        OK(cuGreenCtxDestroy(green.handle));
    }
    if (shim_stats(&stats))
        CHECK(stats.live_bytes == 0 && stats.reserved_bytes == 0);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    use_again();
    /* Fences are still had: what is freed is used again. */
    if (shim_stats(&stats))
        CHECK(stats.live_bytes == 0 && stats.reserved_bytes < (size_t)384 << 20);
}

/* What is allocated between the reset and the end goes with it, though the green context is dead.
 */
static void ends_after_reset(void)
{
    cachealloc_stats_t stats;
    CUdeviceptr lost;
    green_t green = make();
    OK(cuStreamDestroy(green.stream));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc(&lost, 1000));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRelease(0));
    (void)cuGreenCtxDestroy(green.handle); /* [hw: its answer, and whether it counts] */
    unsigned flags;
    int active = 1;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    if (shim_stats(&stats))
        CHECK((stats.reserved_bytes == 0) == !active);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    use_again();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "serve";
    by_stream = argc > 2 && strcmp(argv[2], "stream") == 0;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    if (strcmp(mode, "fence") == 0)
        fence();
    else if (strcmp(mode, "own") == 0) {
        own(NULL);
        own(CU_STREAM_LEGACY);
    } else if (strcmp(mode, "leak") == 0)
        leak();
    else if (strcmp(mode, "after") == 0)
        ends_after_reset();
    else if (strcmp(mode, "last") == 0 || strcmp(mode, "reset") == 0 ||
             strcmp(mode, "captured") == 0)
        primary_ends(strcmp(mode, "last") != 0, strcmp(mode, "captured") == 0);
    else
        serve();
    return 0;
}
