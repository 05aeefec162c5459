/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which the driver keeps for a whole allocation of its own,
 * belongs to the block that it was set on, wherever in it: not to the next one there, not to none
 * because a neighbour's was unset or freed, and not to what a reset took away.
 *
 * drv_sync_memops [RESETS]
 *   race    a thread sets it while another one frees a neighbour
 *   many    more memory has it than there are marks */
#include <cuda.h>
#include <pthread.h>
#include "check.h"

static const unsigned on = 1, off = 0;

static unsigned of(CUdeviceptr memory)
{
    unsigned value = 7;
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    return value;
}

static void set(CUdeviceptr memory, const unsigned *value)
{
    OK(cuPointerSetAttribute(value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
}

static CUcontext context;

/* A neighbour's flag goes: that of `one` stays. */
static void stays(CUdeviceptr one)
{
    CUdeviceptr other;
    OK(cuMemAlloc(&other, 4096));
    set(other, &on);
    OK(cuMemFree(other));
    CHECK(of(one) == 1);
    OK(cuMemFree(one));
}

static void without_context(void)
{
    CUdeviceptr one;
    OK(cuMemAlloc(&one, 4096));
    OK(cuCtxSetCurrent(NULL));
    set(one, &on);
    OK(cuCtxSetCurrent(context));
    stays(one);
}

/* Tokens set it too. */
static void by_tokens(void)
{
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_P2P_TOKENS};
    unsigned long long id;
    void *values[] = {&id, &tokens};
    CUdeviceptr one;
    OK(cuMemAlloc(&one, 4096));
    if (cuPointerGetAttribute(&tokens, what[1], one) == CUDA_SUCCESS)
        stays(one);
    else
        OK(cuMemFree(one));
    OK(cuMemAlloc(&one, 4096));
    if (cuPointerGetAttributes(2, what, values, one) == CUDA_SUCCESS && of(one) == 1)
        stays(one);
    else
        OK(cuMemFree(one));
}

static pthread_barrier_t both;

static void *frees(void *memory)
{
    pthread_barrier_wait(&both);
    OK(cuMemFree((CUdeviceptr)(uintptr_t)memory));
    return NULL;
}

static void race(void)
{
    CUdeviceptr one, other;
    pthread_t thread;
    CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
    for (int round = 0; round < 40; round++) {
        OK(cuMemAlloc(&one, 4096));
        OK(cuMemAlloc(&other, 4096));
        set(other, &on);
        CHECK(pthread_create(&thread, NULL, frees, (void *)(uintptr_t)other) == 0);
        pthread_barrier_wait(&both);
        set(one, &on);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(of(one) == 1);
        OK(cuMemFree(one));
    }
}

static void many(void)
{
    enum { COUNT = 1100, FREED = 1060 };
    static CUdeviceptr p[COUNT];
    for (int i = 0; i < COUNT; i++) {
        OK(cuMemAlloc(&p[i], 4096));
        set(p[i], &on);
    }
    for (int i = 0; i < FREED; i++)
        OK(cuMemFree(p[i]));
    set(p[FREED], &off);
    for (int i = FREED + 1; i < COUNT; i++)
        CHECK(of(p[i]) == 1);
    for (int i = FREED; i < COUNT; i++)
        OK(cuMemFree(p[i]));
}

int main(int argc, char **argv)
{
    CUdeviceptr one, other;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (argc > 1 && strcmp(argv[1], "race") == 0) {
        race();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "many") == 0) {
        many();
        return 0;
    }

    for (unsigned i = 0; i < 2000; i++) { /* more than there are marks */
        OK(cuMemAlloc(&one, 64 << 10));
        CHECK(of(one) == 0);
        set(one + 256 + i % 200 * 256, &on); /* inside it */
        CHECK(of(one) == 1);
        OK(cuMemFree(one));
    }

    OK(cuMemAlloc(&one, 4096));
    OK(cuMemAlloc(&other, 4096));
    set(one, &on);
    set(other, &on);
    set(one + 512, &off);
    CHECK(of(other) == 1);
    set(other, &off);
    CHECK(of(other) == 0);
    set(other, &on);
    OK(cuMemFree(other));
    CHECK(of(one) == 0);
    OK(cuMemFree(one));
    without_context();
    by_tokens();

    for (long resets = argc > 1 ? atol(argv[1]) : 3; resets > 0; resets--) {
        OK(cuMemAlloc(&one, 4096));
        set(one, &on);
        OK(cuDevicePrimaryCtxReset(0));
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
    }
    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc(&one, 4096));
        CHECK(of(one) == 0);
        set(one, &on);
        OK(cuMemFree(one));
    }
    return 0;
}
