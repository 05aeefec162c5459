/* What mapped memory is refused, and what it has to be given: the traps around expandable segments.
 * Each case is right without the shim, and with it whether or not segments grow; with `ranged`
 * behind it the memory must lie in one that does.
 *
 * drv_expandable CASE [ranged] [NUMBER]
 *   ipc         handles of a block, and of new memory
 *   peer        another device is at memory from before it got access and from after
 *   refused     the peer is let in only when all memory can be opened to it
 *   addresses   what the driver says of a pointer's range and context
 *   sync        SYNC_MEMOPS of a block, and of new memory
 *   handle      a block is mapped by no handle of the program's
 *   dmabuf      memory that devices on the bus reach stays where it is
 *   dmabuf_refused  where it could not be had: UNKNOWN
 *   capture     memory is had while a stream is captured, and given back after it
 *   capture_global  the same in that mode, for capture:keep
 *   fork        a child leaves it alone
 *   faults NAME ERROR LIBRARY  each call of NAME that LIBRARY makes fails once
 *   resets      contexts end, again and again: nothing stays in the device
 *   suspended   another thread frees while a release that ends nothing is under way
 *   info        memory that is idle is free
 *   own         the program maps memory of its own beside
 *   signs LIBRARY  what a program loads or asks: see below
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"
#include "simcuda/simcuda.h"

#define MIB ((size_t)1 << 20)

static bool ranged;
static CUcontext context;

static void start(void)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

/* Only mapped memory answers. */
static bool is_mapped(CUdeviceptr memory)
{
    unsigned long long flags;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    return cuMemGetAccess(&flags, &here, memory) == CUDA_SUCCESS;
}

/* The ends and the middle of a block stand for all of it. */
enum { PIECE = 4096 };

static void fill(CUdeviceptr memory, size_t bytes, unsigned char value)
{
    for (int i = 0; i < 3; i++)
        OK(cuMemsetD8(memory + (bytes - PIECE) / 2 * (unsigned)i, value, PIECE));
}

static void holds(CUdeviceptr memory, size_t bytes, unsigned char value)
{
    unsigned char copy[PIECE];
    for (int i = 0; i < 3; i++) {
        OK(cuMemcpyDtoH(copy, memory + (bytes - PIECE) / 2 * (unsigned)i, PIECE));
        CHECK(copy[0] == value && memcmp(copy, copy + 1, PIECE - 1) == 0);
    }
}

static CUdeviceptr get(size_t bytes)
{
    CUdeviceptr memory;
    OK(cuMemAlloc(&memory, bytes));
    fill(memory, bytes, 1);
    OK(cuCtxSynchronize()); /* other devices may be at it next */
    return memory;
}

/* Segments grow from 64 MiB on. */
static CUdeviceptr get_mapped(size_t bytes)
{
    CUdeviceptr memory = get(bytes);
    CHECK(is_mapped(memory) == ranged);
    return memory;
}

static void is_plain(CUdeviceptr memory)
{
    CUipcMemHandle handle;
    CHECK(!is_mapped(memory));
    OK(cuIpcGetMemHandle(&handle, memory));
}

/* --- handles -----------------------------------------------------------------------------------
 */

static void ipc(void)
{
    CUipcMemHandle handle;
    CUdeviceptr first = get_mapped(80 * MIB), second = get_mapped(8 * MIB), more[3];
    const CUdeviceptr asked[] = {first, first + MIB, second};
    for (size_t i = 0; ranged && i < 3; i++)
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, asked[i]));
    is_plain(more[0] = get(2 * MIB));
    is_plain(more[1] = get(100 * MIB)); /* that it would grow for */
    OK(cuMemFree(second));
    OK(cuCtxSynchronize());
    is_plain(more[2] = get(8 * MIB)); /* just what is free */
    holds(first, 80 * MIB, 1);
    for (int i = 0; i < 3; i++)
        OK(cuMemFree(more[i]));
    OK(cuMemFree(first));
}

/* NCCL takes the handle of a pointer where it has one, for memory that its program has mapped. */
static void handle(void)
{
    CUmemGenericAllocationHandle of_memory;
    CUdeviceptr memory = get_mapped(80 * MIB);
    ANSWERS(CUDA_ERROR_INVALID_VALUE,
            cuMemRetainAllocationHandle(&of_memory, (void *)(uintptr_t)memory));
    OK(cuMemFree(memory));
}

/* --- peers -------------------------------------------------------------------------------------
 */

static CUcontext other_context;
static CUstream other;

static void start_other(void)
{
    int count;
    OK(cuDeviceGetCount(&count));
    if (count < 2) {
        puts("needs two devices");
        exit(77);
    }
    OK(cuDevicePrimaryCtxRetain(&other_context, 1));
    OK(cuCtxSetCurrent(other_context));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuCtxSetCurrent(context));
}

static CUresult let_in(void)
{
    OK(cuCtxSetCurrent(other_context));
    CUresult code = cuCtxEnablePeerAccess(context, 0);
    OK(cuCtxSetCurrent(context));
    return code;
}

static void written_by_other(CUdeviceptr memory, size_t bytes)
{
    OK(cuCtxSetCurrent(other_context));
    OK(cuMemsetD8Async(memory, 7, bytes, other));
    OK(cuStreamSynchronize(other));
    OK(cuCtxSetCurrent(context));
    holds(memory, bytes, 7);
}

static uint64_t mapped_bytes(void)
{
    simcuda_vmm_t vmm = {0};
    if (simcuda_vmm)
        simcuda_vmm(&vmm);
    return vmm.mapped_bytes;
}

/* Over the pages of some that were freed: they are mapped a second time. */
static CUdeviceptr get_view(void)
{
    CUdeviceptr pieces[6], view;
    for (int i = 0; i < 6; i++)
        pieces[i] = get_mapped(8 * MIB);
    for (int i = 0; i < 6; i += 2)
        OK(cuMemFree(pieces[i]));
    OK(cuCtxSynchronize());
    view = get_mapped(24 * MIB);
    simcuda_vmm_t vmm = {0};
    if (simcuda_vmm)
        simcuda_vmm(&vmm);
    CHECK(vmm.mapped_bytes > vmm.bytes || !simcuda_vmm || !ranged);
    for (int i = 1; i < 6; i += 2)
        OK(cuMemFree(pieces[i]));
    return view;
}

static void peer(void)
{
    start_other();
    CUdeviceptr before = get_mapped(64 * MIB), above = get_mapped(4 * MIB), after;
    CUdeviceptr view = get_view(), later;
    OK(let_in());
    written_by_other(view, 24 * MIB);
    written_by_other(later = get_view(), 24 * MIB);
    OK(cuMemFree(view));
    OK(cuMemFree(later));
    written_by_other(before, 64 * MIB);
    written_by_other(above, 4 * MIB);
    written_by_other(after = get(20 * MIB), 20 * MIB);
    CHECK(is_mapped(after) == ranged);
    ANSWERS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, let_in());
    OK(cuMemFree(before));
    OK(cuMemFree(above));
    OK(cuMemFree(after));
}

static void refused(void)
{
    start_other();
    CUdeviceptr memory = get_mapped(64 * MIB);
    CHECK(!simcuda_fail || simcuda_fail("cuMemSetAccess", NULL, 1, CUDA_ERROR_OUT_OF_MEMORY) == 0);
    ANSWERS(ranged ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, let_in());
    if (ranged)
        OK(let_in());
    written_by_other(memory, 64 * MIB);
    OK(cuMemFree(memory));
}

/* --- what pointers are -------------------------------------------------------------------------
 */

static void is_of(CUdeviceptr at, CUdeviceptr memory, size_t bytes)
{
    CUdeviceptr base = 0, start_of = 0;
    size_t size = 0, size_of = 0;
    CUcontext context_of = NULL;
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_CONTEXT};
    void *values[] = {&start_of, &size_of, &context_of};
    OK(cuMemGetAddressRange(&base, &size, at));
    CHECK(base == memory && size == bytes);
    OK(cuMemGetAddressRange(NULL, &size, at));
    OK(cuMemGetAddressRange(&base, NULL, at));
    CHECK(base == memory && size == bytes);
    for (int i = 0; i < 3; i++)
        OK(cuPointerGetAttribute(values[i], what[i], at));
    CHECK(start_of == memory && size_of == bytes && context_of == context);
    start_of = size_of = 0;
    context_of = NULL;
    OK(cuPointerGetAttributes(3, what, values, at));
    CHECK(start_of == memory && size_of == bytes && context_of == context);
}

static void addresses(void)
{
    const size_t sizes[] = {80 * MIB, 3 * MIB + 5000, 12345, 40 * MIB};
    CUdeviceptr memory[4], base;
    for (int i = 0; i < 4; i++)
        memory[i] = get(sizes[i]);
    CHECK(is_mapped(memory[0]) == ranged);
    for (int i = 0; i < 4; i++) {
        if (!is_mapped(memory[i])) /* of plain memory it is the segment's */
            continue;
        is_of(memory[i], memory[i], sizes[i]);
        is_of(memory[i] + sizes[i] / 2, memory[i], sizes[i]);
        is_of(memory[i] + sizes[i] - 1, memory[i], sizes[i]);
    }
    OK(cuMemFree(memory[0]));
    if (ranged)
        ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, NULL, memory[0]));
    for (int i = 1; i < 4; i++)
        OK(cuMemFree(memory[i]));
}

static void sync_memops(void)
{
    const unsigned on = 1, off = 0;
    CUdeviceptr memory = get_mapped(80 * MIB), more;
    OK(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    CUresult code = cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory + 4096);
    CHECK((code != CUDA_SUCCESS) == ranged);
    more = get(100 * MIB);
    CHECK(!is_mapped(more));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, more));
    OK(cuMemFree(memory));
    OK(cuMemFree(more));
}

/* --- devices on the bus ------------------------------------------------------------------------
 */

static void give_back(void)
{
    OK(cuCtxSynchronize());
    if (cachealloc_trim)
        cachealloc_trim();
}

static void dmabuf(void)
{
    int file = -1;
    CUdeviceptr reached = get_mapped(80 * MIB), above = get_mapped(64 * MIB), again;
    CUresult code = cuMemGetHandleForAddressRange(&file, reached, 80 * MIB,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (code == CUDA_ERROR_NOT_SUPPORTED) {
        puts("no dma-buf here");
        exit(77);
    }
    OK(code);
    OK(cuMemFree(reached));
    OK(cuMemFree(above));
    give_back();
    if (ranged) {
        CHECK(is_mapped(reached) && is_mapped(reached + 80 * MIB - 1));
        CHECK(!is_mapped(above + 62 * MIB));
        CHECK(!simcuda_vmm || (mapped_bytes() >= 80 * MIB && mapped_bytes() < 144 * MIB));
    }
    OK(cuMemAlloc(&again, 80 * MIB));
    CHECK(!ranged || again == reached);
    OK(cuMemFree(again));
    OK(close(file));
}

static void dmabuf_refused(void)
{
    int file = -1;
    CUdeviceptr reached = get_mapped(80 * MIB);
    ANSWERS(CUDA_ERROR_UNKNOWN,
            cuMemGetHandleForAddressRange(&file, reached, 80 * MIB,
                                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    OK(cuMemFree(reached));
    give_back();
    CHECK(!is_mapped(reached));
}

/* --- captures ----------------------------------------------------------------------------------
 */

static void in_capture(CUstreamCaptureMode mode)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr first = get_mapped(80 * MIB), idle = get_mapped(64 * MIB), more = 0;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemFree(idle));
    OK(cuCtxSynchronize());
    const uint64_t mapped = mapped_bytes();
    OK(cuStreamBeginCapture(stream, mode));
    OK(cuMemsetD8Async(first, 3, 80 * MIB, stream));
    OK(cuMemAlloc(&more, 120 * MIB));
    if (cachealloc_trim)
        cachealloc_trim();
    CHECK(mapped_bytes() >= mapped);
    OK(cuStreamEndCapture(stream, &graph));
    fill(more, 120 * MIB, 4);
    holds(more, 120 * MIB, 4);
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(more));
    OK(cuMemFree(first));
    give_back();
    CHECK(mapped_bytes() == 0);
    OK(cuStreamDestroy(stream));
}

static void capture(void)
{
    in_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
}

static void capture_global(void)
{
    in_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* --- contexts ----------------------------------------------------------------------------------
 */

static void nothing_left(void)
{
    simcuda_vmm_t vmm = {0};
    if (!simcuda_vmm)
        return;
    simcuda_vmm(&vmm);
    CHECK(vmm.handles == 0 && vmm.mappings == 0 && vmm.reservations == 0);
}

/* Some of it is live, some pending, at the end of each context. */
static void use(void)
{
    CUdeviceptr memory[4];
    for (int i = 0; i < 4; i++)
        memory[i] = get(80 * MIB);
    CHECK(is_mapped(memory[3]) == ranged);
    OK(cuMemFree(memory[1]));
}

static void resets(uint64_t rounds)
{
    CUcontext made;
    for (uint64_t i = 0; i < rounds; i++) {
        use();
        OK(cuDevicePrimaryCtxReset(0));
        nothing_left();
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
    }
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&made, NULL, 0, 0));
#else
    OK(cuCtxCreate(&made, 0, 0));
#endif
    use();
    OK(cuCtxDestroy(made));
    nothing_left();
}

static _Atomic bool released;

static void *releases(void *unused)
{
    for (int i = 0; i < 60; i++) {
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuDevicePrimaryCtxRelease(0));
    }
    released = true;
    return unused;
}

static void suspended(void)
{
    pthread_t thread;
    enum { COUNT = 40 };
    CUdeviceptr first = get_mapped(80 * MIB), memory[COUNT];
    for (int i = 0; i < COUNT; i++)
        memory[i] = get(2 * MIB);
    CHECK(pthread_create(&thread, NULL, releases, NULL) == 0);
    for (int i = 0; !released; i = (i + 1) % COUNT) { /* the oldest */
        OK(cuMemFree(memory[i]));
        OK(cuMemAlloc(&memory[i], 2 * MIB));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < COUNT; i++)
        OK(cuMemFree(memory[i]));
    OK(cuMemFree(first));
}

/* The child has no CUDA; what it does is nothing to the parent's memory. */
static void fork_child(void)
{
    CUdeviceptr memory = get_mapped(80 * MIB), more;
    CUipcMemHandle handle_of;
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&more, 80 * MIB));
        ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemFree(memory));
        ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuIpcGetMemHandle(&handle_of, memory));
        ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuCtxEnablePeerAccess(context, 0));
        ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemGetAddressRange(&more, NULL, memory));
        exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    holds(memory, 80 * MIB, 1);
    more = get(120 * MIB);
    CHECK(is_mapped(more) == ranged);
    OK(cuMemFree(more));
    OK(cuMemFree(memory));
}

/* --- calls that fail ---------------------------------------------------------------------------
 */

/* Grows, fills holes, gives back; the ends are as they were written, or there was no memory. */
static void grow_and_shrink(void)
{
    const size_t sizes[] = {70 * MIB, 6 * MIB, 10 * MIB, 4 * MIB, 20 * MIB, 9 * MIB};
    enum { COUNT = 6 };
    CUdeviceptr memory[COUNT] = {0};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++) {
            if (memory[i])
                continue;
            CUresult code = cuMemAlloc(&memory[i], sizes[i]);
            CHECK(code == CUDA_SUCCESS || code == CUDA_ERROR_OUT_OF_MEMORY);
            if (code == CUDA_SUCCESS)
                fill(memory[i], sizes[i], (unsigned char)i);
            else
                memory[i] = 0;
        }
        for (int i = 0; i < COUNT; i++) {
            if (memory[i])
                holds(memory[i], sizes[i], (unsigned char)i);
            if (memory[i] && (i + round) % 2) {
                OK(cuMemFree(memory[i]));
                memory[i] = 0;
            }
        }
        give_back();
    }
    for (int i = 0; i < COUNT; i++)
        if (memory[i])
            OK(cuMemFree(memory[i]));
    give_back();
}

static void anew(void)
{
    OK(cuDevicePrimaryCtxReset(0));
    nothing_left();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

/* Each call of a function that the shim makes fails once, in a context of its own. */
static void faults(const char *name, int error, const char *from)
{
    if (!simcuda_fail) {
        puts("needs the simulator");
        exit(77);
    }
    grow_and_shrink(); /* what the device can do is found out once */
    anew();
    CHECK(simcuda_fail(name, from, 0, 0) == 0);
    grow_and_shrink();
    anew();
    const uint64_t made = simcuda_calls(name);
    for (uint64_t i = 1; i <= made; i++) {
        CHECK(simcuda_fail(name, from, i, error) == 0);
        grow_and_shrink();
        anew();
    }
    printf("%llu\n", (unsigned long long)made);
}

/* --- beside ------------------------------------------------------------------------------------
 */

static void info(void)
{
    size_t before, after, total;
    CUdeviceptr memory = get_mapped(100 * MIB);
    OK(cuMemGetInfo(&before, &total));
    OK(cuMemFree(memory));
    OK(cuCtxSynchronize());
    OK(cuMemGetInfo(&after, &total));
    CHECK(after - before >= 100 * MIB);
}

static void own(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle_of, again;
    CUdeviceptr at, base, memory = get_mapped(80 * MIB);
    size_t size;
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle_of, 2 * MIB, &prop, 0));
    OK(cuMemMap(at, 2 * MIB, 0, handle_of, 0));
    OK(cuMemSetAccess(at, 2 * MIB, &access, 1));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    CHECK(again == handle_of);
    OK(cuMemRelease(again));
    OK(cuMemGetAddressRange(&base, &size, at + 4096));
    CHECK(base == at && size == 2 * MIB);
    fill(at, 2 * MIB, 9);
    holds(at, 2 * MIB, 9);
    OK(cuMemUnmap(at, 2 * MIB));
    OK(cuMemRelease(handle_of));
    OK(cuMemAddressFree(at, 4 * MIB));
    holds(memory, 80 * MIB, 1);
    OK(cuMemFree(memory));
}

/* --- what speaks for handles or peers ----------------------------------------------------------
 */

/* Before the first context, "none", "before:LIBRARY"; behind the first growth, "open:LIBRARY",
 * "handle", "asked" or "peer". Says whether the memory from before, and from after, is mapped. */
static void signs(const char *what)
{
    CUipcMemHandle handle_of;
    unsigned capable;
    if (strncmp(what, "before:", 7) == 0)
        CHECK(dlopen(what + 7, RTLD_NOW));
    start();
    CUdeviceptr before = get(80 * MIB);
    if (strncmp(what, "open:", 5) == 0)
        CHECK(dlopen(what + 5, RTLD_NOW));
    else if (strcmp(what, "handle") == 0)
        (void)cuIpcGetMemHandle(&handle_of, before);
    else if (strcmp(what, "asked") == 0)
        OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 before));
    else if (strcmp(what, "peer") == 0) {
        start_other();
        OK(let_in());
        written_by_other(before, 80 * MIB);
        fill(before, 80 * MIB, 1);
    }
    CUdeviceptr after = get(100 * MIB);
    printf("%s %s\n", is_mapped(before) ? "mapped" : "plain",
           is_mapped(after) ? "mapped" : "plain");
    holds(before, 80 * MIB, 1);
    OK(cuMemFree(after));
    OK(cuMemFree(before));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"ipc", ipc},
        {"handle", handle},
        {"peer", peer},
        {"refused", refused},
        {"addresses", addresses},
        {"sync", sync_memops},
        {"dmabuf", dmabuf},
        {"dmabuf_refused", dmabuf_refused},
        {"capture", capture},
        {"capture_global", capture_global},
        {"fork", fork_child},
        {"suspended", suspended},
        {"info", info},
        {"own", own},
    };
    CHECK(argc > 1);
    ranged = argc > 2 && strcmp(argv[2], "ranged") == 0;
    if (strcmp(argv[1], "signs") == 0) {
        CHECK(argc > 2);
        signs(argv[2]);
        return 0;
    }
    start();
    if (strcmp(argv[1], "faults") == 0) {
        CHECK(argc > 4);
        faults(argv[2], atoi(argv[3]), argv[4]);
        return 0;
    }
    if (strcmp(argv[1], "resets") == 0) {
        resets(number_argument(argc, argv, ranged ? 3 : 2, 3));
        return 0;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("no case %s", argv[1]);
}
