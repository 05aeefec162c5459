/* A context is destroyed with memory cached, pending and alive, and the next one gets its handle:
 * it must get none of its memory. All that is handed out is written and read, which fails for
 * memory that is gone. drv_ctx_again [ROUNDS [HOW]]; HOW is destroy, old (the form without _v2),
 * detach, where others were attached meanwhile, or unseen, by a function that was looked up with
 * the real dlsym. HOW beside is something else: a context is destroyed unseen beside another one,
 * where what is freed is allocated again. */
#define CUDA_ENABLE_DEPRECATED
#include <cuda.h>
#include <dlfcn.h>
#include "check.h"

#define BUFFERS 60

static CUdeviceptr old[BUFFERS];

static size_t bytes_of(size_t i)
{
    static const size_t sizes[] = {500, 70000, (size_t)1 << 20, (size_t)5 << 20};
    return sizes[i % 4];
}

static void allocate(CUcontext expected, unsigned char value)
{
    for (size_t i = 0; i < BUFFERS; i++) {
        CUcontext owner = NULL;
        unsigned char last = 0;
        OK(cuMemAlloc(&old[i], bytes_of(i)));
        OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, old[i]));
        CHECK(owner == expected);
        OK(cuMemsetD8(old[i], value, bytes_of(i)));
        OK(cuMemcpyDtoH(&last, old[i] + bytes_of(i) - 1, 1));
        CHECK(last == value);
    }
}

CUresult destroy_old(CUcontext context) __asm__("cuCtxDestroy");

/* While somebody is attached it stays, with its memory. */
static void detach(CUcontext context, CUdeviceptr alive)
{
    CUcontext same;
    OK(cuCtxAttach(&same, 0));
    CHECK(same == context);
    OK(cuCtxDetach(context));
    OK(cuMemsetD8(alive, 1, 500));
    OK(cuMemFree(alive));
    OK(cuCtxDetach(context));
}

static CUresult destroy_unseen(CUcontext context)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc && driver);
    void *(*look_up)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
    CUresult (*destroy)(CUcontext) = (CUresult(*)(CUcontext))look_up(driver, "cuCtxDestroy_v2");
    CHECK(destroy);
    return destroy(context);
}

static void beside(uint64_t rounds)
{
    CUcontext one, other;
    CUdeviceptr p;
    OK(cuCtxCreate(&one, NULL, 0, 0));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuMemAlloc(&p, 500));
    OK(cuMemFree(p));
    OK(destroy_unseen(other));
    OK(cuCtxSetCurrent(one));
    for (uint64_t round = 0; round < rounds; round++) {
        OK(cuMemAlloc(&p, (size_t)64 << 20));
        OK(cuMemsetD8(p, 1, (size_t)64 << 20));
        OK(cuMemFree(p));
        OK(cuCtxSynchronize());
    }
    OK(cuCtxDestroy(one));
}

int main(int argc, char **argv)
{
    uint64_t rounds = number_argument(argc, argv, 1, 30), same = 0;
    const char *how = argc > 2 ? argv[2] : "destroy";
    CUcontext context, before = NULL;
    CUdevice device;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    if (strcmp(how, "beside") == 0) {
        beside(rounds);
        return 0;
    }
    for (uint64_t round = 0; round < rounds; round++) {
        OK(cuCtxCreate(&context, NULL, 0, device));
        same += context == before;
        before = context;
        /* What is left of the last round went with its context. */
        for (size_t i = round % 3; round > 0 && i < BUFFERS; i += 3)
            ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(old[i]));
        allocate(context, (unsigned char)round);
        for (size_t i = 0; i < BUFFERS; i++)
            if ((i + round + 1) % 3 != 0) /* a third stays alive; not those asked about above */
                OK(cuMemFree(old[i]));
        if (round % 2)
            OK(cuCtxSynchronize());
        if (strcmp(how, "detach") == 0)
            detach(context, old[(3 - (round + 1) % 3) % 3]);
        else if (strcmp(how, "unseen") == 0 && round + 1 < rounds) /* nobody could see the last */
            OK(destroy_unseen(context));
        else
            OK(how[0] == 'o' ? destroy_old(context) : cuCtxDestroy(context));
    }
    printf("%llu\n", (unsigned long long)same);
    return 0;
}
