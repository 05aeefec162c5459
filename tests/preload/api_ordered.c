/* cachealloc_alloc and cachealloc_free, found in the process, or in the library that is opened.
 *
 * api_ordered CASE [LIBRARY]
 *     basic     alignment, sizes, what comes back at once, what a pointer leads to, what is counted
 *     refused   what is no memory, no device, no stream; each by its errno
 *     mixed     freed by cudaFree and cudaFreeAsync, and what those gave freed by cachealloc_free
 *     device    of a device that is not current, by a thread that has no context
 *     awaited   used on another stream, which is busy
 *     own       used on another thread's own stream, which has the same handle
 *     shared_pool  freed in captures of two graphs, whose pool is released by each
 *     recorded  used on another stream, which is held: not handed out until that goes on
 *     stale     used on another stream and freed by cudaFree; what is there next is freed at once
 *     streams   freed on another stream than its own; its own destroyed before the free
 *     handles   streams come and go with the same handle, each with memory freed on it
 *     reset     the device is reset: its memory is gone, and other memory comes
 *     capture   allocated and freed in a capture: kept for the graph
 *     refusal   cachealloc_torch_alloc calls the function before NULL is the answer
 *     full      more than the device has: ENOMEM
 *     fork      the child of a process that used CUDA: ENOTSUP
 *     leak      one allocation is left
 *     early     before the process has loaded or used CUDA */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "include/cachealloc.h"
#include "gate.h"

#define MIB ((size_t)1 << 20)

static __typeof__(cachealloc_alloc) *alloc_on;
static __typeof__(cachealloc_free) *free_on;
static __typeof__(cachealloc_record_stream) *record_stream;
static __typeof__(cachealloc_stats) *get_stats;
static __typeof__(cachealloc_info) *get_info;
static __typeof__(cachealloc_trim) *trim;
static __typeof__(cachealloc_torch_alloc) *torch_alloc;
static __typeof__(cachealloc_torch_on_refusal) *on_refusal;
static __typeof__(cachealloc_torch_begin_pool) *begin_pool;
static __typeof__(cachealloc_torch_end_pool) *end_pool;
static __typeof__(cachealloc_torch_release_pool) *release_pool;
static bool opened;

static void *find(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (!function)
        FAIL("no %s", name);
    return function;
}

static void find_all(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    opened = path != NULL;
    if (!library)
        FAIL("%s", dlerror());
    alloc_on = (__typeof__(alloc_on))find(library, "cachealloc_alloc");
    free_on = (__typeof__(free_on))find(library, "cachealloc_free");
    record_stream = (__typeof__(record_stream))find(library, "cachealloc_record_stream");
    get_stats = (__typeof__(get_stats))find(library, "cachealloc_stats");
    get_info = (__typeof__(get_info))find(library, "cachealloc_info");
    trim = (__typeof__(trim))find(library, "cachealloc_trim");
    torch_alloc = (__typeof__(torch_alloc))find(library, "cachealloc_torch_alloc");
    on_refusal = (__typeof__(on_refusal))find(library, "cachealloc_torch_on_refusal");
    begin_pool = (__typeof__(begin_pool))find(library, "cachealloc_torch_begin_pool");
    end_pool = (__typeof__(end_pool))find(library, "cachealloc_torch_end_pool");
    release_pool = (__typeof__(release_pool))find(library, "cachealloc_torch_release_pool");
}

static char *allocate(size_t bytes, cudaStream_t stream)
{
    char *memory = alloc_on(bytes, 0, -1, stream);
    if (!memory)
        FAIL("%zu bytes: %s", bytes, strerror(errno));
    return memory;
}

static void give(void *memory, cudaStream_t stream)
{
    OK(free_on(memory, 0, -1, stream));
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void use(char *memory, size_t bytes, int value, cudaStream_t stream)
{
    unsigned char seen[2] = {0};
    OK(cudaMemsetAsync(memory, value, bytes, stream));
    OK(cudaMemcpyAsync(seen, memory, 1, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(seen + 1, memory + bytes - 1, 1, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(seen[0] == value && seen[1] == value);
}

static cachealloc_stats_t stats(void)
{
    cachealloc_stats_t now = {.size = sizeof now};
    OK(get_stats(&now));
    return now;
}

static void basic(void)
{
    const cudaStream_t streams[] = {NULL, cudaStreamLegacy, cudaStreamPerThread, make_stream()};
    cachealloc_stats_t before = stats();
    uint64_t calls = 0;
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        for (size_t bytes = 1; bytes < 64 * MIB; bytes = bytes * 7 + 3, calls++) {
            char *memory = allocate(bytes, streams[i]);
            cachealloc_info_t info = {.size = sizeof info};
            OK(get_info(memory, &info));
            CHECK((uintptr_t)memory % (bytes < 65536 ? 512 : 4096) == 0 && info.base == memory);
            CHECK(info.kind == CACHEALLOC_KIND_ASYNC && info.bytes == bytes && info.device == 0);
            use(memory, bytes, 7, streams[i]);
            give(memory, streams[i]);
        }
    char *first = allocate(3 * MIB, streams[3]);
    OK(cudaMemsetAsync(first, 1, 3 * MIB, streams[3]));
    give(first, streams[3]); /* its work goes on */
    char *again = allocate(3 * MIB, streams[3]);
    CHECK(first == again);
    give(again, streams[3]);
    cachealloc_stats_t after = stats();
    CHECK(after.alloc_calls == before.alloc_calls + calls + 2);
    CHECK(after.free_calls == before.free_calls + calls + 2 && after.live_bytes == 0);
    errno = 99;
    CHECK(!alloc_on(0, 0, -1, NULL) && errno == 99);
    CHECK(alloc_on(0, 0, 0, NULL) == NULL && free_on(NULL, 0, 0, NULL) == 0 && errno == 99);
    OK(cudaDeviceSynchronize());
    OK(cudaGetLastError());
}

static void no_alloc(int expected, size_t bytes, size_t alignment, int device, void *stream)
{
    errno = 0;
    void *memory = alloc_on(bytes, alignment, device, stream);
    if (memory || errno != expected)
        FAIL("%p, errno %d, expected %d", memory, errno, expected);
}

static void refused(void)
{
    cudaStream_t other;
    OK(cudaSetDevice(1));
    other = make_stream();
    OK(cudaSetDevice(0));
    OK(cudaFree(NULL));
    char *memory = allocate(4 * MIB, NULL);
    no_alloc(EINVAL, 100, 3, -1, NULL);
    no_alloc(EINVAL, 100, 1024, -1, NULL);
    no_alloc(EINVAL, MIB, 8192, -1, NULL);
    no_alloc(EINVAL, 100, 0, 0, other);
    no_alloc(EINVAL, 100, 0, 9, NULL);
    no_alloc(EINVAL, 100, 0, -2, NULL);
    no_alloc(ENOMEM, SIZE_MAX, 0, 0, NULL);
    ANSWERS(EINVAL, free_on(memory + 512, 0, 0, NULL));
    ANSWERS(EINVAL, free_on(&other, 0, 0, NULL));
    ANSWERS(EINVAL, free_on(memory, 0, -7, NULL));
    ANSWERS(EINVAL, free_on(memory, 0, 9, NULL));
    void *aligned = alloc_on(MIB, 4096, 0, NULL);
    CHECK(aligned && (uintptr_t)aligned % 4096 == 0);
    give(aligned, NULL);
    give(memory, NULL);
    ANSWERS(EINVAL, free_on(memory, 0, 0, NULL));
    OK(cudaGetLastError());
}

static void mixed(void)
{
    cudaStream_t stream = make_stream();
    void *plain, *ordered;
    OK(cudaMalloc(&plain, 3 * MIB));
    OK(cudaMallocAsync(&ordered, 3 * MIB, stream));
    if (!opened) {
        OK(cudaFree(allocate(MIB, stream)));
        OK(cudaFreeAsync(allocate(MIB, stream), stream));
    }
    give(plain, stream);
    give(ordered, stream);
    OK(cudaDeviceSynchronize());
    CHECK(stats().live_allocations == 0);
}

static void *in_thread(void *argument)
{
    (void)argument;
    char *one = alloc_on(MIB, 0, 1, NULL), *zero = alloc_on(MIB, 0, 0, NULL);
    cachealloc_info_t info = {.size = sizeof info};
    CHECK(one && zero);
    OK(get_info(one, &info));
    CHECK(info.device == 1);
    OK(free_on(one, MIB, 1, NULL));
    OK(free_on(zero, MIB, 0, NULL));
    return NULL;
}

static void device(void)
{
    pthread_t thread;
    OK(cudaSetDevice(0));
    OK(cudaFree(NULL));
    void *memory = alloc_on(MIB, 0, 1, NULL);
    int now;
    OK(cudaGetDevice(&now));
    CHECK(memory && now == 0);
    OK(free_on(memory, 0, 1, NULL));
    OK(pthread_create(&thread, NULL, in_thread, NULL));
    OK(pthread_join(thread, NULL));
}

static void recorded(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stream = make_stream(), other = make_stream();
    give(allocate(3 * MIB, stream), stream);
    char *memory = allocate(3 * MIB, stream);
    OK(cudaStreamSynchronize(stream)); /* it may be filled there */
    gate_hold(&gate, other);
    OK(cudaMemsetAsync(memory, 5, 3 * MIB, other));
    OK(record_stream(memory, other));
    ANSWERS(ENOENT, record_stream(memory + 1, other));
    give(memory, stream);
    char *second = allocate(3 * MIB, stream);
    CHECK(second != memory);
    use(second, 3 * MIB, 6, stream);
    gate_open(&gate);
    give(second, stream);
    OK(cudaDeviceSynchronize());
}

/* What the driver gives has the same address again. */
static void stale(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stream = make_stream(), other = make_stream();
    char *memory = allocate(MIB, stream);
    OK(cudaStreamSynchronize(stream));
    OK(record_stream(memory, other));
    OK(cudaFree(memory));
    OK(cudaDeviceSynchronize());
    char *second = allocate(MIB, stream);
    gate_hold(&gate, other);
    give(second, stream);
    gate_open(&gate);
    OK(cudaDeviceSynchronize());
    puts(second == memory ? "the same" : "another");
}

/* With memory of the driver's own too, which is told of one stream alone. */
static void awaited(void)
{
    cudaStream_t stream = make_stream(), other = make_stream();
    char *memory = allocate(3 * MIB, stream);
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 20; i++)
        OK(cudaMemsetAsync(memory, 5, 3 * MIB, other));
    OK(record_stream(memory, other));
    give(memory, stream);
    char *second = allocate(3 * MIB, stream);
    use(second, 3 * MIB, 6, stream);
    give(second, stream);
    OK(cudaDeviceSynchronize());
}

typedef struct own_use {
    gate_t gate;
    char *memory;
} own_use_t;

static void *use_by_own_stream(void *arg)
{
    own_use_t *use = arg;
    gate_hold(&use->gate, cudaStreamPerThread);
    OK(cudaMemsetAsync(use->memory, 5, 3 * MIB, cudaStreamPerThread));
    OK(record_stream(use->memory, cudaStreamPerThread));
    return NULL;
}

/* Two threads mean two streams by one handle. */
static void own(void)
{
    pthread_t thread;
    own_use_t other = {.gate = GATE_CLOSED, .memory = allocate(3 * MIB, cudaStreamPerThread)};
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    OK(pthread_create(&thread, NULL, use_by_own_stream, &other));
    OK(pthread_join(thread, NULL));
    give(other.memory, cudaStreamPerThread);
    char *second = allocate(3 * MIB, cudaStreamPerThread);
    CHECK(second != other.memory);
    gate_open(&other.gate);
    give(second, cudaStreamPerThread);
    OK(cudaDeviceSynchronize());
}

static void streams(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stream = make_stream(), other = make_stream();
    char *memory = allocate(3 * MIB, stream);
    OK(cudaStreamSynchronize(stream));
    gate_hold(&gate, other);
    OK(cudaMemsetAsync(memory, 5, 3 * MIB, other));
    give(memory, other);
    char *second = allocate(3 * MIB, stream), *third = allocate(3 * MIB, other);
    CHECK(second != memory && third == memory);
    gate_open(&gate);
    OK(cudaStreamDestroy(stream));
    give(second, NULL);
    give(third, cudaStreamPerThread);
    OK(cudaDeviceSynchronize());
}

static void handles(void)
{
    cudaStream_t before = NULL;
    unsigned again = 0;
    for (int i = 0; i < 200; i++) {
        cudaStream_t stream = make_stream();
        again += stream == before;
        char *memory = allocate(MIB, stream), *more = allocate(2 * MIB, stream);
        OK(cudaMemsetAsync(memory, i, MIB, stream));
        OK(cudaMemsetAsync(more, i, 2 * MIB, stream));
        give(memory, stream);
        give(more, stream);
        before = stream;
        OK(cudaStreamDestroy(stream)); /* its work goes on */
    }
    OK(cudaDeviceSynchronize());
    printf("%u handles came again\n", again);
}

static void reset(void)
{
    cudaStream_t stream = make_stream();
    char *memory = allocate(8 * MIB, stream);
    use(memory, 8 * MIB, 1, stream);
    give(allocate(MIB, stream), stream);
    OK(cudaDeviceReset());
    stream = make_stream();
    char *second = allocate(8 * MIB, stream);
    use(second, 8 * MIB, 2, stream);
    give(second, stream);
    char *third = allocate(8 * MIB, NULL);
    use(third, 8 * MIB, 3, NULL);
    give(third, NULL);
}

static void capture(void)
{
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    char *before = allocate(4 * MIB, stream);
    give(allocate(4 * MIB, NULL), NULL);
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    if (opened) {
        no_alloc(EBUSY, MIB, 0, 0, stream);
        ANSWERS(EBUSY, free_on(before, 0, -1, stream)); /* it stays allocated */
        OK(cudaStreamEndCapture(stream, &graph));
        CHECK(stats().live_allocations == 1);
        give(before, stream);
        return;
    }
    char *within = allocate(4 * MIB, stream);
    OK(cudaMemsetAsync(within, 9, 4 * MIB, stream));
    give(within, stream);
    give(before, stream);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 8; i++) {
        char *other = allocate(4 * MIB, stream);
        CHECK(other != within && other != before);
        OK(cudaGraphLaunch(executable, stream));
        use(other, 4 * MIB, i, stream);
        give(other, stream);
    }
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(executable));
    CHECK(trim() > 0);
}

/* Allocated and freed in a capture that the pool's user tells of; for each of its graphs. */
static char *capture_in_pool(cudaStream_t stream)
{
    cudaGraph_t graph;
    begin_pool(0, 7, 0, NULL);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    char *within = allocate(4 * MIB, stream);
    OK(cudaMemsetAsync(within, 9, 4 * MIB, stream));
    give(within, stream);
    OK(cudaStreamEndCapture(stream, &graph));
    end_pool(0, 7, 0);
    OK(cudaGraphDestroy(graph));
    return within;
}

static bool is_handed_out(const char *first, const char *second, cudaStream_t stream)
{
    char *memory[6];
    bool found = false;
    for (size_t i = 0; i < 6; i++) {
        memory[i] = allocate(4 * MIB, stream);
        found |= memory[i] == first || memory[i] == second;
    }
    for (size_t i = 0; i < 6; i++)
        give(memory[i], stream);
    OK(cudaStreamSynchronize(stream));
    return found;
}

/* Two graphs of one pool: what they have is theirs until both have released it. Preloaded, the
 * captures themselves are seen, and releases are not asked about. */
static void shared_pool(void)
{
    cudaStream_t stream = make_stream();
    if (!opened)
        return;
    (void)is_handed_out(NULL, NULL, stream);
    char *first = capture_in_pool(stream), *second = capture_in_pool(stream);
    CHECK(!is_handed_out(first, second, stream));
    release_pool(0, 7, 0);
    CHECK(!is_handed_out(first, second, stream));
    release_pool(0, 7, 0);
    CHECK(is_handed_out(first, second, stream));
}

static int refusals;

static void note_refusal(const char *function, const char *file, uint32_t line, const char *message)
{
    CHECK(function && file && line && strstr(message, "out of memory"));
    refusals++;
}

static void refusal(void)
{
    on_refusal(note_refusal);
    CHECK(!torch_alloc(0, 0, NULL) && refusals == 0);
    CHECK(!torch_alloc((ssize_t)(1024 * MIB), 0, NULL) && refusals == 1);
    void *memory = torch_alloc(100, 0, NULL);
    CHECK(memory && refusals == 1);
    give(memory, NULL);
}

static void full(void)
{
    OK(cudaFree(NULL));
    no_alloc(ENOMEM, 1024 * MIB, 0, 0, NULL);
    give(allocate(MIB, NULL), NULL);
    OK(cudaGetLastError());
}

static void in_child(void)
{
    int status;
    give(allocate(MIB, NULL), NULL);
    pid_t child = fork();
    if (child == 0) {
        errno = 0;
        _exit(alloc_on(MIB, 0, 0, NULL) || errno != ENOTSUP);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* On the thread's own stream and on one that was made, with no other call of CUDA between. */
static void pairs(void)
{
    const cudaStream_t streams[] = {cudaStreamPerThread, make_stream()};
    for (int i = 0; i < 500; i++)
        for (int s = 0; s < 2; s++)
            give(allocate(4096, streams[s]), streams[s]);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"basic", basic},       {"refused", refused},
                 {"mixed", mixed},       {"device", device},
                 {"stale", stale},       {"streams", streams},
                 {"recorded", recorded}, {"awaited", awaited},
                 {"own", own},           {"shared_pool", shared_pool},
                 {"handles", handles},   {"reset", reset},
                 {"capture", capture},   {"refusal", refusal},
                 {"full", full},         {"fork", in_child},
                 {"pairs", pairs}};
    CHECK(argc > 1);
    if (argc < 3 && !dlsym(RTLD_DEFAULT, "cachealloc_alloc")) {
        puts("no shim");
        return 0;
    }
    find_all(argc > 2 ? argv[2] : NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    if (strcmp(argv[1], "early") == 0)
        give(allocate(MIB, NULL), NULL);
    else if (strcmp(argv[1], "leak") == 0)
        allocate(12345, NULL);
    else
        FAIL("case %s", argv[1]);
    return 0;
}
