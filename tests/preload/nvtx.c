/* What a program with NVTX has of it, by its own header: nvtx WHAT. Levels and ids are printed, so
 * that they can be compared with what NVTX answers where nobody listens.
 *
 *   phases    ranges and marks of each kind, around allocations of which 1000 bytes stay
 *   domains   of a domain of its own, of that of the Python package, and registered strings
 *   early     ranges that begin before CUDA is used
 *   no_cuda   ranges, and no CUDA
 *   variable  prints the environment's NVTX_INJECTION64_PATH, and its child's by a shell
 *   opened LIBRARY  opens the library as a module does; prints the variable; a range, with memory
 *   beside LIBRARY  the same beside another thread, which keeps the environment that it had */
#include <cuda_runtime_api.h>
#if !__has_include(<nvtx3/nvToolsExt.h>)
#include <stdio.h>

int main(void)
{
    puts("the header of NVTX is not there");
    return 77;
}
#else
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <unistd.h>
#include "check.h"
#include "include/cachealloc.h"

static void *take(size_t bytes)
{
    void *memory;
    OK(cudaMalloc(&memory, bytes));
    return memory;
}

static nvtxEventAttributes_t event(nvtxMessageType_t type, const void *message)
{
    nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                        .messageType = (int32_t)type};
    attributes.message.ascii = message;
    return attributes;
}

static void phases(void)
{
    nvtxEventAttributes_t attributes = event(NVTX_MESSAGE_TYPE_UNICODE, L"h\u00e4lf \U0001f600");
    (void)take(1000);
    printf("push %d", nvtxRangePushA("load"));
    printf(" %d", nvtxRangePushW(L"weights \u20ac"));
    void *more = take(5000);
    printf(", pop %d", nvtxRangePop());
    printf(" %d", nvtxRangePop());
    nvtxMarkA("half");
    nvtxMarkW(L"half \u20ac");
    nvtxMarkEx(&attributes);
    nvtxRangeId_t outer = nvtxRangeStartA("step");
    attributes = event(NVTX_MESSAGE_TYPE_ASCII, "inner");
    nvtxRangeId_t inner = nvtxRangeStartEx(&attributes);
    OK(cudaFree(more));
    nvtxRangeEnd(outer);
    nvtxRangeEnd(inner);
    nvtxRangeEnd(nvtxRangeStartW(L"wide"));
    attributes = event(NVTX_MESSAGE_TYPE_ASCII, "last");
    printf(", push %d", nvtxRangePushEx(&attributes));
    printf(", pop %d", nvtxRangePop());
    printf(" %d\n", nvtxRangePop());
}

static void domains(void)
{
    (void)take(1000);
    nvtxDomainHandle_t own = nvtxDomainCreateA("lib"), python = nvtxDomainCreateW(L"NVTX");
    nvtxStringHandle_t name = nvtxDomainRegisterStringA(python, "registered");
    nvtxStringHandle_t wide = nvtxDomainRegisterStringW(own, L"wide");
    nvtxEventAttributes_t of_python = event(NVTX_MESSAGE_TYPE_REGISTERED, name);
    nvtxEventAttributes_t of_own = event(NVTX_MESSAGE_TYPE_REGISTERED, wide);
    printf("push %d", nvtxDomainRangePushEx(python, &of_python));
    printf(" %d", nvtxDomainRangePushEx(own, &of_own));
    printf(" %d", nvtxRangePushA("outer"));
    printf(", pop %d", nvtxDomainRangePop(python));
    printf(" %d", nvtxDomainRangePop(own));
    printf(" %d\n", nvtxRangePop());
    nvtxDomainMarkEx(own, &of_own);
    nvtxDomainMarkEx(NULL, &of_python);
    nvtxDomainRangeEnd(own, nvtxDomainRangeStartEx(own, &of_own));
    nvtxDomainDestroy(own);
}

static void early(void)
{
    (void)nvtxRangePushA("outer");
    (void)nvtxRangePushA("inner");
    (void)take(1000);
    (void)take(2000);
    (void)nvtxRangePop();
    (void)nvtxRangePop();
}

static void no_cuda(void)
{
    nvtxMarkA("here");
    (void)nvtxRangePushA("there");
    (void)nvtxRangePop();
}

static pthread_barrier_t around;

static void *other_thread(void *argument)
{
    char **before = environ;
    (void)argument;
    (void)pthread_barrier_wait(&around);
    (void)pthread_barrier_wait(&around);
    CHECK(environ == before);
    return NULL;
}

static void opened(const char *path, int beside)
{
    pthread_t thread;
    OK(pthread_barrier_init(&around, NULL, 2));
    if (beside) {
        OK(pthread_create(&thread, NULL, other_thread, NULL));
        (void)pthread_barrier_wait(&around);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        FAIL("%s", dlerror());
    if (beside) {
        (void)pthread_barrier_wait(&around);
        OK(pthread_join(thread, NULL));
    }
    const char *variable = getenv("NVTX_INJECTION64_PATH");
    puts(variable ? variable : "not set");
    __typeof__(cachealloc_alloc) *take_here =
        (__typeof__(take_here))dlsym(library, "cachealloc_alloc");
    CHECK(take_here(1000, 0, 0, NULL)); /* it stays, and makes a report */
    printf("push %d", nvtxRangePushA("step"));
    printf(", pop %d\n", nvtxRangePop());
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "phases";
    const char *variable = getenv("NVTX_INJECTION64_PATH");
    if (strcmp(what, "phases") == 0) {
        phases();
    } else if (strcmp(what, "domains") == 0) {
        domains();
    } else if (strcmp(what, "early") == 0) {
        early();
    } else if (strcmp(what, "no_cuda") == 0) {
        no_cuda();
    } else if (argc > 2) {
        opened(argv[2], strcmp(what, "beside") == 0);
    } else {
        printf("%s\n", variable ? variable : "not set");
        fflush(stdout);
        OK(system("echo \"${NVTX_INJECTION64_PATH-not set}\""));
        (void)take(1000);
    }
    return 0;
}
#endif
