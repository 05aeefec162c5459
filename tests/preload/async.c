/* Stream-ordered allocation: what is freed on a stream comes back there at once, elsewhere when its
 * work is done.
 *
 * async pairs N        pairs on one stream, one size after the other
 * async streams N      eight streams; what four of them free the other four take
 * async mixed          all four combinations of allocating and freeing
 * async held           a stream is held up behind a gate: its memory stays there, its own
 *                      allocations go on
 * async destroyed      streams end with memory freed on them; handles come again
 * async refused        one of the calls on pools fails: so it says, and nothing else does
 * async unsupported    the device has no pools, and says so
 * async pool           explicit pools, and a default pool that the program customises
 * async marks          high-water marks of the default pool are reset amid pairs
 * async trim KEEP      64 MiB are freed and the default pool trimmed to KEEP MiB
 * async tuned          the default pool is given a release threshold after memory came and went
 * async left           likewise, while that memory is still in flight
 * async thread         threads that end with memory freed on their own default stream
 * async own            the per-thread default stream is held up in one thread, not in another
 * async deadlock       memory freed on a held stream, and nobody waits for it
 * async behind         memory freed on a stream that is busy for a moment serves a full device,
 *                      though what was freed before waits for this thread
 * async blocking       memory freed on the legacy stream behind work of a blocking one is used on
 *                      another blocking one, which waits for the legacy stream
 * async joined         memory freed on a held stream is taken, and the other stream waits; prints
 *                      whether it was
 *
 * With ASYNC_BY set it allocates and frees by cachealloc_alloc and cachealloc_free instead: of the
 * library that is preloaded where it is empty, else of the one at that path, which it opens. */
#include <dlfcn.h>
#include <stdbool.h>
#include <time.h>
#include "gate.h"

#define MIB ((size_t)1 << 20)
#define STREAMS 8

static void *(*alloc_of_library)(size_t bytes, size_t alignment, int device, void *stream);
static int (*free_of_library)(void *memory, size_t bytes, int device, void *stream);

static void find_library(void)
{
    const char *by = getenv("ASYNC_BY");
    void *library = by ? dlopen(*by ? by : NULL, RTLD_NOW) : NULL;
    CHECK(library || !by);
    if (!by)
        return;
    alloc_of_library = (__typeof__(alloc_of_library))dlsym(library, "cachealloc_alloc");
    free_of_library = (__typeof__(free_of_library))dlsym(library, "cachealloc_free");
    CHECK(alloc_of_library && free_of_library);
}

static cudaError_t allocate_on(void **memory, size_t bytes, cudaStream_t stream)
{
    if (!alloc_of_library)
        return cudaMallocAsync(memory, bytes, stream);
    *memory = alloc_of_library(bytes, 0, -1, stream);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t free_on(void *memory, cudaStream_t stream)
{
    if (!free_of_library)
        return cudaFreeAsync(memory, stream);
    return free_of_library(memory, 0, -1, stream) ? cudaErrorInvalidValue : cudaSuccess;
}

static char *allocate(size_t bytes, cudaStream_t stream)
{
    void *memory;
    OK(allocate_on(&memory, bytes, stream));
    return memory;
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Fills the buffer in the stream's order and reads its ends back. */
static void use(char *memory, size_t bytes, int value, cudaStream_t stream)
{
    static _Thread_local unsigned char *seen;
    if (!seen)
        OK(cudaMallocHost((void **)&seen, 2));
    OK(cudaMemsetAsync(memory, value, bytes, stream));
    OK(cudaMemcpyAsync(seen, memory, 1, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(seen + 1, memory + bytes - 1, 1, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(seen[0] == value && seen[1] == value);
    if (value == 0) { /* the last one of a thread */
        OK(cudaFreeHost(seen));
        seen = NULL;
    }
}

static void pairs(uint64_t count)
{
    const size_t sizes[] = {100, 4096, 300000, 2 * MIB, 64 * MIB};
    cudaStream_t stream = make_stream();
    for (uint64_t i = 0; i < count; i++)
        OK(free_on(allocate(sizes[i % 5], stream), stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}

static void streams(uint64_t count)
{
    cudaStream_t stream[STREAMS];
    cudaEvent_t done;
    char *held[STREAMS] = {0};
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    for (int i = 0; i < STREAMS; i++)
        stream[i] = make_stream();
    for (uint64_t i = 0; i < count; i++) {
        int owner = (int)(2 * i % STREAMS), freer = (int)((2 * i + 3) % STREAMS);
        char *memory = allocate(256 * 1024, stream[owner]);
        OK(cudaMemsetAsync(memory, (int)i, 256 * 1024, stream[owner]));
        OK(cudaEventRecord(done, stream[owner]));
        OK(cudaStreamWaitEvent(stream[freer], done, 0));
        if (held[freer])
            OK(free_on(held[freer], stream[freer]));
        held[freer] = memory;
    }
    for (int i = 0; i < STREAMS; i++) {
        if (held[i])
            OK(free_on(held[i], stream[i]));
        OK(cudaStreamDestroy(stream[i]));
    }
    OK(cudaEventDestroy(done));
}

static void mixed(void)
{
    cudaStream_t stream = make_stream();
    for (int i = 0; i < 200; i++) {
        size_t bytes = (size_t)1000 * (1 + (size_t)i % 50);
        void *plain;
        OK(cudaMalloc(&plain, bytes));
        OK(cudaMemsetAsync(plain, i, bytes, stream));
        OK(free_on(plain, stream));
        char *ordered = allocate(bytes, stream);
        use(ordered, bytes, 1 + i % 200, stream);
        OK(cudaFree(ordered));
        OK(free_on(allocate(bytes, stream), stream));
        OK(cudaMalloc(&plain, bytes));
        OK(cudaFree(plain));
        OK(free_on(allocate(bytes, NULL), NULL));
        ordered = allocate(bytes, cudaStreamLegacy);
        OK(free_on(ordered, cudaStreamPerThread));
    }
    char *last = allocate(100, stream);
    use(last, 100, 0, stream);
    OK(free_on(last, stream));
    OK(cudaStreamDestroy(stream));
}

static void held(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stopped = make_stream(), other = make_stream();
    size_t bytes = 6 * MIB;
    char *first = allocate(bytes, stopped);
    OK(cudaStreamSynchronize(stopped));
    gate_hold(&gate, stopped);
    OK(cudaMemsetAsync(first, 1, bytes, stopped));
    OK(free_on(first, stopped));
    for (int i = 0; i < 20; i++) { /* nothing waits for the gate */
        char *elsewhere = allocate(bytes, other);
        CHECK(elsewhere + bytes <= first || first + bytes <= elsewhere);
        use(elsewhere, bytes, 2, other);
        OK(free_on(elsewhere, other));
        char *there = allocate(bytes, stopped);
        OK(cudaMemsetAsync(there, 3, bytes, stopped));
        OK(free_on(there, stopped));
    }
    CHECK(cudaStreamQuery(stopped) == cudaErrorNotReady);
    gate_open(&gate);
    OK(cudaStreamSynchronize(stopped));
    char *last = allocate(100, other);
    use(last, 100, 0, other);
    OK(free_on(last, other));
    OK(cudaStreamDestroy(stopped));
    OK(cudaStreamDestroy(other));
}

static void destroyed(void)
{
    for (int i = 0; i < 300; i++) {
        gate_t gate = GATE_CLOSED;
        cudaStream_t stream = make_stream(), other;
        char *memory = allocate(1 * MIB, stream);
        if (i % 3 == 0)
            gate_hold(&gate, stream);
        OK(cudaMemsetAsync(memory, 1, 1 * MIB, stream));
        OK(free_on(memory, stream));
        OK(cudaStreamDestroy(stream));
        other = make_stream(); /* with the same handle */
        memory = allocate(1 * MIB, other);
        use(memory, 1 * MIB, i == 299 ? 0 : 2, other);
        OK(free_on(memory, other));
        gate_open(&gate);
        OK(cudaStreamDestroy(other));
        OK(cudaDeviceSynchronize());
    }
    void *all; /* 300 MiB went through a device of 64 */
    OK(cudaMalloc(&all, 40 * MIB));
    OK(cudaFree(all));
}

static void pool(void)
{
    cudaStream_t stream = make_stream();
    cudaMemPool_t mine, standard, current;
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
    void *memory;
    uint64_t threshold = UINT64_MAX;
    struct cudaMemAccessDesc access = {.location = {.type = cudaMemLocationTypeDevice, .id = 0},
                                       .flags = cudaMemAccessFlagsProtReadWrite};
    OK(cudaMemPoolCreate(&mine, &properties));
    OK(cudaMemPoolSetAccess(mine, &access, 1));
    OK(cudaMallocFromPoolAsync(&memory, 1000, mine, stream));
    use(memory, 1000, 5, stream);
    OK(free_on(memory, stream));
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    OK(cudaDeviceSetMemPool(0, mine));
    OK(free_on(allocate(1000, stream), stream));
    OK(cudaDeviceSetMemPool(0, standard));
    OK(cudaDeviceGetMemPool(&current, 0));
    CHECK(current == standard);
    OK(free_on(allocate(1000, stream), stream));
    OK(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &threshold));
    memory = allocate(1000, stream);
    use(memory, 1000, 0, stream);
    OK(free_on(memory, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemPoolDestroy(mine));
    OK(cudaStreamDestroy(stream));
}

static void marks(void)
{
    cudaStream_t stream = make_stream();
    cudaMemPool_t standard;
    uint64_t zero = 0;
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    for (int i = 0; i < 100; i++) {
        OK(free_on(allocate(1 * MIB, stream), stream));
        OK(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrUsedMemHigh, &zero));
        OK(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReservedMemHigh, &zero));
    }
    OK(cudaStreamSynchronize(stream));
}

static void trim(uint64_t keep)
{
    cudaStream_t stream = make_stream();
    cudaMemPool_t standard;
    char *memory[8];
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    for (int i = 0; i < 8; i++)
        memory[i] = allocate(8 * MIB, stream);
    for (int i = 0; i < 8; i++)
        OK(free_on(memory[i], stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemPoolTrimTo(standard, keep * MIB));
}

static void tuned(bool left)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stream = make_stream();
    cudaMemPool_t pool;
    uint64_t threshold = UINT64_MAX;
    char *memory[3];
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    for (unsigned round = 0; round < (left ? 100 : 2); round++) {
        for (unsigned i = 0; i < 3; i++)
            use(memory[i] = allocate(32 * MIB, stream), 32 * MIB, 1, stream);
        if (left && round == 0)
            gate_hold(&gate, stream);
        for (unsigned i = 0; i < 3; i++)
            OK(free_on(memory[i], stream));
        if (round == 0)
            OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
        if (left && round == 0)
            gate_open(&gate);
        OK(cudaStreamSynchronize(stream));
    }
    use(memory[0] = allocate(MIB, stream), MIB, 0, stream);
    OK(free_on(memory[0], stream));
}

static void refused(void)
{
    cudaStream_t stream = make_stream();
    cudaMemPool_t standard;
    uint64_t threshold = 0;
    struct cudaMemAccessDesc access = {.location = {.type = cudaMemLocationTypeDevice, .id = 0},
                                       .flags = cudaMemAccessFlagsProtReadWrite};
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    int codes[] = {
        (int)cudaDeviceSetMemPool(0, standard),
        (int)cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &threshold),
        (int)cudaMemPoolSetAccess(standard, &access, 1)};
    CHECK((codes[0] != 0) + (codes[1] != 0) + (codes[2] != 0) == 1);
    char *memory = allocate(1000, stream);
    use(memory, 1000, 0, stream);
    OK(free_on(memory, stream));
    OK(cudaStreamDestroy(stream));
}

static void *on_own_stream(void *number)
{
    for (int i = 0; i < 40; i++) {
        size_t bytes = 100000 + (size_t)(uintptr_t)number * 1000;
        char *memory = allocate(bytes, cudaStreamPerThread);
        use(memory, bytes, i == 39 ? 0 : 1 + i, cudaStreamPerThread);
        OK(free_on(memory, cudaStreamPerThread));
    }
    return number;
}

static void thread(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++)
            OK(pthread_create(&threads[i], NULL, on_own_stream, (void *)i));
        for (int i = 0; i < 4; i++)
            OK(pthread_join(threads[i], NULL));
    }
    void *all;
    OK(cudaMalloc(&all, 40 * MIB));
    OK(cudaFree(all));
}

static void *set_on_own_stream(void *unused)
{
    char *memory = allocate(1 * MIB, cudaStreamPerThread);
    OK(cudaMemsetAsync(memory, 1, 1 * MIB, cudaStreamPerThread));
    OK(free_on(memory, cudaStreamPerThread));
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    return unused;
}

/* One handle, and a stream in every thread. */
static void own(void)
{
    gate_t gate = GATE_CLOSED;
    pthread_t other;
    char *memory = allocate(1 * MIB, cudaStreamPerThread);
    gate_hold(&gate, cudaStreamPerThread);
    OK(cudaMemsetAsync(memory, 2, 1 * MIB, cudaStreamPerThread));
    OK(free_on(memory, cudaStreamPerThread));
    OK(pthread_create(&other, NULL, set_on_own_stream, NULL));
    OK(pthread_join(other, NULL));
    gate_open(&gate);
    OK(cudaStreamSynchronize(cudaStreamPerThread));
}

static void deadlock(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stopped = make_stream(), other = make_stream();
    char *memory[16];
    for (int i = 0; i < 16; i++)
        memory[i] = allocate(1 * MIB, stopped);
    OK(free_on(memory[0], stopped));
    gate_hold(&gate, stopped);
    for (int i = 1; i < 16; i++)
        OK(free_on(memory[i], stopped));
    for (int i = 0; i < 16; i++) { /* the gate opens after these have run */
        memory[i] = allocate(1 * MIB, other);
        OK(cudaMemsetAsync(memory[i], i, 1 * MIB, other));
    }
    OK(cudaStreamSynchronize(other));
    gate_open(&gate);
    OK(cudaStreamSynchronize(stopped)); /* which uses the gate */
    for (int i = 0; i < 16; i++)
        OK(free_on(memory[i], other));
    OK(cudaStreamDestroy(stopped));
    OK(cudaStreamDestroy(other));
}

static void take_a_while(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

static void behind(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stopped = make_stream(), busy = make_stream();
    void *small, *hogs[256];
    cudaGraph_t graph;
    int count = 0;
    OK(cudaMalloc(&small, 256));
    while (count < 256 && cudaMalloc(&hogs[count], 1 * MIB) == cudaSuccess)
        count++;
    ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
    /* Nothing can be recorded behind that free until the allocation comes. */
    OK(cudaStreamBeginCapture(busy, cudaStreamCaptureModeRelaxed));
    OK(cudaFree(small));
    OK(cudaStreamEndCapture(busy, &graph));
    OK(cudaGraphDestroy(graph));
    gate_hold(&gate, stopped);
    OK(cudaLaunchHostFunc(busy, take_a_while, NULL));
    OK(free_on(hogs[2], busy)); /* amid what is live, so that no segment can go */
    OK(cudaMalloc(&hogs[2], 1 * MIB));
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(stopped));
    gate_open(&gate);
    OK(cudaStreamSynchronize(stopped));
    while (count > 0)
        OK(cudaFree(hogs[--count]));
    OK(cudaStreamDestroy(stopped));
    OK(cudaStreamDestroy(busy));
}

static void joined(void)
{
    gate_t gate = GATE_CLOSED;
    cudaStream_t stopped = make_stream(), other = make_stream();
    OK(free_on(allocate(100, other), other)); /* a second stream is known */
    char *memory = allocate(6 * MIB, stopped);
    gate_hold(&gate, stopped);
    OK(free_on(memory, stopped));
    char *taken = allocate(6 * MIB, other);
    OK(cudaMemsetAsync(taken, 1, 6 * MIB, other));
    CHECK(taken != memory || cudaStreamQuery(other) == cudaErrorNotReady);
    puts(taken == memory ? "joined" : "another");
    gate_open(&gate);
    OK(cudaStreamSynchronize(stopped)); /* which uses the gate */
    OK(free_on(taken, other));
    OK(cudaStreamSynchronize(other));
    OK(cudaStreamDestroy(stopped));
    OK(cudaStreamDestroy(other));
}

static void blocking(void)
{
    const size_t sizes[] = {1000, 300000, 8 * MIB};
    gate_t gate = GATE_CLOSED;
    cudaStream_t one, other;
    void *first, *second;
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreate(&other));
    for (unsigned i = 0; i < 30; i++) {
        size_t bytes = sizes[i % 3];
        OK(allocate_on(&first, bytes, NULL));
        if (i == 0)
            gate_hold(&gate, one);
        OK(cudaMemsetAsync(first, 1, bytes, one));
        OK(free_on(first, NULL));
        OK(allocate_on(&second, bytes, NULL));
        OK(cudaMemsetAsync(second, 2, bytes, other));
        OK(free_on(second, NULL));
    }
    gate_open(&gate);
    OK(cudaDeviceSynchronize());
}

static void unsupported(void)
{
    void *memory;
    cudaStream_t streams[] = {NULL, cudaStreamPerThread, make_stream()};
    for (size_t i = 0; i < 3; i++) {
        ANSWERS(cudaErrorNotSupported, allocate_on(&memory, 1000, streams[i]));
        ANSWERS(cudaErrorNotSupported, cudaGetLastError());
    }
    OK(cudaStreamDestroy(streams[2]));
}

int main(int argc, char **argv)
{
    find_library();
    CHECK(argc > 1);
    uint64_t count = number_argument(argc, argv, 2, 1000);
    void *warm;
    OK(cudaMalloc(&warm, 1));
    if (strcmp(argv[1], "pairs") == 0)
        pairs(count);
    else if (strcmp(argv[1], "streams") == 0)
        streams(count);
    else if (strcmp(argv[1], "mixed") == 0)
        mixed();
    else if (strcmp(argv[1], "held") == 0)
        held();
    else if (strcmp(argv[1], "destroyed") == 0)
        destroyed();
    else if (strcmp(argv[1], "unsupported") == 0)
        unsupported();
    else if (strcmp(argv[1], "pool") == 0)
        pool();
    else if (strcmp(argv[1], "marks") == 0)
        marks();
    else if (strcmp(argv[1], "trim") == 0)
        trim(count);
    else if (strcmp(argv[1], "refused") == 0)
        refused();
    else if (strcmp(argv[1], "thread") == 0)
        thread();
    else if (strcmp(argv[1], "own") == 0)
        own();
    else if (strcmp(argv[1], "joined") == 0)
        joined();
    else if (strcmp(argv[1], "tuned") == 0)
        tuned(false);
    else if (strcmp(argv[1], "left") == 0)
        tuned(true);
    else if (strcmp(argv[1], "blocking") == 0)
        blocking();
    else if (strcmp(argv[1], "behind") == 0)
        behind();
    else
        deadlock();
    OK(cudaFree(warm));
    return 0;
}
