/*
 * What addresses look like: alignment, distance, granularity, ranges and buffer ids; and which
 * driver entry points cuGetProcAddress hands out against those that dlsym finds.
 */
#include "facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* --- machine ------------------------------------------------------------------------------------
 */

static void machine_device(int i)
{
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total = 0;
    int pools = 0, dmabuf = 0;

    if (cudaGetDeviceProperties(&prop, i) != cudaSuccess)
        return;
    cudaSetDevice(i);
    cudaMemGetInfo(&free_bytes, &total);
    cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, i);
    cuDeviceGetAttribute(&dmabuf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, i);
    row_begin();
    row_int("device", i);
    row_str("name", prop.name);
    row_int("major", prop.major);
    row_int("minor", prop.minor);
    row_int("multiprocessors", prop.multiProcessorCount);
    row_int("total_bytes", (long long)total);
    row_int("free_bytes", (long long)free_bytes);
    row_int("async engines", prop.asyncEngineCount);
    row_bool("memory pools", pools);
    row_bool("dma-buf", dmabuf);
    row_end();
}

static void machine_peers(int devices)
{
    for (int i = 0; i < devices; i++)
        for (int k = 0; k < devices; k++) {
            int can = 0;
            if (i == k || cudaDeviceCanAccessPeer(&can, i, k) != cudaSuccess)
                continue;
            row_begin();
            row_int("device", i);
            row_int("peer", k);
            row_bool("can access", can);
            row_end();
        }
}

void fact_platform(const char *arg)
{
    int driver = 0, runtime = 0, devices = 0;

    (void)arg;
    cuDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaGetDeviceCount(&devices);
    row_begin();
    row_int("driver", driver);
    row_int("runtime", runtime);
    row_int("headers", CUDA_VERSION);
    row_int("devices", devices);
    row_bool("cuCtxRecordEvent", ctx_record() != NULL);
    row_bool("cuCtxGetId", ctx_id() != NULL);
    row_bool("cuStreamGetId", stream_id() != NULL);
    row_end();
    for (int i = 0; i < devices; i++)
        machine_device(i);
    machine_peers(devices);
}

/* --- entry points --------------------------------------------------------------------------------
 */

static const char *const entry_names[] = {
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemAllocHost",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAllocManaged",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuArrayDestroy",
    "cuMemCreate",
    "cuMemRelease",
    "cuMipmappedArrayCreate",
    "cuMemAllocFromPoolAsync",
    "cuMemGetInfo",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxGetCurrent",
    "cuCtxRecordEvent",
    "cuCtxGetId",
    "cuStreamGetId",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
    "cuEventRecord",
    "cuEventQuery",
    "cuPointerSetAttribute",
    "cuIpcGetMemHandle",
    "cuMemHostRegister",
    "cuGetProcAddress",
    "cuThreadExchangeStreamCaptureMode",
};

static const char *const suffixes[] = {"",      "_v2",      "_v3",      "_v4",     "_ptsz",
                                       "_ptds", "_v2_ptsz", "_v2_ptds", "_v3_ptsz"};

static const char *symbol_at(const char *base, const void *address, char *buffer, size_t bytes)
{
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        snprintf(buffer, bytes, "%s%s", base, suffixes[i]);
        if (driver_symbol(buffer) == address)
            return buffer;
    }
    return "no exported symbol";
}

static void entry_row(const char *base, int version, cuuint64_t flags, CUresult r, void *found)
{
    static const char *const flag_names[] = {"default", "legacy stream", "per-thread stream"};
    Dl_info info = {0};
    char buffer[80];
    bool answered = r == CUDA_SUCCESS && found;
    const char *symbol = answered ? symbol_at(base, found, buffer, sizeof buffer) : "";

    if (answered)
        dladdr(found, &info);
    row_begin();
    row_str("asked for", base);
    row_int("from version", version);
    row_str("flags", flag_names[flags]);
    row_drv("code", r);
    row_bool("same as a symbol of dlsym", symbol == buffer);
    row_str("symbol", symbol);
    row_str("nearest symbol by dladdr", info.dli_sname ? info.dli_sname : "");
    row_end();
}

/* A row for the oldest version asked and for every one that answers otherwise than the one before.
 */
static void entry_rows(get_proc_fn get, const char *base, cuuint64_t flags)
{
    static const int versions[] = {3020, 11040, 12000, 12050, 13000};
    CUresult r, before = CUDA_SUCCESS;
    void *found, *last = NULL;

    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
        found = NULL;
        r = get(base, &found, versions[v], flags, NULL);
        if (v == 0 || r != before || found != last)
            entry_row(base, versions[v], flags, r, found);
        before = r;
        last = found;
    }
}

void fact_entry_points(const char *arg)
{
    get_proc_fn get = (get_proc_fn)driver_symbol("cuGetProcAddress_v2");
    void *self = NULL;

    (void)arg;
    if (!get) {
        row_note("this driver has no cuGetProcAddress_v2");
        return;
    }
    cuInit(0);
    row_begin();
    row_str("asked for", "(the empty name)");
    row_drv("code", get("", &self, 12000, 0, NULL));
    row_str("symbol", self ? "not NULL" : "NULL");
    row_end();
    for (size_t i = 0; i < sizeof entry_names / sizeof *entry_names; i++)
        for (cuuint64_t flags = 0; flags < 3; flags++)
            entry_rows(get, entry_names[i], flags);
}

/* --- layout
 * --------------------------------------------------------------------------------------- */

enum { MANY = 64 };

static size_t free_now(void)
{
    size_t free_bytes = 0, total;

    cuMemGetInfo(&free_bytes, &total);
    return free_bytes;
}

static void layout(const char *kind, size_t bytes, size_t room, cudaError_t (*get)(void **, size_t),
                   cudaError_t (*put)(void *))
{
    void *p[MANY];
    int n = 0, ascending = 0;
    uintptr_t low_bits = 0, nearest = UINTPTR_MAX, farthest = 0;
    size_t before = free_now(), first = 0;

    while (n < MANY && bytes * (size_t)(n + 1) <= room && get(&p[n], bytes) == cudaSuccess) {
        if (n++ == 0)
            first = before - free_now();
    }
    for (int i = 0; i < n; i++) {
        low_bits |= (uintptr_t)p[i];
        if (i == 0)
            continue;
        bool up = p[i] > p[i - 1];
        uintptr_t d =
            up ? (uintptr_t)p[i] - (uintptr_t)p[i - 1] : (uintptr_t)p[i - 1] - (uintptr_t)p[i];
        ascending += up;
        nearest = d < nearest ? d : nearest;
        farthest = d > farthest ? d : farthest;
    }
    size_t taken = before - free_now();
    for (int i = 0; i < n; i++)
        put(p[i]);
    row_begin();
    row_str("kind", kind);
    row_int("bytes", (long long)bytes);
    row_int("allocations", n);
    row_int("common alignment", (long long)(low_bits & -low_bits));
    row_int("device bytes for the first", (long long)first);
    row_int("device bytes each", n ? (long long)(taken / (size_t)n) : 0);
    row_int("nearest distance", n > 1 ? (long long)nearest : 0);
    row_int("farthest distance", (long long)farthest);
    row_int("ascending steps", ascending);
    row_int("device bytes kept after the frees", (long long)(before - free_now()));
    row_end();
}

static cudaError_t get_device(void **p, size_t n)
{
    return cudaMalloc(p, n);
}

static cudaError_t get_pinned(void **p, size_t n)
{
    return cudaMallocHost(p, n);
}

static cudaError_t get_managed(void **p, size_t n)
{
    return cudaMallocManaged(p, n, cudaMemAttachGlobal);
}

static cudaError_t get_pitched(void **p, size_t n)
{
    size_t pitch;

    return cudaMallocPitch(p, &pitch, n / 16 + 1, 16);
}

static size_t pitch_for(size_t width, size_t height)
{
    void *p;
    size_t pitch = 0;

    if (cudaMallocPitch(&p, &pitch, width, height) == cudaSuccess)
        cudaFree(p);
    return pitch;
}

/* A pitch that is its own pitch, whatever the height, is known without asking the driver. */
static void pitch_row(size_t width)
{
    void *p;
    size_t pitch = 0;
    cudaError_t e = cudaMallocPitch(&p, &pitch, width, 4);

    row_begin();
    row_str("kind", "pitch");
    row_int("width", (long long)width);
    row_int("pitch", (long long)pitch);
    row_rt("code", e);
    if (e == cudaSuccess) {
        cudaFree(p);
        row_int("pitch of that pitch", (long long)pitch_for(pitch, 4));
        row_int("pitch of height 1", (long long)pitch_for(width, 1));
        row_int("pitch of height 1001", (long long)pitch_for(width, 1001));
    }
    row_end();
}

void fact_layout(const char *arg)
{
    static const size_t sizes[] = {1,
                                   256,
                                   512,
                                   513,
                                   4096,
                                   65536,
                                   1 << 20,
                                   1048577,
                                   2 << 20,
                                   2097153,
                                   16 << 20,
                                   64 << 20,
                                   (size_t)256 << 20};
    static const size_t widths[] = {1, 31, 32, 33, 511, 512, 513, 4096, 100000};
    size_t room;

    (void)arg;
    use_primary();
    room = may_take();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        layout("cudaMalloc", sizes[i], room, get_device, cudaFree);
    for (size_t i = 0; i < 8; i++)
        layout("cudaMallocHost", sizes[i], (size_t)1 << 28, get_pinned, cudaFreeHost);
    for (size_t i = 0; i < 6; i++)
        layout("cudaMallocManaged", sizes[i], 16 << 20, get_managed, cudaFree);
    for (size_t i = 0; i < 8; i++)
        layout("cudaMallocPitch", sizes[i], room, get_pitched, cudaFree);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        pitch_row(widths[i]);
}

/* --- ranges
 * --------------------------------------------------------------------------------------- */

static void range_row(const char *what, CUdeviceptr p, CUdeviceptr block)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    unsigned long long id = 0;
    unsigned type = 0;
    CUresult range = cuMemGetAddressRange(&base, &bytes, p);
    CUresult buffer = cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
    CUresult kind = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);

    row_begin();
    row_str("pointer", what);
    row_drv("address range", range);
    row_int("pointer minus base", range ? 0 : (long long)(p - base));
    row_bool("base is the block", !range && base == block);
    row_int("bytes", (long long)bytes);
    row_drv("BUFFER_ID", buffer);
    row_int("id", (long long)id);
    row_drv("MEMORY_TYPE", kind);
    row_int("type", type);
    row_end();
}

void fact_address_range(const char *arg)
{
    CUdeviceptr small, next, large, async = 0;
    void *pinned = NULL;
    int on_stack = 0;

    (void)arg;
    use_primary();
    cuMemAlloc(&small, 1000);
    cuMemAlloc(&next, 1000);
    cuMemAlloc(&large, 16 << 20);
    cuMemAllocHost(&pinned, 1000);
    cudaMallocAsync((void **)&async, 1000, 0);
    cudaStreamSynchronize(0);
    range_row("small block", small, small);
    range_row("small block + 10", small + 10, small);
    range_row("small block + 1000 (its end)", small + 1000, small);
    range_row("second small block", next, next);
    range_row("large block + 1 MiB", large + (1 << 20), large);
    range_row("async block + 10", async + 10, async);
    range_row("pinned block + 10", (CUdeviceptr)pinned + 10, (CUdeviceptr)pinned);
    range_row("host stack", (CUdeviceptr)&on_stack, 0);
    cuMemFree(small);
    cuMemFree(large);
    cudaFreeAsync((void *)async, 0);
    cudaStreamSynchronize(0);
    range_row("small block, freed", small, small);
    range_row("large block, freed", large, large);
    range_row("async block, freed", async, async);
    cuMemAlloc(&small, 1000);
    range_row("small block, allocated again", small, small);
}
