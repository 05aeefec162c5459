/* A fixed program of 2,000 operations, run over and over in one process; in every round one driver
 * call fails, another one each time. The program takes any legal code for an answer and goes on: it
 * must find its contents, get rid of its memory, and leave nothing behind but the one buffer that
 * it keeps on device 1.
 *
 * faults count           how often each function of shim/hooks.def is called, first and later
 * rounds faults each NAME [N]   fails every call of NAME in turn, from the Nth on; says "again N"
 * when the Nth did not come to pass in this process and may do so in a fresh one faults first NAME
 * N E  fails the Nth call of NAME in the first round of the process with error E
 *
 * CA_FAULTS=all fails every call; otherwise the first 300 (CA_FAULTS=number for another figure) and
 * about 100 later ones. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define OPERATIONS 2000
#define EVERY 100 /* operations between two of the special ones */
#define SLOTS 40
#define STREAMS 3
#define KEPT_BYTES 12345
#define FAILURES_MOST 6 /* of the program's calls, for one of the driver's */

#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuCtxCreate_v2)                                                                              \
    X(cuCtxDestroy_v2)                                                                             \
    X(cuCtxPopCurrent_v2)                                                                          \
    X(cuCtxPushCurrent_v2)                                                                         \
    X(cuCtxEnablePeerAccess)                                                                       \
    X(cuDeviceGetDefaultMemPool)                                                                   \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease_v2)                                                                \
    X(cuDevicePrimaryCtxReset_v2)                                                                  \
    X(cuGetProcAddress)                                                                            \
    X(cuGetProcAddress_v2)                                                                         \
    X(cuGraphCreate)                                                                               \
    X(cuGraphDestroy)                                                                              \
    X(cuMemAlloc_v2)                                                                               \
    X(cuMemAllocFromPoolAsync)                                                                     \
    X(cuMemAllocFromPoolAsync_ptsz)                                                                \
    X(cuMemAllocAsync_ptsz)                                                                        \
    X(cuMemFree_v2)                                                                                \
    X(cuMemFreeAsync_ptsz)                                                                         \
    X(cuMemGetInfo_v2)                                                                             \
    X(cuMemsetD8_v2)                                                                               \
    X(cuPointerSetAttribute)                                                                       \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamBeginCapture_ptsz)                                                                   \
    X(cuStreamBeginCapture_v2)                                                                     \
    X(cuStreamBeginCapture_v2_ptsz)                                                                \
    X(cuStreamBeginCaptureToGraph)                                                                 \
    X(cuStreamBeginCaptureToGraph_ptsz)                                                            \
    X(cuStreamEndCapture)                                                                          \
    X(cuStreamEndCapture_ptsz)

/* The program's own calls go through the wrappers, as those of a program linked with -lcuda. */
static struct {
#define X(name) __typeof__(name) *name;
    DRIVER_FUNCTIONS(X)
#undef X
    int (*simcuda_fail)(const char *, const char *, uint64_t, int);
    uint64_t (*simcuda_calls)(const char *);
} drv;

/* Calls of a wrapped function all go through the shim; of the others, its own count. */
static const struct function {
    const char *name, *caller;
} functions[] = {
#define CA_DRIVER(symbol, ...) {#symbol, NULL},
#define CA_DRIVER_USED(symbol) {#symbol, "libcachealloc.so"},
#include "shim/hooks.def"
};
#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

enum kind { PLAIN, LARGE, PITCHED, PINNED, MANAGED, ASYNC, KINDS };

typedef struct buffer {
    void *pointer; /* NULL: nothing there */
    size_t bytes;
    enum kind kind;
    unsigned char value;
    bool known; /* the value was written */
} buffer_t;

static buffer_t slots[SLOTS];
static cudaStream_t streams[STREAMS];
static char *kept;
static size_t kept_reserved, device_free;

/* The fault of this round. */
static const struct function *victim;
static uint64_t nth, calls_before;
static int error, failures;
static bool sticky; /* everything may fail until the contexts are gone */
static char label[128] = "no fault\n";

#define BROKEN(...)                                                                                \
    do {                                                                                           \
        fprintf(stderr, "%s: ", label);                                                            \
        FAIL(__VA_ARGS__);                                                                         \
    } while (0)
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            BROKEN("%s does not hold", #condition);                                                \
    } while (0)

static void on_signal(int number)
{
    char text[] = ": ended by signal 00\n";
    text[18] = (char)('0' + number / 10);
    text[19] = (char)('0' + number % 10);
    if (write(STDERR_FILENO, label, strlen(label)) < 0 ||
        write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
        _exit(2);
    _exit(3);
}

/* --- the fault -------------------------------------------------------------------------------- */
static void ask(uint64_t at)
{
    if (drv.simcuda_fail(victim->name, victim->caller, at, error) != 0)
        OK(drv.simcuda_fail(victim->name, NULL, at, error)); /* no shim */
}

static uint64_t calls_so_far(void)
{
    return victim ? calls_before + drv.simcuda_calls(victim->name) : 0;
}

static bool happened(void)
{
    return nth != 0 && calls_so_far() >= nth;
}

static void arm(void)
{
    if (victim)
        ask(nth > calls_before ? nth - calls_before : 0);
}

/* While the program looks at what is left. */
static void pause_fault(void)
{
    calls_before = calls_so_far();
    if (victim)
        ask(0);
}

/* What a call may answer when one of the driver's calls failed: that error, or what the pool makes
 * of it when it has no memory to give. */
static bool legal(int code)
{
    return happened() && (code == error || code == CUDA_ERROR_OUT_OF_MEMORY || sticky);
}

/* Whether the call succeeded. */
static bool worked(int code, const char *call)
{
    if (code == 0)
        return true;
    if (!legal(code))
        BROKEN("%s answered %d", call, code);
    if (++failures > FAILURES_MOST && !sticky)
        BROKEN("%s answered %d, and %d calls before it failed", call, code, failures - 1);
    (void)cudaGetLastError();
    return false;
}
#define WORKED(call) worked((int)(call), #call)

/* What must not be left undone: once more. */
#define RETRIED(call) (WORKED(call) || WORKED(call))

/* --- buffers ---------------------------------------------------------------------------------- */
static cudaError_t allocate(buffer_t *b, uint64_t random)
{
    size_t pitch;
    b->bytes = ((size_t)256 << random % 12) + random % 1000;
    b->pointer = NULL;
    switch (b->kind) {
    case PLAIN:
        return cudaMalloc(&b->pointer, b->bytes);
    case LARGE:
        b->bytes += (size_t)3 << 20;
        return cudaMalloc(&b->pointer, b->bytes);
    case PITCHED:
        b->bytes = 512 * 16;
        return cudaMallocPitch(&b->pointer, &pitch, 500, 16);
    case PINNED:
        b->bytes = b->bytes % 16384 + 1;
        return random & 4096 ? cudaMallocHost(&b->pointer, b->bytes)
                             : cudaHostAlloc(&b->pointer, b->bytes, 0);
    case MANAGED:
        return cudaMallocManaged(&b->pointer, b->bytes, cudaMemAttachGlobal);
    default:
        return cudaMallocAsync(&b->pointer, b->bytes, streams[0]);
    }
}

static cudaError_t release(const buffer_t *b)
{
    if (b->kind == PINNED)
        return cudaFreeHost(b->pointer);
    return b->kind == ASYNC ? cudaFreeAsync(b->pointer, streams[0]) : cudaFree(b->pointer);
}

/* Of a large one only the ends: simulated memory costs time to touch. */
static cudaError_t fill(const buffer_t *b, unsigned char value, bool async, cudaStream_t stream)
{
    size_t head = b->bytes < 8192 ? b->bytes : 512;
    char *to[] = {b->pointer, (char *)b->pointer + b->bytes - head};
    for (size_t i = 0; i < (head == b->bytes ? 1 : 2); i++) {
        cudaError_t code =
            async ? cudaMemsetAsync(to[i], value, head, stream) : cudaMemset(to[i], value, head);
        if (code != cudaSuccess)
            return code;
    }
    return cudaSuccess;
}

static void birth(buffer_t *b, uint64_t random)
{
    b->kind = random % 16 < 10 ? PLAIN : (enum kind)(random % 16 - 10);
    if (!WORKED(allocate(b, random >> 8))) {
        b->pointer = NULL;
        return;
    }
    HOLDS(b->pointer);
    b->value = (unsigned char)(random >> 32);
    cudaStream_t stream = b->kind == ASYNC ? streams[0] : streams[random % STREAMS];
    b->known = WORKED(fill(b, b->value, random % 8 == 0 || b->kind == ASYNC, stream));
}

static void check_contents(const buffer_t *b)
{
    unsigned char first = 0, last = 0;
    const char *from = b->pointer;
    if (!b->known)
        return;
    /* The legacy stream: all of ours are before it. */
    if (WORKED(cudaMemcpy(&first, from, 1, cudaMemcpyDefault)) &&
        WORKED(cudaMemcpy(&last, from + b->bytes - 1, 1, cudaMemcpyDefault)) &&
        (first != b->value || last != b->value))
        BROKEN("%zu bytes of %#x hold %#x and %#x", b->bytes, b->value, first, last);
}

static void death(buffer_t *b, uint64_t random)
{
    check_contents(b);
    /* Freed with work in flight. */
    if (b->kind <= LARGE && random % 8 == 1)
        (void)WORKED(fill(b, 0xDD, true, streams[random % STREAMS]));
    (void)RETRIED(release(b));
    b->pointer = NULL;
}

/* --- the special operations ------------------------------------------------------------------- */
static void sleeps(void *unused)
{
    struct timespec pause = {.tv_nsec = 50000};
    (void)unused;
    nanosleep(&pause, NULL);
}

/* More than there is: the retry ladder, to its end, with work under way. */
static void too_much(void)
{
    void *pointer = NULL;
    buffer_t late = {.kind = LARGE};
    (void)WORKED(cudaLaunchHostFunc(streams[1], sleeps, NULL));
    if (WORKED(allocate(&late, 5)))
        (void)RETRIED(release(&late));
    int code = (int)cudaMalloc(&pointer, (size_t)1 << 40);
    HOLDS(code == (int)cudaErrorMemoryAllocation || legal(code));
    (void)cudaGetLastError();
    code = (int)cudaMallocHost(&pointer, (size_t)1 << 47);
    HOLDS(code == (int)cudaErrorMemoryAllocation || legal(code));
    (void)cudaGetLastError();
}

static void tell_memory(void)
{
    size_t free, total;
    if (WORKED(cudaMemGetInfo(&free, &total)))
        HOLDS(free <= total);
}

static void driver_free(CUdeviceptr pointer, bool async)
{
    (void)(async ? RETRIED(drv.cuMemFreeAsync_ptsz(pointer, NULL))
                 : RETRIED(drv.cuMemFree_v2(pointer)));
}

/* What a captured stream is told never happens; others go on meanwhile. */
static void in_capture(void)
{
    buffer_t other = {.kind = LARGE}, async = {.kind = ASYNC};
    CUdeviceptr p;
    if (WORKED(allocate(&other, 77)))
        (void)RETRIED(release(&other));
    if (WORKED(allocate(&async, 78)))
        (void)RETRIED(release(&async));
    if (WORKED(drv.cuMemAllocAsync_ptsz(&p, 70000, CU_STREAM_PER_THREAD)))
        driver_free(p, true);
}

static bool begin(unsigned form, CUgraph target)
{
    CUstream stream = streams[2];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    switch (form) {
    case 0:
        return WORKED(drv.cuStreamBeginCapture(stream));
    case 1:
        return WORKED(drv.cuStreamBeginCapture_ptsz(stream));
    case 2:
        return WORKED(drv.cuStreamBeginCapture_v2(stream, mode));
    case 3:
        return WORKED(drv.cuStreamBeginCapture_v2_ptsz(stream, mode));
    case 4:
        return WORKED(drv.cuStreamBeginCaptureToGraph(stream, target, NULL, NULL, 0, mode));
    default:
        return WORKED(drv.cuStreamBeginCaptureToGraph_ptsz(stream, target, NULL, NULL, 0, mode));
    }
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    OK(cudaThreadExchangeStreamCaptureMode((enum cudaStreamCaptureMode *)&mode));
    return mode;
}

static void capture(unsigned form)
{
    CUgraph graph = NULL, target = NULL;
    bool allowed = form >= 2; /* the first two capture in the global mode */
    CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (form >= 4)
        OK(drv.cuGraphCreate(&target, 0));
    if (begin(form, target)) {
        if (!allowed)
            exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
        in_capture();
        HOLDS(exchange(global) == (allowed ? global : CU_STREAM_CAPTURE_MODE_RELAXED));
        (void)(form % 2 ? RETRIED(drv.cuStreamEndCapture_ptsz(streams[2], &graph))
                        : RETRIED(drv.cuStreamEndCapture(streams[2], &graph)));
    }
    if (graph && graph != target)
        OK(drv.cuGraphDestroy(graph));
    if (target)
        OK(drv.cuGraphDestroy(target));
}

/* In the current context. */
static void driver_buffers(CUdevice device)
{
    CUdeviceptr p;
    CUmemoryPool pool;
    for (size_t i = 0; i < 4; i++) {
        unsigned on = 1;
        if (!WORKED(drv.cuMemAlloc_v2(&p, (size_t)5000 << (3 * i))))
            continue;
        (void)WORKED(drv.cuMemsetD8_v2(p, 1, 5000));
        (void)WORKED(drv.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
        driver_free(p, i % 2);
    }
    if (WORKED(drv.cuMemAllocAsync_ptsz(&p, 70000, NULL)))
        driver_free(p, true);
    if (!WORKED(drv.cuDeviceGetDefaultMemPool(&pool, device)))
        return;
    if (WORKED(drv.cuMemAllocFromPoolAsync(&p, 70000, pool, NULL)))
        driver_free(p, false);
    if (WORKED(drv.cuMemAllocFromPoolAsync_ptsz(&p, 70000, pool, NULL)))
        driver_free(p, true);
}

/* A context of its own, which sees another's memory. */
static void second_context(void)
{
    CUcontext context, peer;
    OK(drv.cuCtxCreate_v2(&context, 0, 0));
    if (WORKED(drv.cuDevicePrimaryCtxRetain(&peer, 1))) {
        (void)WORKED(drv.cuCtxEnablePeerAccess(peer, 0));
        (void)RETRIED(drv.cuDevicePrimaryCtxRelease_v2(1));
    }
    driver_buffers(0);
    (void)RETRIED(drv.cuCtxDestroy_v2(context));
}

/* The last release of a primary context, which takes memory along. */
static void third_device(void)
{
    CUcontext context, popped;
    CUdeviceptr lost;
    if (!WORKED(drv.cuDevicePrimaryCtxRetain(&context, 2)))
        return;
    if (WORKED(drv.cuCtxPushCurrent_v2(context))) {
        driver_buffers(2);
        (void)WORKED(drv.cuMemAlloc_v2(&lost, 4096));
        (void)RETRIED(drv.cuCtxPopCurrent_v2(&popped));
    }
    (void)RETRIED(drv.cuDevicePrimaryCtxRelease_v2(2));
}

static void ask_addresses(void)
{
    void *address;
    (void)WORKED(drv.cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, NULL));
    (void)WORKED(drv.cuGetProcAddress("cuMemFree", &address, 13000, 0));
}

static void special(unsigned number)
{
    if (number % 2)
        capture(number / 2 % 6);
    switch (number % 5) {
    case 0:
        too_much();
        break;
    case 1:
        second_context();
        break;
    case 2:
        third_device();
        break;
    case 3:
        ask_addresses();
        break;
    default:
        tell_memory();
    }
}

/* --- a round ---------------------------------------------------------------------------------- */
static void check_kept(void)
{
    unsigned char ends[2] = {0, 0};
    OK(cudaSetDevice(1));
    OK(cudaMemcpy(&ends[0], kept, 1, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&ends[1], kept + KEPT_BYTES - 1, 1, cudaMemcpyDeviceToHost));
    HOLDS(ends[0] == 0x5A && ends[1] == 0x5A);
    OK(cudaSetDevice(0));
}

static void operations(void)
{
    uint64_t random = 12345;
    for (size_t i = 0; i < STREAMS; i++)
        if (!RETRIED(cudaStreamCreate(&streams[i])))
            BROKEN("no stream");
    for (unsigned i = 1; i <= OPERATIONS; i++) {
        buffer_t *b = &slots[next_random(&random) % SLOTS];
        uint64_t choice = next_random(&random); /* drawn in any case: the same ones every round */
        if (b->pointer)
            death(b, choice);
        else
            birth(b, choice);
        if (i % EVERY == 0)
            special(i / EVERY);
    }
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].pointer)
            death(&slots[i], i);
    for (size_t i = 0; i < STREAMS; i++)
        (void)RETRIED(cudaStreamDestroy(streams[i]));
    if (cachealloc_trim)
        cachealloc_trim();
}

/* Before the reset, so that no context's end hides a loss. */
static void check_nothing_is_left(void)
{
    cachealloc_stats_t stats;
    size_t free, total;
    OK(cudaDeviceSynchronize());
    if (cachealloc_trim)
        cachealloc_trim();
    if (shim_stats(&stats)) {
        if (stats.live_bytes != KEPT_BYTES)
            BROKEN("%llu bytes live, not %d", (unsigned long long)stats.live_bytes, KEPT_BYTES);
        if (stats.reserved_bytes != kept_reserved)
            BROKEN("%llu bytes reserved, not %zu", (unsigned long long)stats.reserved_bytes,
                   kept_reserved);
    }
    OK(cudaMemGetInfo(&free, &total));
    if (free != device_free)
        BROKEN("%zu bytes free on the device, not %zu", free, device_free);
    ANSWERS(cudaSuccess, cudaGetLastError());
}

static void check_after_reset(void)
{
    cachealloc_stats_t stats;
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    if (free != device_free)
        BROKEN("%zu bytes free after the reset, not %zu", free, device_free);
    if (shim_stats(&stats)) {
        HOLDS(stats.live_bytes == KEPT_BYTES);
        HOLDS(stats.reserved_bytes == kept_reserved);
    }
    check_kept();
}

/* Returns how often the victim was called. */
static uint64_t run_round(const struct function *function, uint64_t number, int code)
{
    victim = function;
    nth = number;
    error = code;
    sticky = code == CUDA_ERROR_ILLEGAL_ADDRESS;
    calls_before = 0;
    failures = 0;
    snprintf(label, sizeof(label), "call %llu of %s fails with %d", (unsigned long long)nth,
             victim ? victim->name : "nothing", error);
    alarm(20);
    arm();
    operations();
    pause_fault();
    if (!sticky)
        check_nothing_is_left();
    arm();
    (void)RETRIED(cudaDeviceReset());
    pause_fault();
    alarm(20);
    check_after_reset();
    return calls_before;
}

/* --- what is asked for ------------------------------------------------------------------------ */
static const struct function *find(const char *name)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    FAIL("%s is not in shim/hooks.def", name);
}

static void count(void)
{
    static uint64_t first[FUNCTIONS];
    for (size_t i = 0; i < FUNCTIONS; i++) {
        victim = &functions[i];
        ask(0);
    }
    run_round(NULL, 0, 0);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        first[i] = drv.simcuda_calls(functions[i].name);
        victim = &functions[i];
        ask(0);
    }
    run_round(NULL, 0, 0);
    for (size_t i = 0; i < FUNCTIONS; i++)
        printf("%s %llu %llu\n", functions[i].name, (unsigned long long)first[i],
               (unsigned long long)drv.simcuda_calls(functions[i].name));
}

static void each(const struct function *function, uint64_t from)
{
    static const int errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_INVALID_VALUE};
    const char *wish = getenv("CA_FAULTS");
    run_round(NULL, 0, 0);
    uint64_t calls = run_round(function, 0, 0), tried = 0, missed = 0;
    uint64_t close = wish ? strtoull(wish, NULL, 0) : 300;
    uint64_t stride = wish && strcmp(wish, "all") == 0 ? 1 : 1 + calls / 100;
    for (uint64_t n = from; n <= calls; n += n < close ? 1 : stride) {
        run_round(function, n, errors[n % 3]);
        tried++;
        if (happened())
            continue;
        missed++;
        if (n > from) { /* an earlier fault changed what this process does */
            printf("again %llu\n", (unsigned long long)n);
            break;
        }
    }
    run_round(NULL, 0, 0);
    printf("%llu calls, %llu tried, %llu missed\n", (unsigned long long)calls,
           (unsigned long long)tried, (unsigned long long)missed);
}

static void prepare(void)
{
    cachealloc_stats_t stats;
    size_t total;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
#define X(name) CHECK((drv.name = (__typeof__(drv.name))dlsym(library, #name)));
    DRIVER_FUNCTIONS(X)
    X(simcuda_fail)
    X(simcuda_calls)
#undef X
    signal(SIGALRM, on_signal);
    signal(SIGSEGV, on_signal);
    signal(SIGABRT, on_signal);
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&kept, KEPT_BYTES));
    OK(cudaMemset(kept, 0x5A, KEPT_BYTES));
    if (shim_stats(&stats))
        kept_reserved = stats.reserved_bytes;
    OK(cudaSetDevice(0));
    OK(cudaMemGetInfo(&device_free, &total));
}

int main(int argc, char **argv)
{
    prepare();
    if (argc < 3)
        count();
    else if (strcmp(argv[1], "each") == 0)
        each(find(argv[2]), number_argument(argc, argv, 3, 1));
    else {
        run_round(find(argv[2]), number_argument(argc, argv, 3, 1),
                  (int)number_argument(argc, argv, 4, CUDA_ERROR_UNKNOWN));
        run_round(NULL, 0, 0);
    }
    strcpy(label, "at exit");
    alarm(20);
    return 0;
}
