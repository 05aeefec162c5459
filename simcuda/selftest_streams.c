/* Order: streams, events, captures, and what a free waits for. See selftest.c. */
#include "selftest.h"

#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int order[8], ordered;
static void note_fn(void *arg)
{
    order[ordered++] = (int)(intptr_t)arg;
}

void streams_run_in_order_and_hold_only_themselves(void)
{
    CUstream a, b;
    static gate_t g = GATE;
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    gate_hold(&g, a);
    OK(cuLaunchHostFunc(a, note_fn, (void *)1));
    OK(cuLaunchHostFunc(a, note_fn, (void *)2));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    OK(cuStreamSynchronize(b));
    OK(cuStreamQuery(b));
    gate_open(&g);
    OK(cuStreamSynchronize(a));
    CHECK(ordered == 2 && order[0] == 1 && order[1] == 2);
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
}

void legacy_stream_orders_blocking_streams_only(void)
{
    CUstream blocking, free_running;
    CUevent legacy, other, after;
    static gate_t g = GATE;
    primary();
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&legacy, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&after, CU_EVENT_DISABLE_TIMING));
    gate_hold(&g, blocking);
    OK(cuLaunchHostFunc(CU_STREAM_LEGACY, note_fn, (void *)1));
    OK(cuEventRecord(legacy, NULL));
    OK(cuEventRecord(other, free_running));
    usleep(10000); /* time to go wrong */
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(legacy));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    OK(cuEventQuery(other));
    gate_open(&g);
    OK(cuEventSynchronize(legacy));
    /* and the other way round: a blocking stream waits for the legacy stream */
    gate_hold(&g, CU_STREAM_LEGACY);
    OK(cuLaunchHostFunc(blocking, note_fn, (void *)2));
    OK(cuEventRecord(after, blocking));
    OK(cuEventRecord(other, free_running));
    usleep(10000);
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(after));
    OK(cuEventQuery(other));
    gate_open(&g);
    OK(cuEventSynchronize(after));
    CHECK(ordered == 2 && order[0] == 1 && order[1] == 2);
}

void per_thread_stream_is_another_stream(void)
{
    static gate_t g = GATE;
    unsigned long long a, b;
    primary();
    OK(cuStreamGetId(CU_STREAM_LEGACY, &a));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &b));
    CHECK(a != b);
    gate_hold(&g, CU_STREAM_PER_THREAD);
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    gate_open(&g);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

void context_record_covers_every_stream_and_does_not_block(void)
{
    CUstream s[3];
    CUevent e, later;
    gate_t g[3] = {GATE, GATE, GATE};
    CUcontext c = primary();
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&later, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(e));
    OK(cuCtxRecordEvent(c, e));
    OK(cuEventQuery(e));
    OK(cuStreamCreate(&s[0], CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&s[1], CU_STREAM_DEFAULT));
    s[2] = CU_STREAM_PER_THREAD;
    for (int i = 0; i < 3; i++) {
        gate_hold(&g[i], s[i]);
    }
    OK(cuCtxRecordEvent(c, e));
    for (int i = 0; i < 3; i++) {
        IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
        gate_open(&g[i]);
        OK(cuStreamSynchronize(s[i]));
    }
    OK(cuEventQuery(e));
    /* work that comes after the record does not count; a destroyed stream's does */
    OK(cuCtxRecordEvent(c, later));
    gate_hold(&g[0], s[0]);
    OK(cuEventQuery(later));
    OK(cuStreamDestroy(s[0]));
    OK(cuCtxRecordEvent(c, e));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    gate_open(&g[0]);
    OK(cuEventSynchronize(e));
}

void context_record_wants_the_same_context(void)
{
    CUcontext a = primary(), b;
    CUevent e;
    OK(cuEventCreate(&e, 0));
    OK(cuCtxCreate(&b, NULL, 0, 0));
    IS(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(b, e));
    OK(cuCtxRecordEvent(a, e));
    OK(cuCtxDestroy(b));
}

void events_wait_across_streams_and_measure_time(void)
{
    CUstream a, b;
    CUevent start, end, plain;
    static gate_t g = GATE;
    float ms = -1;
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, end));
    OK(cuEventRecord(start, a));
    gate_hold(&g, a);
    OK(cuEventRecord(end, a));
    OK(cuStreamWaitEvent(b, end, 0));
    OK(cuLaunchHostFunc(b, note_fn, (void *)1));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    IS(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, start, end));
    usleep(2000);
    CHECK(ordered == 0);
    gate_open(&g);
    OK(cuStreamSynchronize(b));
    CHECK(ordered == 1);
    OK(cuEventElapsedTime(&ms, start, end));
    CHECK(ms >= 1.5f && ms < 5000);
    OK(cuEventRecord(plain, a));
    OK(cuEventSynchronize(plain));
    IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, plain));
    OK(cuEventDestroy(start));
    OK(cuEventDestroy(end));
    OK(cuEventDestroy(plain));
}

typedef struct freer {
    CUcontext ctx;
    CUdeviceptr p;
    _Atomic bool done;
} freer_t;

void a_second_record_outlives_the_first(void)
{
    CUstream a, b;
    CUevent e, end;
    static gate_t g = GATE;
    float ms = -1;
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, 0));
    OK(cuEventCreate(&end, 0));
    gate_hold(&g, a);
    OK(cuEventRecord(e, a));
    OK(cuEventRecord(e, b));
    OK(cuEventRecord(end, b));
    OK(cuEventSynchronize(e));
    usleep(5000);
    gate_open(&g);
    OK(cuStreamSynchronize(a));
    OK(cuEventElapsedTime(&ms, e, end));
    CHECK(ms >= 0);
}

static _Atomic bool copied;
static void *long_copy(void *arg)
{
    freer_t *f = arg;
    void *pinned;
    OK(cuCtxSetCurrent(f->ctx));
    OK(cuMemAllocHost(&pinned, 64 << 20));
    OK(cuMemcpyHtoD(f->p, pinned, 64 << 20));
    copied = true;
    OK(cuMemFreeHost(pinned));
    return NULL;
}

void an_operation_waits_for_a_synchronous_copy_before_it(void)
{
    freer_t f = {.ctx = primary()};
    pthread_t t;
    unsigned char ends[2];
    OK(cuMemAlloc(&f.p, 64 << 20));
    pthread_create(&t, NULL, long_copy, &f);
    while (cuStreamQuery(NULL) != CUDA_ERROR_NOT_READY && !copied) {
    }
    OK(cuMemsetD8Async(f.p, 0xbb, 64 << 20, NULL));
    OK(cuStreamSynchronize(NULL));
    pthread_join(t, NULL);
    OK(cuMemcpyDtoH(&ends[0], f.p, 1));
    OK(cuMemcpyDtoH(&ends[1], f.p + (64 << 20) - 1, 1));
    CHECK(ends[0] == 0xbb && ends[1] == 0xbb);
}

static void *free_main(void *arg)
{
    freer_t *f = arg;
    OK(cuCtxSetCurrent(f->ctx));
    OK(cuMemFree(f->p));
    f->done = true;
    return NULL;
}

static void free_against_a_held_stream(bool waits)
{
    CUstream s;
    static gate_t g = GATE;
    freer_t f = {.ctx = primary()};
    pthread_t t;
    OK(cuMemAlloc(&f.p, 1 << 20));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    gate_hold(&g, s);
    pthread_create(&t, NULL, free_main, &f);
    if (waits) {
        usleep(20000);
        CHECK(!f.done);
        gate_open(&g);
        pthread_join(t, NULL);
    } else {
        pthread_join(t, NULL);
        gate_open(&g);
    }
    CHECK(f.done);
    OK(cuStreamSynchronize(s));
}

void plain_free_waits_for_its_context(void)
{
    free_against_a_held_stream(true);
}

void plain_free_does_not_wait_for_another_context(void)
{
    static gate_t g = GATE;
    CUcontext another;
    CUstream s;
    CUdeviceptr p;
    primary();
    OK(cuMemAlloc(&p, 1 << 20));
    OK(cuCtxCreate(&another, NULL, 0, 0));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    gate_hold(&g, s);
    OK(cuMemFree(p));
    gate_open(&g);
    OK(cuCtxDestroy(another));
}

static void *unregister_main(void *arg)
{
    freer_t *f = arg;
    OK(cuCtxSetCurrent(f->ctx));
    OK(cuMemHostUnregister((void *)(uintptr_t)f->p));
    f->done = true;
    return NULL;
}

void unregistering_waits_for_its_context(void)
{
    static gate_t g = GATE;
    static char memory[1 << 16] __attribute__((aligned(4096)));
    CUstream s;
    pthread_t t;
    freer_t f = {.ctx = primary(), .p = (uintptr_t)memory};
    OK(cuMemHostRegister(memory, sizeof(memory), 0));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    gate_hold(&g, s);
    pthread_create(&t, NULL, unregister_main, &f);
    usleep(20000);
    CHECK(!f.done);
    gate_open(&g);
    pthread_join(t, NULL);
    CHECK(f.done);
}

void free_waits_can_be_switched_off(void) /* SIM, free_waits:0 */
{
    free_against_a_held_stream(false);
}

void capture_is_noticed_and_spoiled_as_documented(void)
{
    CUstream s, n;
    CUevent e, f;
    CUgraph graph;
    CUstreamCaptureStatus st;
    CUdeviceptr p;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext c = primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&n, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&f, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&p, 1024));
    /* a capture swallows what is put into it */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuLaunchHostFunc(s, note_fn, NULL));
    OK(cuStreamIsCapturing(s, &st));
    CHECK(st == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuEventRecord(f, s));
    OK(cuStreamWaitEvent(n, f, 0));
    OK(cuStreamIsCapturing(n, &st));
    CHECK(st == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuEventRecord(e, n));
    OK(cuStreamWaitEvent(s, e, 0));
    OK(cuStreamEndCapture(s, &graph));
    CHECK(graph && ordered == 0);
    OK(cuGraphDestroy(graph));
    OK(cuStreamIsCapturing(n, &st));
    CHECK(st == CU_STREAM_CAPTURE_STATUS_NONE);
    /* a context-wide record breaks it */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(c, e));
    OK(cuStreamIsCapturing(s, &st));
    CHECK(st == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &graph));
    CHECK(graph == NULL);
    OK(cuCtxRecordEvent(c, e));
    /* an allocation breaks a global one, unless the thread is relaxed */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, 1024));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&p, 1024));
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &graph));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
       cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
    IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &graph));
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamDestroy(s)); /* takes its capture along */
    OK(cuCtxRecordEvent(c, e));
}

static void *end_main(void *stream)
{
    CUgraph graph;
    IS(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(stream, &graph));
    return NULL;
}

/* Whether the call is refused, and the capture broken by it. */
#define SPOILS(code, call)                                                                         \
    do {                                                                                           \
        OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));                                \
        IS(code, call);                                                                            \
        IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &graph));                  \
    } while (0)

void calls_beside_a_capture_are_refused_as_hardware_does(void)
{
    CUstream s, other;
    CUevent e;
    CUgraph graph;
    CUdeviceptr p, q;
    CUmemoryPool pool;
    pthread_t t;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, 1024, other));
    OK(cuStreamSynchronize(other));
    SPOILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAllocAsync(&q, 1024, other));
    SPOILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFreeAsync(p, other));
    SPOILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(other));
    SPOILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemPoolTrimTo(pool, 0));
    OK(cuMemFreeAsync(p, other));
    /* an event of the capture, in every mode */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(e, s));
    IS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &graph));
    /* the wrong thread's end is an end */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pthread_create(&t, NULL, end_main, s);
    pthread_join(t, NULL);
    IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &graph));
}

void kernels_take_their_time(void) /* SIM: kernel_ns:3000000 */
{
    CUmodule mod;
    CUfunction fn;
    CUdeviceptr g;
    size_t bytes;
    CUevent a, b;
    float ms = 0;
    primary();
    OK(cuModuleLoadData(&mod, "any image"));
    OK(cuModuleGetFunction(&fn, mod, "kernel"));
    OK(cuModuleGetGlobal(&g, &bytes, mod, "variable"));
    CHECK(g && bytes);
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventRecord(a, NULL));
    OK(cuLaunchKernel(fn, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernel(fn, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(fn, 1, 1, 1, 2048, 1, 1, 0, NULL, NULL, NULL));
    OK(cuEventRecord(b, NULL));
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    CHECK(ms >= 6.0f);
    OK(cuModuleUnload(mod));
}

void sets_take_their_time(void) /* SIM: set_ns:3000000 */
{
    CUdeviceptr at;
    CUevent a, b;
    float ms = 0;
    primary();
    OK(cuMemAlloc(&at, 1 << 20));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventRecord(a, NULL));
    OK(cuMemsetD8Async(at, 1, 1 << 20, NULL));
    OK(cuMemsetD32Async(at, 2, 1 << 18, NULL));
    OK(cuEventRecord(b, NULL));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(b));
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    CHECK(ms >= 6.0f);
    OK(cuMemFree(at));
}

static CUresult inside;
static void calls_cuda(void *arg)
{
    CUdeviceptr p;
    (void)arg;
    inside = cuMemAlloc(&p, 512);
}

void host_functions_may_not_call(void)
{
    primary();
    OK(cuLaunchHostFunc(NULL, calls_cuda, NULL));
    OK(cuCtxSynchronize());
    IS(CUDA_ERROR_NOT_PERMITTED, inside);
}

static CUevent event_of_a_context_that_was_destroyed(void)
{
    CUevent e;
    CUcontext c;
    primary();
    OK(cuCtxCreate(&c, NULL, 0, 0));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxDestroy(c));
    return e;
}

static void asks_an_event_of_a_context_that_was_destroyed(void)
{
    CUevent another, e = event_of_a_context_that_was_destroyed();
    OK(cuEventCreate(&another, 0)); /* has not its handle */
    cuEventQuery(e);
}

static void waits_for_an_event_of_a_context_that_was_destroyed(void)
{
    cuStreamWaitEvent(NULL, event_of_a_context_that_was_destroyed(), 0);
}

static void asks_a_destroyed_event(void)
{
    CUevent e;
    primary();
    OK(cuEventCreate(&e, 0));
    OK(cuEventDestroy(e));
    cuEventQuery(e);
}

static void destroys_a_stream_twice(void)
{
    CUstream s;
    primary();
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamDestroy(s));
    cuStreamDestroy(s);
}

static void aborts(void (*body)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        body();
        _exit(0);
    }
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

void handles_of_what_was_destroyed_end_the_program(void) /* SIM: hardware need not notice */
{
    aborts(asks_an_event_of_a_context_that_was_destroyed);
    aborts(waits_for_an_event_of_a_context_that_was_destroyed);
    aborts(asks_a_destroyed_event);
    aborts(destroys_a_stream_twice);
}

void a_busy_streams_handle_comes_again_at_once(void) /* SIM: busy_handles:1 */
{
    static gate_t g = GATE;
    CUstream s, t, u;
    CUdeviceptr p;
    unsigned long long first = 0, second = 0;
    unsigned char seen = 9;
    primary();
    OK(cuMemAlloc(&p, 1));
    for (int round = 0; round < 3; round++) {
        OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        OK(cuStreamGetId(s, &first));
        gate_hold(&g, s);
        OK(cuMemsetD8Async(p, 5, 1, s));
        OK(cuStreamDestroy(s));
        OK(cuStreamGetId(CU_STREAM_PER_THREAD, &second)); /* a default stream does not take it */
        OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
        OK(cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
        CHECK(t == s && u != s);
        OK(cuStreamGetId(t, &second));
        CHECK(second != first);
        OK(cuMemsetD8Async(p, 3, 1, t)); /* not behind the gate */
        OK(cuStreamSynchronize(t));
        OK(cuMemcpyDtoHAsync(&seen, p, 1, t));
        CHECK(seen == 3);
        gate_open(&g);
        OK(cuCtxSynchronize());
        OK(cuMemcpyDtoHAsync(&seen, p, 1, t));
        CHECK(seen == 5);
        OK(cuStreamDestroy(t));
        OK(cuStreamDestroy(u));
    }
}

/* The second record is made, and its caller held for longer than this program lives. */
static void *records(void *arg)
{
    OK(cuEventRecord(((CUevent *)arg)[0], ((CUstream *)arg)[1]));
    CHECK(!"held");
    return NULL;
}

void a_caller_is_held_after_its_record(void) /* SIM: after:cuEventRecord=30000000000/2 */
{
    static gate_t g = GATE;
    static void *both[2];
    CUstream s;
    CUevent e;
    pthread_t t;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(e, s));
    OK(cuEventQuery(e));
    gate_hold(&g, s);
    both[0] = e;
    both[1] = s;
    pthread_create(&t, NULL, records, both);
    while (cuEventQuery(e) == CUDA_SUCCESS) {
    }
    OK(cuEventRecord(e, s)); /* another comes back before it */
}

void only_each_third_call_is_slow(void) /* SIM: latency:cuMemAlloc_v2=5000000/3 */
{
    struct timespec a, b;
    CUdeviceptr p;
    primary();
    OK(cuMemAlloc(&p, 512));
    OK(cuMemAlloc(&p, 512));
    clock_gettime(CLOCK_MONOTONIC, &a);
    OK(cuMemAlloc(&p, 512));
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 5000000);
}
