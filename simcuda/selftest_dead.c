/* SIM: what the race check says of accesses to memory that is not live; see selftest_dead.def. The
 * error of a wild access stays what it is without the race check. */
#include "selftest.h"

#define DEAD(name, by, says) void name(void);
#define LIVE(name) void name(void);
#include "selftest_dead.def"
#undef DEAD
#undef LIVE

static CUstream a;
static CUdeviceptr p;

static void start(size_t bytes)
{
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, bytes));
}

static void end(CUresult code)
{
    IS(code, cuStreamSynchronize(a));
    IS(code, cuCtxSynchronize()); /* sticky */
}

void a_set_after_the_free(void)
{
    start(4096);
    OK(cuMemFree(p));
    OK(cuMemsetD8Async(p + 5, 1, 7, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void a_copy_from_memory_after_the_free(void)
{
    CUdeviceptr to;
    start(4096);
    OK(cuMemAlloc(&to, 4096));
    OK(cuMemFree(p));
    OK(cuMemcpyDtoDAsync(to, p, 4096, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void a_set_after_the_reset(void)
{
    start(4 << 20);
    CUdeviceptr old = p;
    OK(cuDevicePrimaryCtxReset(0));
    start(4096); /* in the first of its pages */
    OK(cuMemsetD8Async(old + (3 << 20), 1, 4096, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void a_peer_copy_after_the_end_of_a_context(void)
{
    CUcontext other;
    CUdeviceptr lost;
    start(4096);
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuMemAlloc(&lost, 4096));
    OK(cuCtxDestroy(other));
    OK(cuMemcpyDtoDAsync(p, lost, 4096, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void one_byte_past_the_end(void)
{
    start(1000);
    OK(cuMemsetD8Async(p + 900, 1, 101, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void the_last_row_past_the_end(void)
{
    start(3 * 1024 + 136);
    OK(cuMemsetD2D8Async(p, 1024, 1, 256, 4, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void memory_that_was_never_there(void)
{
    start(1 << 21);
    OK(cuMemsetD8Async(p + (1u << 30), 1, 1, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void a_set_of_pageable_memory(void)
{
    static char host[64];
    start(64);
    OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)host, 1, sizeof(host), a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* Live when it was submitted, and ordered: the memory is freed before the access happens. */
void a_set_behind_the_free_in_its_stream(void)
{
    gate_t gate = GATE;
    start(64);
    gate_hold(&gate, a);
    OK(cuMemFreeAsync(p, a));
    OK(cuMemsetD8Async(p, 1, 64, a));
    gate_open(&gate);
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* What comes after it does nothing. */
void the_first_error_alone(void)
{
    start(4096);
    OK(cuMemFree(p));
    OK(cuMemsetD8Async(p, 1, 7, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD8Async(p, 1, 7, a));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD8(p, 1, 7));
}

void all_of_an_allocation(void)
{
    start(3 * 1024 + 256);
    OK(cuMemsetD8Async(p, 1, 3 * 1024 + 256, a));
    OK(cuMemsetD8Async(p + 3 * 1024 + 255, 1, 1, a));
    OK(cuMemsetD2D8Async(p, 1024, 1, 256, 4, a));
    end(CUDA_SUCCESS);
}

void memory_that_came_again(void)
{
    start(4096);
    CUdeviceptr old = p;
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, 4096));
    CHECK(p == old);
    OK(cuMemsetD8Async(old, 1, 4096, a));
    OK(cuStreamSynchronize(a));
    OK(cuDevicePrimaryCtxReset(0));
    start(4096);
    CHECK(p == old);
    OK(cuMemsetD8Async(old, 1, 4096, a));
    end(CUDA_SUCCESS);
}

void copies_of_pageable_memory(void)
{
    static char host[4096];
    start(4096);
    OK(cuMemcpyHtoDAsync(p, host, 4096, a));
    OK(cuMemcpyDtoHAsync(host, p, 4096, a));
    OK(cuMemcpyAsync(p, (CUdeviceptr)(uintptr_t)host, 4096, a));
    end(CUDA_SUCCESS);
}

enum { MAPPED = 2 << 20 };

static void start_mapped(bool granted)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc all = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    start(4096);
    OK(cuMemAddressReserve(&p, MAPPED, 0, 0, 0));
    OK(cuMemCreate(&handle, MAPPED, &prop, 0));
    OK(cuMemMap(p, MAPPED, 0, handle, 0));
    OK(granted ? cuMemSetAccess(p, MAPPED, &all, 1) : CUDA_SUCCESS);
}

void mapped_memory_after_the_unmapping(void)
{
    start_mapped(true);
    OK(cuMemsetD8Async(p, 1, 7, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemUnmap(p, MAPPED));
    OK(cuMemsetD8Async(p, 1, 7, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}

void mapped_memory_without_access(void)
{
    start_mapped(false);
    OK(cuMemsetD8Async(p, 1, 7, a));
    end(CUDA_ERROR_ILLEGAL_ADDRESS);
}
