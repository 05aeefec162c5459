/*
 * Launches that reach the wrappers of libcachealloc against launches that are made: what a
 * library does between the begin and the end of a capture is in the graph, by whatever entry point
 * it came to the driver, and the debug build of libcachealloc counts what reached its wrappers
 * (shim/cuda/seen.h). Without that build the graph's count alone is reported.
 *
 *   ALLOC_CONF=reuse:order LD_PRELOAD=build/libcachealloc-debug.so build/facts --fact order_seen
 *
 * Which tables of functions the process has asked cuGetExportTable for comes last.
 */
#include "facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long (*seen_fn)(const char *);
typedef size_t (*tables_fn)(CUuuid *, size_t);

enum { N = 256, TABLES = 256 };

static seen_fn seen;
static tables_fn seen_tables;
static CUstream stream;
static CUdeviceptr a, b, c; /* N * N floats each */
static void *library;
static const char *stopped; /* the call that was refused, and by what */
static int code;

/* --- libraries, without their headers ----------------------------------------------------------
 */

static void *function(const char *name)
{
    void *found = dlsym(library ? library : RTLD_DEFAULT, name);

    if (!found && !stopped) {
        stopped = name;
        code = -1;
    }
    return found;
}

static bool done(const char *name, int answer)
{
    if (answer && !stopped) {
        stopped = name;
        code = answer;
    }
    return answer == 0;
}

/* NAME(ARGUMENTS) of the library's, which answers 0; true where it did. */
#define CALLS(name, types, ...)                                                                    \
    ({                                                                                             \
        int(*call_) types = (int(*) types)function(#name);                                         \
        call_ &&done(#name, call_(__VA_ARGS__));                                                   \
    })

static void *handle; /* cuBLAS, cuDNN, NCCL */
static int plan;
static void *tensor;

static bool blas_begin(void)
{
    return CALLS(cublasCreate_v2, (void **), &handle) &&
           CALLS(cublasSetStream_v2, (void *, CUstream), handle, stream);
}

static bool blas_work(void)
{
    static const float one = 1, zero = 0;

    return CALLS(cublasSgemm_v2,
                 (void *, int, int, int, int, int, const float *, CUdeviceptr, int, CUdeviceptr,
                  int, const float *, CUdeviceptr, int),
                 handle, 0, 0, N, N, N, &one, a, N, b, N, &zero, c, N);
}

static bool fft_begin(void)
{
    enum { C2C = 0x29 };

    return CALLS(cufftPlan1d, (int *, int, int, int), &plan, N, C2C, N / 4) &&
           CALLS(cufftSetStream, (int, CUstream), plan, stream);
}

static bool fft_work(void)
{
    return CALLS(cufftExecC2C, (int, CUdeviceptr, CUdeviceptr, int), plan, a, b, -1);
}

static bool dnn_begin(void)
{
    return CALLS(cudnnCreate, (void **), &handle) &&
           CALLS(cudnnSetStream, (void *, CUstream), handle, stream) &&
           CALLS(cudnnCreateTensorDescriptor, (void **), &tensor) &&
           CALLS(cudnnSetTensor4dDescriptor, (void *, int, int, int, int, int, int), tensor, 0, 0,
                 N, N, 1, 1);
}

static bool dnn_work(void)
{
    static const float one = 1, zero = 0;
    enum { ACCURATE = 1, INSTANCE = 0 };

    return CALLS(
        cudnnSoftmaxForward,
        (void *, int, int, const float *, void *, CUdeviceptr, const float *, void *, CUdeviceptr),
        handle, ACCURATE, INSTANCE, &one, tensor, a, &zero, tensor, b);
}

static bool nccl_begin(void)
{
    static const int device = 0;

    return CALLS(ncclCommInitAll, (void **, int, const int *), &handle, 1, &device);
}

static bool nccl_work(void)
{
    enum { FLOAT = 7, SUM = 0 };

    return CALLS(ncclAllReduce, (CUdeviceptr, CUdeviceptr, size_t, int, int, void *, CUstream), a,
                 b, (size_t)N * N, FLOAT, SUM, handle, stream);
}

/* --- without a library: the ways to launch that libraries have ----------------------------------
 */

static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .entry empty()\n"
                          "{\n"
                          " ret;\n"
                          "}\n";

static CUfunction empty;

static bool driver_begin(void)
{
    CUmodule module;

    return done("cuModuleLoadData", (int)cuModuleLoadData(&module, ptx)) &&
           done("cuModuleGetFunction", (int)cuModuleGetFunction(&empty, module, "empty"));
}

static bool driver_work(void)
{
    __typeof__(cuLaunchKernel) *named =
        (__typeof__(cuLaunchKernel) *)driver_symbol("cuLaunchKernel");
    __typeof__(cuLaunchKernel) *asked =
        (__typeof__(cuLaunchKernel) *)driver_entry("cuLaunchKernel");

    if (!done("cuLaunchKernel",
              (int)cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)) ||
        !done("cuLaunchKernel by dlsym",
              named ? (int)named(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) : -1) ||
        !done("cuLaunchKernel by cuGetProcAddress",
              asked ? (int)asked(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) : -1) ||
        !done("cuLaunchCooperativeKernel",
              (int)cuLaunchCooperativeKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL)))
        return false;
#if CUDA_VERSION >= 11080
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    if (!done("cuLaunchKernelEx", (int)cuLaunchKernelEx(&config, empty, NULL, NULL)))
        return false;
#endif
    return done("cuMemsetD8Async", (int)cuMemsetD8Async(a, 0, 4096, stream)) &&
           done("cuMemcpyDtoDAsync", (int)cuMemcpyDtoDAsync(a, b, 4096, stream));
}

/* What nvcc's code calls for <<<>>>, from CUDA 13 on; a runtime's kernel is the driver's. */
static CUkernel kernel;

static bool runtime_begin(void)
{
#if CUDA_VERSION >= 12000
    CUlibrary code_of;

    return done("cuLibraryLoadData",
                (int)cuLibraryLoadData(&code_of, ptx, NULL, NULL, 0, NULL, NULL, 0)) &&
           done("cuLibraryGetKernel", (int)cuLibraryGetKernel(&kernel, code_of, "empty"));
#else
    return done("cuLibraryLoadData", -1);
#endif
}

static bool runtime_work(void)
{
    const dim3 one = {1, 1, 1};

    return CALLS(__cudaLaunchKernel, (CUkernel, dim3, dim3, void **, size_t, CUstream), kernel, one,
                 one, NULL, 0, stream) &&
           done("cudaMemsetAsync", (int)cudaMemsetAsync((void *)a, 0, 4096, stream)) &&
           done("cudaMemcpyAsync",
                (int)cudaMemcpyAsync((void *)a, (void *)b, 4096, cudaMemcpyDeviceToDevice, stream));
}

static const struct one {
    const char *arg, *files[4];
    bool (*begin)(void), (*work)(void);
} all[] = {
    {"driver", {NULL}, driver_begin, driver_work},
    {"runtime", {NULL}, runtime_begin, runtime_work},
    {"cublas", {"libcublas.so.13", "libcublas.so.12"}, blas_begin, blas_work},
    {"cufft", {"libcufft.so.12", "libcufft.so.11"}, fft_begin, fft_work},
    {"cudnn", {"libcudnn.so.9", "libcudnn.so.8"}, dnn_begin, dnn_work},
    {"nccl", {"libnccl.so.2"}, nccl_begin, nccl_work},
};

/* --- counts ------------------------------------------------------------------------------------
 */

typedef struct counts {
    unsigned long launches, sets, copies;
} counts_t;

static counts_t seen_now(void)
{
    counts_t n = {0};

    if (seen) {
        n.launches = seen("cuLaunch") - seen("cuLaunchHostFunc");
        n.sets = seen("cuMemset");
        n.copies = seen("cuMemcpy");
    }
    return n;
}

static CUresult made_in(CUgraph graph, counts_t *n)
{
    CUgraphNode nodes[512];
    size_t count = 0;
    CUresult r = cuGraphGetNodes(graph, NULL, &count);

    if (r || count > sizeof nodes / sizeof *nodes)
        return r ? r : CUDA_ERROR_INVALID_VALUE;
    r = cuGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; !r && i < count; i++) {
        CUgraphNodeType type;
        r = cuGraphNodeGetType(nodes[i], &type);
        n->launches += !r && type == CU_GRAPH_NODE_TYPE_KERNEL;
        n->sets += !r && type == CU_GRAPH_NODE_TYPE_MEMSET;
        n->copies += !r && type == CU_GRAPH_NODE_TYPE_MEMCPY;
    }
    return r;
}

static void row_counts(const char *kind, unsigned long made, unsigned long saw)
{
    char key[64];

    snprintf(key, sizeof key, "%s made", kind);
    row_int(key, (long long)made);
    if (seen) {
        snprintf(key, sizeof key, "%s seen", kind);
        row_int(key, (long long)saw);
    }
}

static void captured_row(const struct one *one)
{
    counts_t made = {0}, before, after;
    CUgraph graph = NULL;
    CUresult r = CUDA_SUCCESS;
    bool ok = one->begin();

    cuCtxSynchronize();
    if (ok) /* code is loaded, choices are made */
        ok = one->work() && done("cuCtxSynchronize", (int)cuCtxSynchronize());
    before = seen_now();
    if (ok && !(r = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED))) {
        one->work();
        after = seen_now();
        CUresult ended = cuStreamEndCapture(stream, &graph);
        r = ended ? ended : made_in(graph, &made);
    } else {
        after = before;
    }

    row_begin();
    row_str("call", one->arg);
    row_counts("launches", made.launches, after.launches - before.launches);
    row_counts("sets", made.sets, after.sets - before.sets);
    row_counts("copies", made.copies, after.copies - before.copies);
    if (stopped) {
        row_str("stopped at", stopped);
        row_int("answer", code);
    }
    row_drv("capture", r);
    row_end();
}

static void table_rows(void)
{
    CUuuid tables[TABLES];
    size_t count = seen_tables ? seen_tables(tables, TABLES) : 0;

    for (size_t i = 0; i < count && i < TABLES; i++) {
        char text[2 * sizeof tables->bytes + 1];
        bool before = false;
        for (size_t k = 0; k < i; k++)
            before |= memcmp(&tables[k], &tables[i], sizeof *tables) == 0;
        for (size_t k = 0; k < sizeof tables->bytes; k++)
            snprintf(text + 2 * k, 3, "%02x", (unsigned char)tables[i].bytes[k]);
        if (before)
            continue;
        row_begin();
        row_str("cuGetExportTable", text);
        row_end();
    }
}

void fact_order_seen(const char *arg)
{
    const struct one *one = all;

    while (strcmp(one->arg, arg) != 0)
        one++;
    seen = (seen_fn)dlsym(RTLD_DEFAULT, "cachealloc_seen");
    seen_tables = (tables_fn)dlsym(RTLD_DEFAULT, "cachealloc_seen_tables");
    for (int i = 0; one->files[i] && !library; i++)
        library = dlopen(one->files[i], RTLD_NOW | RTLD_LOCAL);
    if (one->files[0] && !library) {
        char text[100];
        snprintf(text, sizeof text, "absent: %s", one->files[0]);
        row_note(text);
        return;
    }
    use_primary();
    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) || cuMemAlloc(&a, N * N * sizeof(float)) ||
        cuMemAlloc(&b, N * N * sizeof(float)) || cuMemAlloc(&c, N * N * sizeof(float)))
        return;
    captured_row(one);
    table_rows();
}
