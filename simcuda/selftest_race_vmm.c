/* SIM: the race check and memory that is mapped to several addresses: see selftest_race.def. */
#include "selftest_race.h"
#include "selftest_bodies.h"

enum { MAPPED = 2 << 20 };

static CUdeviceptr q; /* another address of what is at p */
static CUmemGenericAllocationHandle handle;

static void map(CUdeviceptr at)
{
    CUmemAccessDesc all = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                           CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemMap(at, MAPPED, 0, handle, 0));
    OK(cuMemSetAccess(at, MAPPED, &all, 1));
}

static void start_twice(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    start();
    OK(cuMemAddressReserve(&p, 2 * MAPPED, 0, 0, 0));
    q = p + MAPPED;
    OK(cuMemCreate(&handle, MAPPED, &prop, 0));
    map(p);
    map(q);
    OK(cuMemRelease(handle));
}

static void writes_at(CUdeviceptr at, CUstream s)
{
    OK(cuMemsetD8Async(at, 2, BYTES, s));
}

void one_byte_at_two_addresses(void)
{
    start_twice();
    writes(a);
    writes_at(q, b);
}

void one_byte_at_two_addresses_after_an_event(void)
{
    start_twice();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    writes_at(q, b);
    reads(b);
}

void a_read_at_another_address(void)
{
    start_twice();
    reads(a);
    writes_at(q + BYTES - 1, b);
}

void neighbours_at_two_addresses(void)
{
    start_twice();
    writes(a);
    writes_at(q + BYTES, b);
}

/* The second access reaches over the end of one mapping into the next, which is the same memory. */
void an_access_over_two_mappings_of_one_byte(void)
{
    start_twice();
    writes(a);
    writes_at(q - 1, b);
}

static void stores(void *at)
{
    uint32_t value = 5;
    simcuda_store(*(CUdeviceptr *)at, &value, sizeof(value));
}

void a_kernel_at_another_address(void)
{
    start_twice();
    writes(a);
    launches(kernel("k", stores), &q, b);
    OK(cuStreamSynchronize(b));
}

void a_kernel_at_another_address_after_an_event(void)
{
    start_twice();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    launches(kernel("k", stores), &q, b);
    OK(cuStreamSynchronize(b));
}

void unmapping_one_address_beside_work_at_another(void)
{
    start_twice();
    writes(a);
    OK(cuMemUnmap(q, MAPPED));
    OK(cuStreamSynchronize(a));
}

/* An access before that lay over both has passed. */
void unmapping_what_lies_beside_work(void)
{
    start_twice();
    OK(cuMemsetD8Async(q - BYTES, 1, 2 * BYTES, a));
    OK(cuStreamSynchronize(a));
    writes_at(q - BYTES, b);
    OK(cuMemUnmap(q, MAPPED));
    OK(cuStreamSynchronize(b));
}

void unmapping_the_address_at_work(void)
{
    static gate_t g = GATE;
    start_twice();
    gate_hold(&g, a);
    writes(a);
    OK(cuMemUnmap(p, MAPPED)); /* the gate stays closed: behind it is an illegal address */
}

/* Accesses by an address that was unmapped belong to the memory. */
void memory_mapped_elsewhere_beside_work(void)
{
    start_twice();
    OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p));
    OK(cuMemUnmap(q, MAPPED));
    writes(a);
    map(q);
    writes_at(q, b);
}

void physical_memory_that_is_new(void)
{
    start_twice();
    writes(a);
    OK(cuStreamSynchronize(a));
    OK(cuMemUnmap(p, 2 * MAPPED));
    start_twice();
    writes_at(q, b);
}
