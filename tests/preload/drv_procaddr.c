/* Reaches the driver as a runtime does: dlopen, one dlsym, and cuGetProcAddress for the rest.
 *
 * Prints the answers to odd questions, which must be the same with and without the shim, and serves
 * 2 x ROUNDS allocations through the pointers so obtained. drv_procaddr [ROUNDS] */
#include <cuda.h>
#include <dlfcn.h>
#include "check.h"

/* The form of CUDA 11.3; cuda.h maps the plain name to the form with five arguments. */
typedef CUresult (*get_v1_t)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v2_t)(const char *, void **, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *);
typedef CUresult (*init_t)(unsigned);
typedef CUresult (*retain_t)(CUcontext *, CUdevice);
typedef CUresult (*set_current_t)(CUcontext);
typedef CUresult (*alloc_t)(CUdeviceptr *, size_t);
typedef CUresult (*free_t)(CUdeviceptr);
typedef CUresult (*set_t)(CUdeviceptr, unsigned char, size_t);

static get_v2_t get;

static void *find(const char *name, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    void *function = NULL;
    OK(get(name, &function, version, flags, &status));
    CHECK(function && status == CU_GET_PROC_ADDRESS_SUCCESS);
    void *again = NULL;
    OK(get(name, &again, version, flags, NULL)); /* the status is optional */
    CHECK(again == function);
    return function;
}

static void odd_questions(void)
{
    void *function = (void *)&function;
    int code = (int)get("", &function, 13000, 0, NULL);
    printf("empty name: %d, %s\n", code, function ? "a pointer" : "NULL");

    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    code = (int)get("cuNoSuchFunction", &function, 13000, 0, &status);
    printf("unknown name: %d, status %d, %s\n", code, (int)status, function ? "a pointer" : "NULL");

    status = CU_GET_PROC_ADDRESS_SUCCESS;
    code = (int)get("cuMemAllocAsync", &function, 2000, 0, &status);
    printf("too old a version: %d, status %d, %s\n", code, (int)status,
           function ? "a pointer" : "NULL");
}

static void work(alloc_t allocate, free_t release, set_t set, uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        CUdeviceptr pointer = 0;
        OK(allocate(&pointer, 4321));
        OK(set(pointer, 1, 4321));
        OK(release(pointer));
    }
}

int main(int argc, char **argv)
{
    uint64_t rounds = number_argument(argc, argv, 1, 500);
    const cuuint64_t legacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver);
    get = (get_v2_t)dlsym(driver, "cuGetProcAddress_v2");
    get_v1_t get_v1 = (get_v1_t)dlsym(driver, "cuGetProcAddress");
    CHECK(get && get_v1);
    odd_questions();

    CUcontext context;
    OK(((init_t)find("cuInit", 2000, 0))(0));
    OK(((retain_t)find("cuDevicePrimaryCtxRetain", 7000, 0))(&context, 0));
    OK(((set_current_t)find("cuCtxSetCurrent", 4000, 0))(context));

    /* The five-argument form. */
    work((alloc_t)find("cuMemAlloc", 3020, legacy), (free_t)find("cuMemFree", 3020, legacy),
         (set_t)find("cuMemsetD8", 7000, per_thread), rounds);

    /* The four-argument form: reading a fifth would be reading garbage. */
    void *allocate = NULL, *release = NULL, *set = NULL;
    OK(get_v1("cuMemAlloc", &allocate, 11030, legacy));
    OK(get_v1("cuMemFree", &release, 11030, legacy));
    OK(get_v1("cuMemsetD8", &set, 11030, legacy));
    work((alloc_t)allocate, (free_t)release, (set_t)set, rounds);

    /* cuGetProcAddress, asked for itself, answers a function that does the same. */
    get_v2_t through = (get_v2_t)find("cuGetProcAddress", 12000, 0);
    void *indirect = NULL;
    OK(through("cuMemAlloc", &indirect, 3020, legacy, NULL));
    CHECK(indirect == find("cuMemAlloc", 3020, legacy));

    /* The stream decides between two functions under one name. */
    CHECK(find("cuStreamSynchronize", 7000, legacy) !=
          find("cuStreamSynchronize", 7000, per_thread));
    return 0;
}
