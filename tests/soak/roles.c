/* What the threads of soak.c do. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include "soak.h"
#include "simcuda/simcuda.h"

#define HELD 24      /* buffers of a thread, at most */
#define EXCHANGED 32 /* that wait for any thread */
#define BIT(kind) (1u << (kind))
#define EVERY (BIT(ROUND_PLAIN) | BIT(ROUND_FAULTS) | BIT(ROUND_RESETS))

typedef enum { DEVICE, ASYNC, PITCHED, PINNED, KINDS } kind_t;

typedef struct buffer {
    kind_t kind;
    int device;
    char *pointer; /* NULL: none */
    size_t bytes;
    unsigned char value;
} buffer_t;

_Atomic uint64_t operations, contexts;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static buffer_t exchange[EXCHANGED];

static void count_one(void)
{
    atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
}

static uint64_t draw(worker_t *worker, uint64_t below)
{
    return next_random(&worker->random) % below;
}

static void pause_us(long us)
{
    const struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

/* Memory may be short at any time: others hold all there is. Where calls of the driver fail at
 * random their errors are the program's. */
static bool worked(const worker_t *worker, cudaError_t code)
{
    if (code == cudaSuccess)
        return true;
    if (code != cudaErrorMemoryAllocation && worker->round->kind != ROUND_FAULTS)
        FAIL("a call answered %d in a round of kind %d", (int)code, (int)worker->round->kind);
    (void)cudaGetLastError();
    return false;
}

static size_t draw_bytes(worker_t *worker)
{
    size_t power = (size_t)64 << draw(worker, 17);
    return power + draw(worker, power);
}

/* --- buffers ---------------------------------------------------------------------------------- */

static cudaError_t allocate(buffer_t *buffer, cudaStream_t stream)
{
    size_t pitch = 0;
    switch (buffer->kind) {
    case ASYNC:
        return cudaMallocAsync((void **)&buffer->pointer, buffer->bytes, stream);
    case PITCHED:
        return cudaMallocPitch((void **)&buffer->pointer, &pitch, buffer->bytes, 3);
    case PINNED:
        return cudaMallocHost((void **)&buffer->pointer, buffer->bytes);
    default:
        return cudaMalloc((void **)&buffer->pointer, buffer->bytes);
    }
}

static bool make(worker_t *worker, buffer_t *buffer, int device, cudaStream_t stream)
{
    *buffer = (buffer_t){.kind = (kind_t)draw(worker, KINDS),
                         .device = device,
                         .bytes = draw_bytes(worker),
                         .value = (unsigned char)draw(worker, 256)};
    count_one();
    if (!worked(worker, allocate(buffer, stream))) {
        buffer->pointer = NULL;
        return false;
    }
    CHECK(buffer->pointer);
    OK(cudaMemsetAsync(buffer->pointer, buffer->value, buffer->bytes, stream));
    return true;
}

/* Its content is what its maker wrote. `stream` comes behind the writing. */
static void verify(const buffer_t *buffer, cudaStream_t stream)
{
    unsigned char ends[2];
    OK(cudaMemcpyAsync(&ends[0], buffer->pointer, 1, cudaMemcpyDefault, stream));
    OK(cudaMemcpyAsync(&ends[1], buffer->pointer + buffer->bytes - 1, 1, cudaMemcpyDefault,
                       stream));
    OK(cudaStreamSynchronize(stream));
    if (ends[0] != buffer->value || ends[1] != buffer->value)
        FAIL("a buffer of %zu bytes, kind %d, has %d and %d instead of %d", buffer->bytes,
             (int)buffer->kind, ends[0], ends[1], buffer->value);
}

static cudaError_t release(buffer_t *buffer, cudaStream_t stream)
{
    void *pointer = buffer->pointer;
    buffer->pointer = NULL;
    count_one();
    if (buffer->kind == PINNED)
        return cudaFreeHost(pointer);
    return buffer->kind == ASYNC && stream ? cudaFreeAsync(pointer, stream) : cudaFree(pointer);
}

/* Any of the exchange's places changes hands: what is there for what is given. */
static void swap_with_exchange(worker_t *worker, buffer_t *buffer)
{
    buffer_t *place = &exchange[draw(worker, EXCHANGED)];
    pthread_mutex_lock(&lock);
    buffer_t there = *place;
    *place = *buffer;
    pthread_mutex_unlock(&lock);
    *buffer = there;
}

void exchange_empty(const round_t *round)
{
    for (size_t i = 0; i < EXCHANGED; i++) {
        if (!exchange[i].pointer)
            continue;
        OK(cudaSetDevice(exchange[i].device));
        verify(&exchange[i], NULL);
        cudaError_t code = release(&exchange[i], NULL);
        CHECK(code == cudaSuccess || round->kind == ROUND_FAULTS);
    }
}

/* --- roles ------------------------------------------------------------------------------------ */

/* Devices on which everything must succeed. */
static int safe_devices(const worker_t *worker)
{
    return worker->round->devices - (worker->round->kind == ROUND_RESETS);
}

/* Allocates, frees, hands over, takes over; on one device or on all in turn. */
static void mix(worker_t *worker, bool wanders)
{
    int devices = safe_devices(worker), device = (int)draw(worker, (unsigned)devices);
    cudaStream_t streams[16] = {0};
    buffer_t held[HELD] = {0};
    for (int i = 0; i < devices; i++) {
        OK(cudaSetDevice(i));
        OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    for (uint64_t i = 0; i < worker->round->operations; i++) {
        buffer_t *buffer = &held[draw(worker, HELD)];
        if (wanders)
            device = (int)draw(worker, (unsigned)devices);
        if (!buffer->pointer) {
            OK(cudaSetDevice(device));
            make(worker, buffer, device, streams[device]);
            continue;
        }
        OK(cudaSetDevice(buffer->device));
        if (draw(worker, 4) == 0) {
            OK(cudaStreamSynchronize(streams[buffer->device]));
            swap_with_exchange(worker, buffer);
        } else {
            if (draw(worker, 2) == 0)
                verify(buffer, streams[buffer->device]);
            worked(worker, release(buffer, streams[buffer->device]));
        }
    }
    for (size_t i = 0; i < HELD; i++)
        if (held[i].pointer) {
            OK(cudaSetDevice(held[i].device));
            verify(&held[i], streams[held[i].device]);
            worked(worker, release(&held[i], streams[held[i].device]));
        }
    for (int i = 0; i < devices; i++) {
        OK(cudaSetDevice(i));
        OK(cudaStreamSynchronize(streams[i]));
        OK(cudaStreamDestroy(streams[i]));
    }
}

static void mix_on_one(worker_t *worker)
{
    mix(worker, false);
}

static void mix_on_all(worker_t *worker)
{
    mix(worker, true);
}

/* Makes contexts, allocates there, frees some of it, and destroys them. */
static void make_contexts(worker_t *worker)
{
    for (uint64_t i = 0; i <= worker->round->operations / 20; i++) {
        CUcontext context;
        CUdevice device;
        OK(cuDeviceGet(&device, (int)draw(worker, (unsigned)safe_devices(worker))));
        OK(cuCtxCreate_v2(&context, 0, device));
        atomic_fetch_add(&contexts, 1);
        for (uint64_t j = draw(worker, 16); j-- > 0;) {
            CUdeviceptr pointer = 0;
            size_t bytes = draw_bytes(worker);
            count_one();
            /* The runtime's and the driver's codes for this are the same. */
            if (!worked(worker, (cudaError_t)cuMemAlloc_v2(&pointer, bytes)))
                continue;
            OK(cuMemsetD8Async(pointer, (unsigned char)j, bytes, NULL));
            if (draw(worker, 3))
                worked(worker, (cudaError_t)cuMemFree_v2(pointer));
        }
        worked(worker, (cudaError_t)cuCtxDestroy_v2(context));
    }
}

/* Captures what allocates, and what does not, and runs some of it. */
static void capture(worker_t *worker)
{
    cudaStream_t stream;
    void *buffer = NULL;
    OK(cudaSetDevice((int)draw(worker, (unsigned)safe_devices(worker))));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (!worked(worker, cudaMalloc(&buffer, 4096))) {
        OK(cudaStreamDestroy(stream));
        return;
    }
    for (uint64_t i = 0; i <= worker->round->operations / 10; i++) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec;
        void *pointer = NULL, *other = NULL;
        bool allocates = draw(worker, 2);
        count_one();
        OK(cudaStreamBeginCapture(stream, draw(worker, 2) ? cudaStreamCaptureModeRelaxed
                                                          : cudaStreamCaptureModeThreadLocal));
        OK(cudaMemsetAsync(buffer, (int)i, 4096, stream));
        if (allocates) {
            OK(cudaMallocAsync(&pointer, 1000 * (1 + i % 100), stream));
            OK(cudaMemsetAsync(pointer, 1, 1000, stream));
            OK(cudaFreeAsync(pointer, stream));
        }
        OK(cudaStreamEndCapture(stream, &graph));
        if (worked(worker, cudaGraphInstantiate(&exec, graph, 0))) {
            if (worked(worker, cudaGraphLaunch(exec, stream)) &&
                worked(worker, cudaMalloc(&other, 5000)))
                worked(worker, cudaFree(other));
            OK(cudaStreamSynchronize(stream));
            OK(cudaGraphExecDestroy(exec));
        }
        OK(cudaGraphDestroy(graph));
    }
    worked(worker, cudaFree(buffer));
    OK(cudaStreamDestroy(stream));
}

/* Takes all that a device has, and gives it back. */
static void take_all(worker_t *worker)
{
    void *pointers[256];
    size_t count = 0, bytes = (size_t)1 << (20 + draw(worker, 5));
    OK(cudaSetDevice((int)draw(worker, (unsigned)safe_devices(worker))));
    while (count < 256 && worked(worker, cudaMalloc(&pointers[count], bytes))) {
        count_one();
        count++;
    }
    pause_us(500);
    while (count > 0)
        worked(worker, cudaFree(pointers[--count]));
}

/* On the device that is reset: whether a pointer is still good nobody knows. */
static void use_what_is_reset(worker_t *worker)
{
    void *pointers[HELD] = {0};
    OK(cudaSetDevice(worker->round->devices - 1));
    for (uint64_t i = 0; i < worker->round->operations; i++) {
        void **slot = &pointers[draw(worker, HELD)];
        bool used = *slot != NULL;
        cudaError_t code = used ? cudaFree(*slot) : cudaMalloc(slot, draw_bytes(worker));
        count_one();
        if (code != cudaSuccess && code != cudaErrorInvalidValue &&
            code != cudaErrorContextIsDestroyed && code != cudaErrorDeviceUninitialized &&
            code != cudaErrorMemoryAllocation)
            FAIL("on a device that is reset a call answered %d", (int)code);
        if (code != cudaSuccess)
            (void)cudaGetLastError();
        if (used || code != cudaSuccess)
            *slot = NULL;
    }
}

/* --- roles in the background ------------------------------------------------------------------ */

static bool goes_on(const worker_t *worker)
{
    return !atomic_load(&worker->round->over);
}

static void reset_last(worker_t *worker)
{
    OK(cudaSetDevice(worker->round->devices - 1));
    do {
        pause_us(100 + (long)draw(worker, 3000));
        OK(cudaDeviceReset());
        atomic_fetch_add(&contexts, 1);
    } while (goes_on(worker));
}

/* Reports, statistics, marks, and what is idle goes back. */
static void ask(worker_t *worker)
{
    char path[64], name[32];
    cachealloc_stats_t stats;
    do {
        pause_us(100 + (long)draw(worker, 2000));
        if (!shim_stats(&stats))
            continue;
        CHECK(stats.live_peak_bytes >= stats.live_bytes);
        switch (draw(worker, 4)) {
        case 0:
            snprintf(path, sizeof path, "soak-%ld-%p.txt", (long)getpid(), (void *)worker);
            OK(cachealloc_dump(path));
            CHECK(unlink(path) == 0);
            break;
        case 1:
            snprintf(name, sizeof name, "at %llu", (unsigned long long)draw(worker, 1000));
            cachealloc_mark(name);
            break;
        case 2:
            cachealloc_trim();
            break;
        default:
            cachealloc_set_pin_mode(1);
            pause_us(200);
            cachealloc_set_pin_mode(0);
        }
    } while (goes_on(worker));
}

static const struct {
    const char *name;
    int error;
} faults[] = {
    {"cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY},   {"cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY},
    {"cuMemFree_v2", CUDA_ERROR_UNKNOWN},          {"cuMemFreeHost", CUDA_ERROR_UNKNOWN},
    {"cuCtxRecordEvent", CUDA_ERROR_UNKNOWN},      {"cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY},
    {"cuEventQuery", CUDA_ERROR_UNKNOWN},          {"cuEventRecord", CUDA_ERROR_UNKNOWN},
    {"cuStreamWaitEvent", CUDA_ERROR_UNKNOWN},     {"cuMemGetInfo_v2", CUDA_ERROR_UNKNOWN},
    {"cuPointerGetAttribute", CUDA_ERROR_UNKNOWN}, {"cuPointerSetAttribute", CUDA_ERROR_UNKNOWN},
};

void faults_off(void)
{
    for (size_t i = 0; simcuda_fail && i < sizeof faults / sizeof faults[0]; i++)
        (void)simcuda_fail(faults[i].name, NULL, 0, 0);
}

/* One of the shim's calls of the driver after the other fails. */
static void fail(worker_t *worker)
{
    do {
        size_t which = draw(worker, sizeof faults / sizeof faults[0]);
        uint64_t nth = 1 + draw(worker, 8);
        /* Whichever is there; without a shim nothing fails. */
        if (simcuda_fail &&
            simcuda_fail(faults[which].name, "libcachealloc.so", nth, faults[which].error) != 0)
            (void)simcuda_fail(faults[which].name, "libcachealloc-debug.so", nth,
                               faults[which].error);
        pause_us(50 + (long)draw(worker, 1000));
    } while (goes_on(worker));
}

const role_t roles[] = {
    {"mix on one device", mix_on_one, EVERY, false},
    {"mix on all devices", mix_on_all, EVERY, false},
    {"make contexts", make_contexts, EVERY, false},
    {"capture", capture, BIT(ROUND_PLAIN) | BIT(ROUND_RESETS), false},
    {"take all", take_all, EVERY, false},
    {"use what is reset", use_what_is_reset, BIT(ROUND_RESETS), false},
    {"reset the last device", reset_last, BIT(ROUND_RESETS), true},
    {"ask", ask, EVERY, true},
    {"fail", fail, BIT(ROUND_FAULTS), true},
};
const size_t role_count = sizeof roles / sizeof roles[0];
