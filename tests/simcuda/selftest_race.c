/* SIM: the race check against small programs that are ordered or not: one process each,
 * selftest_race.def has the list. With the argument --cost it prints what an operation costs. */
#include "selftest.h"
#include "simcuda.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int failures;

enum { BYTES = 4096, RACE = 99, LIMIT_S = 60 };

static CUstream a, b, c; /* non-blocking */
static CUevent e, f;
static CUdeviceptr p;
static CUcontext ctx;

static void start(void)
{
    ctx = primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&f, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&p, BYTES));
}

static void writes(CUstream s)
{
    OK(cuMemsetD8Async(p, 1, BYTES, s));
}

static void reads(CUstream s)
{
    CUdeviceptr to;
    OK(cuMemAlloc(&to, BYTES));
    OK(cuMemcpyDtoDAsync(to, p, BYTES, s));
}

static void one_stream(void)
{
    start();
    writes(a);
    reads(a);
    writes(a);
}

static void two_streams(void)
{
    start();
    writes(a);
    writes(b);
}

static void a_read_against_a_later_write(void)
{
    start();
    reads(a);
    writes(b);
}

static void a_write_against_a_later_read(void)
{
    start();
    writes(a);
    reads(b);
}

static void readers_only(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    reads(a);
    reads(b);
    reads(c);
}

static void a_write_after_the_second_of_two_readers_only(void)
{
    start();
    reads(a);
    reads(b);
    OK(cuStreamSynchronize(b));
    writes(c);
}

/* --- events ------------------------------------------------------------------------------------*/
static void an_event_between_streams(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void events_through_a_third_stream(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(c, e, 0));
    OK(cuEventRecord(f, c));
    OK(cuStreamWaitEvent(b, f, 0));
    writes(b);
}

static void a_wait_before_the_record(void)
{
    start();
    writes(a);
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuEventRecord(e, a));
    writes(b);
}

static void a_record_before_the_write(void)
{
    start();
    OK(cuEventRecord(e, a));
    writes(a);
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_wait_that_means_an_older_record(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuEventRecord(e, c)); /* e means c's work now */
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

/* --- what the host waits for -------------------------------------------------------------------*/
static void a_stream_synchronized(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    writes(b);
}

static void another_stream_synchronized(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(c));
    writes(b);
}

static void an_event_synchronized(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuEventSynchronize(e));
    writes(b);
}

static void an_event_queried_until_it_is_done(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
    }
    writes(b);
}

static void an_event_queried_too_early(void)
{
    static gate_t g = GATE;
    start();
    gate_hold(&g, a);
    writes(a);
    OK(cuEventRecord(e, a));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    writes(b);
    gate_open(&g);
}

static void an_event_queried_that_was_never_recorded(void)
{
    start();
    writes(a);
    OK(cuEventQuery(e));
    writes(b);
}

static void a_stream_queried_until_it_is_done(void)
{
    start();
    writes(a);
    while (cuStreamQuery(a) == CUDA_ERROR_NOT_READY) {
    }
    writes(b);
}

static void a_stream_queried_too_early(void)
{
    static gate_t g = GATE;
    start();
    gate_hold(&g, a);
    writes(a);
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    writes(b);
    gate_open(&g);
}

static void an_elapsed_time(void)
{
    CUevent begin, end;
    float ms;
    start();
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventRecord(begin, a));
    writes(a);
    OK(cuEventRecord(end, a));
    while (cuEventElapsedTime(&ms, begin, end) == CUDA_ERROR_NOT_READY) {
    }
    writes(b);
}

static void a_context_synchronized(void)
{
    start();
    writes(a);
    OK(cuCtxSynchronize());
    writes(b);
}

/* --- the legacy stream -------------------------------------------------------------------------*/
static CUstream blocking(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    return s;
}

static void legacy_after_blocking(void)
{
    start();
    writes(blocking());
    writes(NULL);
}

static void blocking_after_legacy(void)
{
    start();
    CUstream s = blocking();
    writes(CU_STREAM_LEGACY);
    writes(s);
}

static void blocking_after_blocking_through_legacy(void)
{
    start();
    CUstream s = blocking(), t = blocking();
    writes(s);
    OK(cuEventRecord(e, NULL)); /* any command on it will do */
    writes(t);
}

static void blocking_after_blocking(void)
{
    start();
    CUstream s = blocking(), t = blocking();
    writes(s);
    writes(t);
}

static void legacy_after_non_blocking(void)
{
    start();
    writes(a);
    writes(NULL);
}

static void non_blocking_after_legacy(void)
{
    start();
    writes(NULL);
    writes(a);
}

static void legacy_after_a_destroyed_blocking_stream(void)
{
    start();
    CUstream s = blocking();
    writes(s);
    OK(cuStreamDestroy(s));
    writes(NULL);
}

static void per_thread_after_legacy(void)
{
    start();
    writes(NULL);
    writes(CU_STREAM_PER_THREAD);
}

static void in_thread(void *(*fn)(void *), void *arg)
{
    pthread_t t;
    pthread_create(&t, NULL, fn, arg);
    pthread_join(t, NULL);
}

static void *writes_per_thread(void *arg)
{
    (void)arg;
    OK(cuCtxSetCurrent(ctx));
    writes(CU_STREAM_PER_THREAD);
    return NULL;
}

static void per_thread_after_per_thread(void)
{
    start();
    writes(CU_STREAM_PER_THREAD);
    in_thread(writes_per_thread, NULL);
}

/* --- whole contexts ----------------------------------------------------------------------------*/
static void a_context_record(void)
{
    start();
    writes(a);
    OK(cuCtxRecordEvent(ctx, e));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_context_record_of_a_destroyed_stream(void)
{
    start();
    writes(a);
    OK(cuStreamDestroy(a));
    OK(cuCtxRecordEvent(ctx, e));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_context_record_before_the_write(void)
{
    start();
    OK(cuCtxRecordEvent(ctx, e));
    writes(a);
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static CUcontext second_device(void)
{
    CUcontext other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxSetCurrent(other));
    return other;
}

static void a_context_record_of_another_context(void)
{
    CUevent there;
    start();
    writes(a);
    CUcontext other = second_device();
    OK(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxRecordEvent(other, there));
    OK(cuStreamWaitEvent(b, there, 0));
    writes(b);
}

static void a_context_wait(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuCtxWaitEvent(ctx, e));
    writes(b);
}

static void a_context_wait_before_the_stream_was_made(void)
{
    CUstream s;
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuCtxWaitEvent(ctx, e));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    writes(s);
}

static void a_context_wait_of_another_context(void)
{
    CUcontext other;
    start();
    OK(cuCtxCreate(&other, NULL, 0, 0));
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuCtxWaitEvent(other, e));
    writes(b);
}

/* --- "API synchronization behavior" ------------------------------------------------------------*/
static void a_copy_to_the_host(void)
{
    char to[BYTES];
    start();
    OK(cuMemcpyDtoH(to, p, BYTES));
    writes(a);
}

static void a_copy_from_pinned_memory(void)
{
    void *from;
    start();
    OK(cuMemAllocHost(&from, BYTES));
    OK(cuMemcpyHtoD(p, from, BYTES));
    writes(a);
}

static void a_copy_on_the_device(void)
{
    CUdeviceptr from;
    start();
    OK(cuMemAlloc(&from, BYTES));
    OK(cuMemcpyDtoD(p, from, BYTES));
    writes(a);
}

static void a_set_of_device_memory(void)
{
    start();
    OK(cuMemsetD8(p, 1, BYTES));
    writes(a);
}

static void a_set_of_pinned_memory(void)
{
    void *host;
    start();
    OK(cuMemAllocHost(&host, BYTES));
    p = (CUdeviceptr)host;
    OK(cuMemsetD8(p, 1, BYTES));
    writes(a);
}

static void a_copy_from_pageable_memory(void)
{
    char from[BYTES] = {0};
    start();
    OK(cuMemcpyHtoD(p, from, BYTES));
    writes(a);
}

static void a_copy_from_pageable_memory_by_the_letter(void)
{
    a_copy_from_pageable_memory();
}

/* --- frees -------------------------------------------------------------------------------------*/
static void new_memory_after_a_free(void)
{
    start();
    CUdeviceptr was = p;
    writes(a);
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, BYTES));
    CHECK(p == was);
    writes(b);
}

/* A plain free waits for the context of the memory; h200-580.json, free_waits. */
static void a_free_beside_work_of_another_context(void)
{
    CUcontext other;
    CUstream there;
    start();
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    writes(there);
    OK(cuMemFree(p));
}

static CUgreenCtx green_context(CUstream *there)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    unsigned groups = 1;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 8));
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuGreenCtxStreamCreate(there, green, CU_STREAM_NON_BLOCKING, 0));
    return green;
}

static void a_free_after_work_of_a_green_context(void)
{
    CUstream there;
    start();
    green_context(&there);
    writes(there);
    OK(cuMemFree(p));
}

static void after_the_end_of_a_green_context(bool recorded)
{
    CUstream there;
    CUcontext of_green;
    CUdeviceptr own;
    start();
    CUgreenCtx green = green_context(&there);
    OK(cuMemAlloc(&own, BYTES));
    writes(there);
    OK(cuCtxFromGreenCtx(&of_green, green));
    OK(cuCtxSetCurrent(of_green));
    OK(cuMemsetD8Async(own, 1, BYTES, NULL));
    OK(cuCtxSetCurrent(ctx));
    OK(cuGreenCtxDestroy(green));
    if (recorded) {
        OK(cuCtxRecordEvent(ctx, e));
        OK(cuStreamWaitEvent(b, e, 0));
    }
    writes(b);
    OK(cuMemsetD8Async(own, 1, BYTES, b));
}

static void a_context_record_of_a_destroyed_green_context(void)
{
    after_the_end_of_a_green_context(true);
}

static void the_end_of_a_green_context(void)
{
    after_the_end_of_a_green_context(false);
}

static void a_free_that_does_not_wait(void)
{
    start();
    writes(a);
    OK(cuMemFree(p));
}

static void a_free_that_does_not_wait_but_the_program_does(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    OK(cuMemFree(p));
}

/* --- bytes -------------------------------------------------------------------------------------*/
static void neighbours(void)
{
    start();
    OK(cuMemsetD8Async(p, 1, 100, a));
    OK(cuMemsetD8Async(p + 100, 1, 100, b));
    OK(cuMemsetD8Async(p + 200, 1, BYTES - 200, c));
}

static void one_byte_in_common(void)
{
    start();
    OK(cuMemsetD8Async(p, 1, 101, a));
    OK(cuMemsetD8Async(p + 100, 1, 100, b));
}

static void columns_side_by_side(void)
{
    start();
    OK(cuMemsetD2D8Async(p, 64, 1, 32, 16, a));
    OK(cuMemsetD2D8Async(p + 32, 64, 1, 32, 16, b));
}

static void columns_that_overlap(void)
{
    start();
    OK(cuMemsetD2D8Async(p, 64, 1, 32, 16, a));
    OK(cuMemsetD2D8Async(p + 31, 64, 1, 32, 16, b));
}

/* --- host memory -------------------------------------------------------------------------------*/
static void two_copies_to(void *host)
{
    CUdeviceptr q;
    OK(cuMemAlloc(&q, BYTES));
    OK(cuMemcpyDtoHAsync(host, p, BYTES, a));
    OK(cuMemcpyDtoHAsync(host, q, BYTES, b));
}

static void pinned_memory(void)
{
    void *host;
    start();
    OK(cuMemAllocHost(&host, BYTES));
    two_copies_to(host);
}

static void managed_memory(void)
{
    CUdeviceptr host;
    start();
    OK(cuMemAllocManaged(&host, BYTES, CU_MEM_ATTACH_GLOBAL));
    two_copies_to((void *)host);
}

static char registered[2 * BYTES];
static void registered_memory(void)
{
    start();
    OK(cuMemHostRegister(registered, sizeof(registered), 0));
    two_copies_to(registered + 100);
}

static void pinned_memory_freed_and_new(void)
{
    void *host;
    start();
    for (int i = 0; i < 4; i++) {
        OK(cuMemAllocHost(&host, BYTES));
        OK(cuMemcpyDtoHAsync(host, p, BYTES, i % 2 ? a : b));
        OK(cuMemFreeHost(host));
    }
}

/* --- host functions and threads ----------------------------------------------------------------*/
static gate_t told = GATE;
static void tells(void *arg)
{
    if (arg) {
        SIMCUDA_RELEASE(arg);
    }
    gate_open(&told);
}

static void after_a_host_function(void *token)
{
    start();
    writes(a);
    OK(cuLaunchHostFunc(a, tells, token));
    gate_fn(&told); /* until it is open */
    if (token) {
        SIMCUDA_ACQUIRE(token);
    }
    writes(b);
}

static void a_host_function_that_tells(void)
{
    after_a_host_function(NULL);
}

static void a_host_function_that_tells_without_tokens(void)
{
    after_a_host_function(NULL);
}

static void a_host_function_that_tells_with_tokens(void)
{
    after_a_host_function(&told);
}

static void *writes_in_b(void *token)
{
    if (token) {
        SIMCUDA_ACQUIRE(token);
    }
    OK(cuCtxSetCurrent(ctx));
    writes(b);
    return NULL;
}

static void threads_that_join(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    in_thread(writes_in_b, NULL);
}

static void threads_without_tokens(void)
{
    threads_that_join();
}

static void threads_with_tokens(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    SIMCUDA_RELEASE(&told);
    in_thread(writes_in_b, &told);
}

/* --- stream-ordered memory ---------------------------------------------------------------------*/
static void stream_ordered_memory(void)
{
    start();
    for (int i = 0; i < 4; i++) {
        CUstream s = i % 2 ? a : b;
        OK(cuMemAllocAsync(&p, BYTES, s));
        writes(s);
        OK(cuMemFreeAsync(p, s));
    }
}

/* The driver hands it out again: that is ordered, though nobody else could know. */
static void plain_memory_that_a_stream_has_freed(void)
{
    CUmemoryPool pool;
    CUdeviceptr q;
    cuuint64_t used = 1;
    start();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, BYTES, a));
    writes(a);
    OK(cuMemFreeAsync(p, a));
    while (used) {
        OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    }
    OK(cuMemAlloc(&q, BYTES));
    CHECK(q == p);
    writes(b);
}

static void stream_ordered_memory_used_elsewhere(void)
{
    start();
    OK(cuMemAllocAsync(&p, BYTES, a));
    writes(b);
}

static void a_stream_ordered_free_elsewhere(void)
{
    start();
    writes(a);
    OK(cuMemFreeAsync(p, b));
}

static void a_stream_ordered_free_elsewhere_after_an_event(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemFreeAsync(p, b));
}

/* cuda.h, cuMemFree: "will not perform any implicit synchronization when the pointer was allocated
 * with cuMemAllocAsync". */
static void a_plain_free_of_stream_ordered_memory(void)
{
    start();
    OK(cuMemAllocAsync(&p, BYTES, a));
    writes(a);
    OK(cuMemFree(p));
}

/* --- two devices -------------------------------------------------------------------------------*/
static void use_from_the_second_device(CUevent after)
{
    CUcontext other;
    CUstream s;
    CUdeviceptr q;
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    other = second_device();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&q, BYTES));
    if (after) {
        OK(cuStreamWaitEvent(s, e, 0));
    }
    OK(cuMemcpyPeerAsync(q, other, p, ctx, BYTES, s));
}

static void another_device(void)
{
    use_from_the_second_device(NULL);
}

static void another_device_after_an_event(void)
{
    CUevent any = (CUevent)&any;
    use_from_the_second_device(any);
}

static void peer_copy(bool async)
{
    CUcontext other;
    CUdeviceptr q;
    CUstream there;
    start();
    other = second_device();
    OK(cuMemAlloc(&q, BYTES));
    OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8Async(q, 1, BYTES, there));
    OK(cuCtxSetCurrent(ctx));
    writes(a);
    if (async) {
        OK(cuMemcpyPeerAsync(q, other, p, ctx, BYTES, b));
    } else {
        OK(cuMemcpyPeer(q, other, p, ctx, BYTES));
    }
    writes(b);
    OK(cuMemsetD8Async(q, 1, BYTES, there));
}

static void a_peer_copy_in_both_contexts(void)
{
    peer_copy(false);
}

static void a_peer_copy_async(void)
{
    peer_copy(true);
}

/* --- what an allocator does --------------------------------------------------------------------*/
static void hand_out(bool fenced)
{
    static gate_t g = GATE;
    CUdeviceptr segment;
    start();
    OK(cuMemAlloc(&segment, 64 << 10));
    p = segment + 8192;
    gate_hold(&g, a);
    writes(a);
    OK(cuCtxRecordEvent(ctx, e)); /* "freed" */
    if (fenced) {
        gate_open(&g);
        while (cuEventQuery(e) != CUDA_SUCCESS) {
        }
    }
    OK(cuMemcpyDtoDAsync(p + 512, segment, 64, b)); /* the next owner */
    gate_open(&g);
}

static void a_block_handed_out_early(void)
{
    hand_out(false);
}

static void a_block_handed_out_after_its_fence(void)
{
    hand_out(true);
}

static void recycle(bool synchronized)
{
    CUstream s;
    start();
    writes(a);
    if (synchronized) {
        OK(cuStreamSynchronize(a));
    } else {
        usleep(20000); /* the work is over, and nobody has asked */
    }
    OK(cuStreamDestroy(a));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    writes(s);
}

static void a_recycled_stream_handle(void)
{
    recycle(false);
}

static void a_recycled_stream_handle_after_synchronizing(void)
{
    recycle(true);
}

static void a_primary_context_reset(void)
{
    start();
    CUdeviceptr was = p;
    writes(a);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    start();
    CHECK(p == was);
    writes(b);
}

static void a_value_written_by_a_stream(void)
{
    start();
    OK(cuStreamWriteValue32(a, p + 4, 1, 0));
    reads(b);
}

static void a_capture(void)
{
    CUgraph graph;
    start();
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    writes(a);
    OK(cuStreamEndCapture(a, &graph));
    writes(b);
}

static void a_hundred_times(void)
{
    start();
    for (int i = 0; i < 100; i++) {
        writes(i % 2 ? a : b);
    }
    writes(c); /* one more against b only */
}

/* Bounded memory and slots: streams come and go, small accesses everywhere. */
static void many_steps_forget_what_is_over(void)
{
    start();
    OK(cuMemAlloc(&p, 8 << 20));
    for (int i = 0; i < 20000; i++) {
        CUdeviceptr at = p + (unsigned)(i * 7919 % 8000) * 1024;
        if (i % 100 == 0) {
            OK(cuStreamSynchronize(a));
            OK(cuStreamDestroy(a));
            OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
        }
        OK(cuMemsetD8Async(at + i % 3, 1, 200 + (unsigned)i % 100, a));
    }
}

/* --- running them ------------------------------------------------------------------------------*/
#define DEAD(name, by, says) void name(void);
#define LIVE(name) void name(void);
#include "selftest_dead.def"
#undef DEAD
#undef LIVE
#define ORDERED(name, keys) void name(void);
#define RACY(name, keys) void name(void);
#include "selftest_race_graph.def"
#undef ORDERED
#undef RACY

static const struct {
    const char *name, *simcuda;
    void (*fn)(void);
    bool racy;
    const char *by, *says; /* of an access to memory that is not live */
} tests[] = {
#define ORDERED(name, keys) {#name, keys, name, false, NULL, NULL},
#define RACY(name, keys) {#name, keys, name, true, NULL, NULL},
#include "selftest_race.def"
#include "selftest_race_graph.def"
#undef ORDERED
#undef RACY
#define DEAD(name, by, says) {#name, "", name, true, by, says},
#define LIVE(name) {#name, "", name, false, NULL, NULL},
#include "selftest_dead.def"
#undef DEAD
#undef LIVE
};

enum { COUNT = sizeof(tests) / sizeof(tests[0]) };

static int lines_of(const char *text, const char *start_of_line)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, start_of_line)); at++) {
        n += at == text || at[-1] == '\n';
    }
    return n;
}

/* The child's status, and what it said on stderr. */
static int run(int i, char *text, size_t room)
{
    int status = -1, pipes[2];
    char keys[256];
    snprintf(keys, sizeof(keys), "racecheck:1%s%s", *tests[i].simcuda ? "," : "", tests[i].simcuda);
    fflush(stdout);
    if (pipe(pipes)) {
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        setenv("SIMCUDA", keys, 1);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        alarm(LIMIT_S);
        execl("/proc/self/exe", "selftest_race", tests[i].name, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(pipes[0], text + n, room - 1 - n)) > 0;) {
        n += (size_t)got;
    }
    text[n] = 0;
    close(pipes[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static bool as_wanted(int i)
{
    static char text[1 << 16];
    int status = run(i, text, sizeof(text)), said = lines_of(text, "simcuda: race: ");
    bool ok = tests[i].racy ? status == RACE && said > 0 : status == 0 && said == 0;
    if (tests[i].says) { /* once, and no check of the program failed */
        ok = ok && said == 1 && strstr(text, "is not inside live memory: ") &&
             strstr(text, tests[i].by) && strstr(text, tests[i].says) && !strstr(text, ".c:");
    }
    if (strcmp(tests[i].name, "a_hundred_times") == 0) {
        ok = ok && said == 20 && strstr(text, "\nsimcuda: 100 races\n");
    }
    if (!ok) {
        fprintf(stderr, "  %s: exit status %d\n%s", tests[i].name, status, text);
    }
    return ok;
}

static double per_operation(int live)
{
    enum { OPERATIONS = 200000, STREAMS = 8 };
    CUstream s[STREAMS];
    struct timespec from, to;
    start();
    OK(cuMemAlloc(&p, (size_t)live * 1024));
    for (int i = 0; i < STREAMS; i++) {
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    }
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (unsigned i = 0; i < OPERATIONS; i++) {
        unsigned slot = i * 2654435761u % (unsigned)live;
        OK(cuMemsetD8Async(p + slot * 1024, 1, 700, s[slot % STREAMS]));
        if (i % 64 == 0) {
            OK(cuCtxSynchronize());
        }
    }
    OK(cuCtxSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           OPERATIONS;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--cost") == 0) {
        for (int live = 10; live <= 100000; live *= 100) {
            printf("%d pieces: %.0f ns an operation\n", live, per_operation(live));
        }
        return failures != 0;
    }
    if (argc > 1) {
        for (int i = 0; i < COUNT; i++) {
            if (strcmp(tests[i].name, argv[1]) == 0) {
                tests[i].fn();
                return failures ? 1 : 0;
            }
        }
        return 2;
    }
    int bad = 0;
    for (int i = 0; i < COUNT; i++) {
        bool ok = as_wanted(i);
        printf("%s %s %s\n", ok ? "ok  " : "FAIL",
               tests[i].racy ? "racy:   " : "ordered:", tests[i].name);
        bad += !ok;
    }
    printf("%d tests, %d failed, 0 skipped\n", (int)COUNT, bad);
    return bad != 0;
}
