/* Everything that takes device memory and is not plain: arrays, physical memory, registered host
 * memory, code, graphs. On the driver, because half of it has no other face.
 *
 * drv_tracked leak | free     one of each kind, kept or freed; says what the frees answered
 * drv_tracked reset           one of each kind, and then the context goes
 * drv_tracked releases N      memory with three references, of which N are let go
 * drv_tracked mapped WHAT     memory of 4 MiB is mapped in two places and its handle released; then
 *                             `kept`; `unmapped` from one or from `both`; `again`, a handle from
 *                             a mapping, released too; `held`, it is not released, but unmapped;
 *                             `many`, 100 of 2 MiB in a row, unmapped at once, but for the last
 * drv_tracked call NAME HOW   what NAME answers when the device's memory is `cached` (freed) or
 *                             `live`, or `pinned` memory is cached
 * drv_tracked elsewhere WHAT  memory is cached in one context; WHAT is for another (ask_elsewhere)
 * drv_tracked capture MODE    a module is loaded while this thread captures, with memory cached
 * drv_tracked graph           memory of a graph's nodes */
#include <cuda.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define MIB ((size_t)1 << 20)

/* Declared by the headers under other macros. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *made, CUgraph graph, CUgraphNode *node,
                                       char *log, size_t bytes);
CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *made, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream);
CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);

static const CUDA_ARRAY_DESCRIPTOR flat = {1000, 50, CU_AD_FORMAT_FLOAT, 2};
static const CUDA_ARRAY3D_DESCRIPTOR layered = {.Width = 64,
                                                .Height = 32,
                                                .Depth = 5,
                                                .Format = CU_AD_FORMAT_HALF,
                                                .NumChannels = 4,
                                                .Flags = CUDA_ARRAY3D_LAYERED};
static const CUDA_ARRAY3D_DESCRIPTOR pyramid = {
    .Width = 64, .Height = 16, .Depth = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};

static CUmemGenericAllocationHandle create_physical(size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemCreate(&handle, bytes, &what, 0));
    return handle;
}

static void use_device(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

/* --- tracked ---------------------------------------------------------------------------------- */
static CUarray array, array3d;
static CUmipmappedArray mipmap;
static CUmemGenericAllocationHandle physical;
static char registered[12345];

static void make_one_of_each(void)
{
    OK(cuArrayCreate(&array, &flat));
    OK(cuArray3DCreate(&array3d, &layered));
    OK(cuMipmappedArrayCreate(&mipmap, &pyramid, 4));
    physical = create_physical(4 * MIB);
    OK(cuMemHostRegister(registered, sizeof(registered), 0));
}

/* Frees that fail leave their memory behind. */
static void free_one_of_each(void)
{
    CUarray level;
    OK(cuMipmappedArrayGetLevel(&level, mipmap, 1));
    CHECK(cuArrayDestroy(level) != CUDA_SUCCESS); /* it is the mipmap's */
    printf("%d", cuArrayDestroy(array));
    printf(" %d", cuArrayDestroy(array3d));
    printf(" %d", cuMipmappedArrayDestroy(mipmap));
    printf(" %d", cuMemRelease(physical));
    printf(" %d\n", cuMemHostUnregister(registered));
}

static void releases(uint64_t count)
{
    CUmemGenericAllocationHandle handle = create_physical(4 * MIB), retained = 0, imported = 0;
    CUdeviceptr at;
    int fd;
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 4 * MIB, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)at));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(retained == handle);
    close(fd);
    OK(cuMemUnmap(at, 4 * MIB));
    OK(cuMemAddressFree(at, 4 * MIB));
    CUmemGenericAllocationHandle held[] = {handle, retained, imported};
    for (uint64_t i = 0; i < count && i < 3; i++) {
        int code = cuMemRelease(held[i]);
        if (code != CUDA_SUCCESS) /* once more: the reference must still be there */
            OK(cuMemRelease(held[i]));
    }
}

/* A call that fails is made once more: nothing has changed. */
static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes)
{
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    if (cuMemMap(at, bytes, 0, handle, 0) != CUDA_SUCCESS)
        OK(cuMemMap(at, bytes, 0, handle, 0));
    return at;
}

static void unmap(CUdeviceptr at, size_t bytes)
{
    if (cuMemUnmap(at, bytes) != CUDA_SUCCESS)
        OK(cuMemUnmap(at, bytes));
}

static void release(CUmemGenericAllocationHandle handle)
{
    if (cuMemRelease(handle) != CUDA_SUCCESS)
        OK(cuMemRelease(handle));
}

static void map_many(void)
{
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, 200 * MIB, 0, 0, 0));
    for (int i = 99; i >= 0; i--) {
        CUmemGenericAllocationHandle handle = create_physical(2 * MIB);
        OK(cuMemMap(at + (size_t)i * 2 * MIB, 2 * MIB, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    OK(cuMemUnmap(at, 198 * MIB));
}

static void mapped(const char *what)
{
    CUmemGenericAllocationHandle handle, again = 0;
    if (strcmp(what, "many") == 0) {
        map_many();
        return;
    }
    handle = create_physical(4 * MIB);
    CUdeviceptr one = map(handle, 4 * MIB), other = map(handle, 4 * MIB);
    if (strcmp(what, "held") != 0)
        release(handle);
    if (strcmp(what, "again") == 0)
        OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(one + MIB)));
    if (strcmp(what, "kept") != 0)
        unmap(one, 4 * MIB);
    if (strcmp(what, "both") == 0 || strcmp(what, "held") == 0 || strcmp(what, "again") == 0)
        unmap(other, 4 * MIB);
    if (strcmp(what, "again") == 0)
        release(again);
}

/* --- out of memory ---------------------------------------------------------------------------- */
static CUresult load_eagerly(void)
{
    CUlibrary library;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    return cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult load_file_eagerly(void)
{
    CUlibrary library;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    return cuLibraryLoadFromFile(&library, "/proc/self/exe", NULL, NULL, 0, NULL, NULL, 0);
}

static CUlibrary lazy_library(CUkernel *kernel)
{
    CUlibrary library;
    OK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(kernel, library, "kernel"));
    return library;
}

/* With one allocation of 32 MiB, which may have no memory before the graph is launched, or
 * uploaded.
 */
static CUgraph graph_with_memory(void)
{
    CUstream stream;
    CUdeviceptr node;
    CUgraph graph;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&node, 32 * MIB, stream));
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static CUdeviceptr page;

/* From pageable memory or to it, which is staged. */
static CUresult copy(const char *name)
{
    static char bytes[4096];
    CUdeviceptr host = (CUdeviceptr)(uintptr_t)bytes;
    if (strcmp(name, "cuMemcpy") == 0)
        return cuMemcpy(page, host, sizeof bytes);
    if (strcmp(name, "cuMemcpy_ptds") == 0)
        return cuMemcpy_ptds(page, host, sizeof bytes);
    if (strcmp(name, "cuMemcpyHtoD_v2") == 0)
        return cuMemcpyHtoD(page, bytes, sizeof bytes);
    if (strcmp(name, "cuMemcpyHtoD_v2_ptds") == 0)
        return cuMemcpyHtoD_v2_ptds(page, bytes, sizeof bytes);
    if (strcmp(name, "cuMemcpyDtoH_v2") == 0)
        return cuMemcpyDtoH(bytes, page, sizeof bytes);
    return cuMemcpyDtoH_v2_ptds(bytes, page, sizeof bytes);
}

/* Needs 32 MiB: arrays, handles and graphs by their size, code because SIMCUDA says so. */
static CUresult call(const char *name)
{
    const CUDA_ARRAY_DESCRIPTOR large = {1024, 8192, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, 8, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    CUmemGenericAllocationHandle handle;
    CUmodule module = NULL;
    CUkernel kernel;
    CUfunction function;
    CUdeviceptr address;
    CUgraph graph;
    CUgraphExec made;
#define NAMED(function) (strcmp(name, #function) == 0)
    if (NAMED(cuArrayCreate_v2))
        return cuArrayCreate(&array, &large);
    if (NAMED(cuArray3DCreate_v2))
        return cuArray3DCreate(&array, &deep);
    if (NAMED(cuMipmappedArrayCreate))
        return cuMipmappedArrayCreate(&mipmap, &deep, 2);
    if (NAMED(cuMemCreate))
        return cuMemCreate(&handle, 32 * MIB, &what, 0);
    if (NAMED(cuMemAllocManaged))
        return cuMemAllocManaged(&address, 32 * MIB, CU_MEM_ATTACH_GLOBAL);
    if (NAMED(cuMemHostRegister_v2))
        return cuMemHostRegister(registered, sizeof(registered), 0);
    if (NAMED(cuModuleLoad))
        return cuModuleLoad(&module, "/proc/self/exe");
    if (NAMED(cuModuleLoadData))
        return cuModuleLoadData(&module, "image");
    if (NAMED(cuModuleLoadDataEx))
        return cuModuleLoadDataEx(&module, "image", 0, NULL, NULL);
    if (NAMED(cuModuleLoadFatBinary))
        return cuModuleLoadFatBinary(&module, "image");
    if (NAMED(cuLibraryLoadData))
        return load_eagerly();
    if (NAMED(cuLibraryLoadFromFile))
        return load_file_eagerly();
    if (NAMED(cuLibraryGetModule))
        return cuLibraryGetModule(&module, lazy_library(&kernel));
    if (NAMED(cuLibraryGetGlobal))
        return cuLibraryGetGlobal(&address, NULL, lazy_library(&kernel), "variable");
    CUstream stream;
    CUevent event;
    CUmemoryPool pool;
    const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (NAMED(cuStreamCreate))
        return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (NAMED(cuStreamCreateWithPriority))
        return cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
    if (NAMED(cuEventCreate))
        return cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (NAMED(cuMemPoolCreate))
        return cuMemPoolCreate(&pool, &properties);
    if (strncmp(name, "cuMemcpy", 8) == 0)
        return copy(name);
    lazy_library(&kernel);
    if (NAMED(cuKernelGetFunction))
        return cuKernelGetFunction(&function, kernel);
    if (NAMED(cuKernelSetAttribute))
        return cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024, kernel,
                                    0);
    if (NAMED(cuKernelSetCacheConfig))
        return cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 0);
    if (NAMED(cuCtxSetLimit))
        return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096);
    if (NAMED(cuFuncLoad))
        return cuFuncLoad((CUfunction)kernel);
    if (NAMED(cuModuleGetFunction) || NAMED(cuModuleGetGlobal_v2))
        OK(cuModuleLoadData(&module, "image"));
    if (NAMED(cuModuleGetFunction))
        return cuModuleGetFunction(&function, module, "kernel");
    if (NAMED(cuModuleGetGlobal_v2))
        return cuModuleGetGlobal(&address, NULL, module, "variable");
    graph = graph_with_memory();
    if (NAMED(cuGraphInstantiate_v2))
        return cuGraphInstantiate_v2(&made, graph, NULL, NULL, 0);
    if (NAMED(cuGraphInstantiateWithFlags))
        return cuGraphInstantiateWithFlags(&made, graph, 0);
    if (NAMED(cuGraphInstantiateWithParams))
        return cuGraphInstantiateWithParams(&made, graph, &params);
    if (NAMED(cuGraphInstantiateWithParams_ptsz))
        return cuGraphInstantiateWithParams_ptsz(&made, graph, &params);
    OK(cuGraphInstantiate(&made, graph, 0));
    if (NAMED(cuGraphUpload))
        return cuGraphUpload(made, CU_STREAM_PER_THREAD);
    if (NAMED(cuGraphUpload_ptsz))
        return cuGraphUpload_ptsz(made, NULL);
    if (NAMED(cuGraphLaunch))
        return cuGraphLaunch(made, CU_STREAM_PER_THREAD);
    if (NAMED(cuGraphLaunch_ptsz))
        return cuGraphLaunch_ptsz(made, NULL);
    FAIL("no such call: %s", name);
}

static void fill_device(const char *how)
{
    CUdeviceptr memory;
    void *pinned;
    OK(cuMemAlloc(&page, 4096)); /* now: it would lie in the memory that is to be idle */
    if (strcmp(how, "pinned") == 0) {
        OK(cuMemAllocHost(&pinned, 48 * MIB));
        OK(cuMemFreeHost(pinned));
        return;
    }
    OK(cuMemAlloc(&memory, 48 * MIB));
    if (strcmp(how, "cached") == 0)
        OK(cuMemFree(memory));
}

/* A `module` in a second context of the device; `physical` memory of it, or a `library` that it has
 * no room for, while the second device's context is current. */
static void ask_elsewhere(const char *what)
{
    CUcontext context;
    fill_device("cached");
    if (strcmp(what, "module") == 0)
        OK(cuCtxCreate_v2(&context, 0, 0));
    else
        OK(cuDevicePrimaryCtxRetain(&context, 1));
    OK(cuCtxSetCurrent(context));
    if (strcmp(what, "library") == 0) /* its shortage is injected */
        OK(load_eagerly());
    else
        OK(call(strcmp(what, "module") == 0 ? "cuModuleLoadData" : "cuMemCreate"));
}

/* --- captures and graphs ---------------------------------------------------------------------- */
static CUstreamCaptureMode mode_of(const char *name)
{
    if (strcmp(name, "global") == 0)
        return CU_STREAM_CAPTURE_MODE_GLOBAL;
    return strcmp(name, "thread") == 0 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                       : CU_STREAM_CAPTURE_MODE_RELAXED;
}

/* Says what the load answered, whether the capture lives on, and the thread's mode afterwards. */
static void load_in_capture(CUstreamCaptureMode mode)
{
    CUstream stream;
    CUmodule module;
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill_device("cached");
    OK(cuStreamBeginCapture(stream, mode));
    int code = cuModuleLoadData(&module, "image");
    OK(cuStreamIsCapturing(stream, &status));
    int ended = cuStreamEndCapture(stream, &graph);
    if (cuThreadExchangeStreamCaptureMode(&now) == CUDA_SUCCESS)
        CHECK(now == CU_STREAM_CAPTURE_MODE_GLOBAL);
    printf("%d %s %d\n", code, status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "active" : "spoiled",
           ended);
    if (graph)
        OK(cuGraphDestroy(graph));
}

static uint64_t live_bytes(void)
{
    cachealloc_stats_t stats;
    return shim_stats(&stats) ? stats.live_bytes : 0;
}

static CUdeviceptr capture_allocation(CUstream stream, int freed)
{
    CUdeviceptr node;
    CUgraph graph;
    CUgraphExec launched;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&node, MIB, stream));
    CHECK(live_bytes() == 0);
    if (freed)
        OK(cuMemFreeAsync(node, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&launched, graph, 0));
    OK(cuGraphLaunch(launched, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(live_bytes() == 0);
    OK(cuGraphExecDestroy(launched));
    OK(cuGraphDestroy(graph));
    return node;
}

static void graph_memory(void)
{
    CUstream stream;
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED},
                                         .bytesize = MIB};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemFree(capture_allocation(stream, 0)));
    OK(cuMemFreeAsync(capture_allocation(stream, 0), stream));
    OK(cuStreamSynchronize(stream));
    capture_allocation(stream, 1);
    OK(cuGraphCreate(&graph, 0));
    printf("%d\n", cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    OK(cuGraphDestroy(graph));
    CHECK(live_bytes() == 0);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "free";
    use_device();
    if (strcmp(mode, "call") == 0 && argc > 3) {
        fill_device(argv[3]);
        printf("%d\n", call(argv[2]));
    } else if (strcmp(mode, "elsewhere") == 0 && argc > 2) {
        ask_elsewhere(argv[2]);
    } else if (strcmp(mode, "capture") == 0 && argc > 2) {
        load_in_capture(mode_of(argv[2]));
    } else if (strcmp(mode, "graph") == 0) {
        graph_memory();
    } else if (strcmp(mode, "mapped") == 0 && argc > 2) {
        mapped(argv[2]);
    } else if (strcmp(mode, "releases") == 0) {
        releases(number_argument(argc, argv, 2, 3));
    } else {
        make_one_of_each();
        if (strcmp(mode, "free") == 0)
            free_one_of_each();
        if (strcmp(mode, "reset") == 0)
            OK(cuDevicePrimaryCtxReset(0));
    }
    return 0;
}
