/* Code that takes device memory, handles that are counted, and several processes on one device. */
#include "selftest.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static size_t free_bytes(void)
{
    size_t left = 0, total;
    OK(cuMemGetInfo(&left, &total));
    return left;
}

void modules_take_memory_and_give_it_back(void) /* SIM: memory:16M,module_bytes:6M */
{
    CUmodule a, b, c = NULL;
    primary();
    OK(cuModuleLoadData(&a, "image"));
    OK(cuModuleLoadFatBinary(&b, "image"));
    CHECK(free_bytes() == 4 * MIB);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&c, "image"));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoad(&c, "/proc/self/exe"));
    CHECK(c == NULL);
    IS(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&c, "/no/such/file"));
    OK(cuModuleUnload(a));
    OK(cuModuleLoad(&a, "/proc/self/exe"));
    OK(cuModuleUnload(a));
    OK(cuModuleUnload(b));
    CHECK(free_bytes() == 16 * MIB);
}

void contexts_take_memory_and_give_it_back(void) /* SIM: memory:16M,context_bytes:6M */
{
    CUcontext a, b, c = NULL;
    OK(cuInit(0));
    OK(cuCtxCreate(&a, NULL, 0, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    CHECK(free_bytes() == 4 * MIB);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&c, NULL, 0, 0));
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(free_bytes() == 10 * MIB);
    OK(cuCtxCreate(&c, NULL, 0, 0));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuDevicePrimaryCtxRetain(&b, 0));
    OK(cuCtxDestroy(c));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(free_bytes() == 10 * MIB);
    OK(cuCtxDestroy(a));
}

void libraries_take_memory_where_they_are_used(void) /* SIM: memory:16M,module_bytes:6M */
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUmodule module;
    CUdeviceptr p;
    primary();
    OK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "k"));
    CHECK(free_bytes() == 16 * MIB);
    OK(cuMemAlloc(&p, 12 * MIB));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuKernelGetFunction(&function, kernel));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuLibraryGetModule(&module, library));
    IS(CUDA_ERROR_OUT_OF_MEMORY,
       cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuMemFree(p));
    OK(cuKernelGetFunction(&function, kernel));
    OK(cuFuncLoad(function));
    OK(cuLibraryGetModule(&module, library));
    CHECK(free_bytes() == 10 * MIB);
    OK(cuLibraryUnload(library));
    CHECK(free_bytes() == 16 * MIB);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    OK(cuLibraryLoadFromFile(&library, "/proc/self/exe", NULL, NULL, 0, NULL, NULL, 0));
    CHECK(free_bytes() == 10 * MIB);
    OK(cuLibraryUnload(library));
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

void handles_live_until_the_last_reference_and_mapping(void)
{
    CUmemGenericAllocationHandle handle, again, imported;
    CUdeviceptr at;
    int fd;
    primary();
    size_t before = free_bytes();
    handle = create(4 * MIB);
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 4 * MIB, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + MIB)));
    CHECK(again == handle);
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemRelease(handle));
    OK(cuMemRelease(again));
    OK(cuMemRelease(imported));
    CHECK(free_bytes() == before - 4 * MIB);
    OK(cuMemUnmap(at, 4 * MIB));
    CHECK(free_bytes() == before);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    OK(cuMemAddressFree(at, 4 * MIB));
}

void physical_memory_outlives_every_context(void)
{
    primary();
    size_t before = free_bytes();
    CUmemGenericAllocationHandle handle = create(4 * MIB);
    OK(cuDevicePrimaryCtxReset(0));
    primary();
    CHECK(free_bytes() == before - 4 * MIB);
    OK(cuMemRelease(handle));
    CHECK(free_bytes() == before);
}

/* --- two processes: one says what to do next, in single characters ---------------- */
typedef struct other {
    pid_t pid;
    int to, from;
} other_t;

/* Allocates 32 MiB, says so, and then frees them, ends or waits to be killed, as ordered. */
static void other_main(int in, int out)
{
    CUdeviceptr p;
    char what;
    primary();
    OK(cuMemAlloc(&p, 32 * MIB));
    CHECK(write(out, "a", 1) == 1);
    while (read(in, &what, 1) == 1 && what != 'e') {
        OK(cuMemFree(p));
        CHECK(write(out, "f", 1) == 1);
    }
    exit(failures != 0);
}

static other_t other_start(void)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    other_t other = {fork(), to[1], from[0]};
    if (other.pid == 0) {
        close(to[1]);
        close(from[0]);
        other_main(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return other;
}

static void other_reported(const other_t *other, char expected)
{
    char said = 0;
    CHECK(read(other->from, &said, 1) == 1 && said == expected);
}

void processes_share_a_device(void) /* SIM: shared */
{
    CUdeviceptr p = 0;
    other_t one = other_start();
    int status;
    other_reported(&one, 'a');
    primary(); /* after the fork: a child of a process that uses CUDA cannot */
    CHECK(free_bytes() == 32 * MIB);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 40 * MIB));
    OK(cuMemAlloc(&p, 30 * MIB));
    CHECK(free_bytes() == 2 * MIB);
    CHECK(write(one.to, "f", 1) == 1);
    other_reported(&one, 'f');
    CHECK(free_bytes() == 34 * MIB);
    OK(cuMemFree(p));
    CHECK(write(one.to, "e", 1) == 1);
    CHECK(waitpid(one.pid, &status, 0) == one.pid && status == 0);
    CHECK(free_bytes() == 64 * MIB);
}

void a_killed_process_holds_nothing(void) /* SIM: shared */
{
    CUdeviceptr p = 0;
    siginfo_t info;
    other_t one = other_start(), two = other_start();
    other_reported(&one, 'a');
    other_reported(&two, 'a');
    primary();
    CHECK(free_bytes() == 0);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 2 * MIB));
    kill(one.pid, SIGKILL);
    CHECK(waitid(P_PID, (id_t)one.pid, &info, WEXITED | WNOWAIT) == 0); /* dead, not collected */
    OK(cuMemAlloc(&p, 32 * MIB));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 2 * MIB));
    CHECK(waitpid(one.pid, NULL, 0) == one.pid);
    kill(two.pid, SIGKILL);
    CHECK(waitpid(two.pid, NULL, 0) == two.pid);
    CHECK(free_bytes() == 32 * MIB);
}
