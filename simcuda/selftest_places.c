/* Memory with more to it than an address: managed memory's advice, arrays that are copied to and
 * from, physical memory that is mapped. See selftest.c. */
#include "selftest.h"

#include <string.h>

#define MIB ((size_t)1 << 20)

/* --- managed memory ----------------------------------------------------------------------------*/
enum { PAGE = 4096, PAGES = 16 };

static CUdeviceptr managed;

static int asked_of(CUmem_range_attribute what, size_t page, size_t pages)
{
    int value = 77;
    OK(cuMemRangeGetAttribute(&value, 4, what, managed + page * PAGE, pages * PAGE));
    return value;
}

static CUmemLocation at(CUmemLocationType type, int id)
{
    CUmemLocation l = {.type = type, .id = id};
    return l;
}

static void advised(size_t page, size_t pages, CUmem_advise advice, CUmemLocation where)
{
    OK(cuMemAdvise_v2(managed + page * PAGE, pages * PAGE, advice, where));
}

void advice_is_read_back(void)
{
    int by[3];
    const CUmemLocation device = at(CU_MEM_LOCATION_TYPE_DEVICE, 0),
                        host = at(CU_MEM_LOCATION_TYPE_HOST, 0);
    primary();
    OK(cuMemAllocManaged(&managed, PAGES * PAGE, CU_MEM_ATTACH_GLOBAL));
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, PAGES) == 0);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, PAGES) == CU_DEVICE_INVALID);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, PAGES) == CU_DEVICE_INVALID);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 0, PAGES) ==
          CU_MEM_LOCATION_TYPE_INVALID);
    advised(0, PAGES, CU_MEM_ADVISE_SET_READ_MOSTLY, host);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, PAGES) == 1);
    advised(5, 1, CU_MEM_ADVISE_UNSET_READ_MOSTLY, host);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, PAGES) == 0);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 5) == 1);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 6, PAGES - 6) == 1);
    advised(0, 8, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
    advised(8, 8, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 8) == 0);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 8, 8) == CU_DEVICE_CPU);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 7, 2) == CU_DEVICE_INVALID);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 0, 8) ==
          CU_MEM_LOCATION_TYPE_DEVICE);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, 0, 8) == 0);
    advised(0, 8, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 8) == CU_DEVICE_INVALID);
    advised(0, PAGES, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
    OK(cuMemRangeGetAttribute(by, 12, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, PAGES * PAGE));
    CHECK(by[0] == 0 && by[1] == CU_DEVICE_INVALID && by[2] == CU_DEVICE_INVALID);
    advised(3, 1, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device);
    OK(cuMemRangeGetAttribute(by, 4, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, PAGES * PAGE));
    CHECK(by[0] == CU_DEVICE_INVALID);
    OK(cuMemFree(managed));
    OK(cuMemAllocManaged(&managed, PAGES * PAGE, CU_MEM_ATTACH_GLOBAL)); /* starts anew */
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 5) == 0);
    OK(cuMemFree(managed));
}

void the_last_prefetch_is_read_back(void)
{
    int values[2], *data[2] = {&values[0], &values[1]};
    size_t sizes[2] = {4, 4};
    CUmem_range_attribute what[2] = {CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                     CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY};
    CUstream s;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocManaged(&managed, PAGES * PAGE, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemPrefetchAsync_v2(managed, PAGES * PAGE, at(CU_MEM_LOCATION_TYPE_DEVICE, 0), 0, s));
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, PAGES) == 0);
    /* "rounded down and rounded up": of a byte, its page */
    OK(cuMemPrefetchAsync_v2(managed + PAGE + 5, 1, at(CU_MEM_LOCATION_TYPE_HOST, 0), 0, s));
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 1, 1) == CU_DEVICE_CPU);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 2, 1) == 0);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 2) == CU_DEVICE_INVALID);
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 2, 2) ==
          CU_MEM_LOCATION_TYPE_DEVICE);
    OK(cuMemRangeGetAttributes((void **)data, sizes, what, 2, managed + 2 * PAGE, PAGE));
    CHECK(values[0] == 0 && values[1] == 0);
    OK(cuStreamSynchronize(s));
    OK(cuMemFree(managed));
}

void advice_has_its_errors(void)
{
    int value, big[2];
    CUdeviceptr plain;
    CUstream s;
    const CUmemLocation device = at(CU_MEM_LOCATION_TYPE_DEVICE, 0),
                        missing = at(CU_MEM_LOCATION_TYPE_DEVICE, 99);
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&plain, PAGE));
    OK(cuMemAllocManaged(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
    const CUmem_range_attribute mostly = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    IS(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, mostly, plain, PAGE));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, mostly, managed, PAGE + 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, mostly, managed, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(big, 8, mostly, managed, PAGE));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(NULL, 4, mostly, managed, PAGE));
    IS(CUDA_ERROR_INVALID_VALUE,
       cuMemRangeGetAttribute(big, 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, PAGE));
    IS(CUDA_ERROR_INVALID_VALUE,
       cuMemRangeGetAttribute(&value, 4, (CUmem_range_attribute)99, managed, PAGE));
    IS(CUDA_ERROR_INVALID_VALUE,
       cuMemAdvise_v2(plain, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    IS(CUDA_ERROR_INVALID_DEVICE,
       cuMemAdvise_v2(managed, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, missing));
    OK(cuMemAdvise_v2(managed, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, missing)); /* "is ignored" */
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2(managed, PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY,
                                                at(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(plain, PAGE, device, 0, s));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(managed, PAGE, device, 1, s));
    IS(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync_v2(managed, PAGE, missing, 0, s));
    OK(cuMemFree(managed));
    OK(cuMemFree(plain));
}

void the_older_forms_of_advice_name_a_device(void) /* SIM: asks for old symbols */
{
    CUresult (*advise)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
    CUresult (*prefetch)(CUdeviceptr, size_t, CUdevice, CUstream);
    CUdriverProcAddressQueryResult found;
    primary();
    OK(cuGetProcAddress("cuMemAdvise", (void **)&advise, 8000, 0, &found));
    OK(cuGetProcAddress("cuMemPrefetchAsync", (void **)&prefetch, 8000, 0, &found));
    OK(cuMemAllocManaged(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
    OK(advise(managed, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 1) == CU_DEVICE_CPU);
    OK(prefetch(managed, PAGE, 0, NULL));
    CHECK(asked_of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 1) == 0);
    IS(CUDA_ERROR_INVALID_DEVICE, prefetch(managed, PAGE, 99, NULL));
    OK(cuMemFree(managed));
}

/* --- arrays ------------------------------------------------------------------------------------*/
enum { WIDE = 24, HIGH = 10 };

void arrays_are_copied_to_and_from(void)
{
    unsigned char in[HIGH][WIDE], out[HIGH][WIDE];
    CUarray flat, line;
    CUdeviceptr p;
    CUDA_ARRAY_DESCRIPTOR d = {WIDE, HIGH, CU_AD_FORMAT_UNSIGNED_INT8, 1},
                          d1 = {64, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    primary();
    for (int i = 0; i < HIGH * WIDE; i++) {
        in[i / WIDE][i % WIDE] = (unsigned char)i;
    }
    memset(out, 0, sizeof(out));
    OK(cuArrayCreate(&flat, &d));
    OK(cuArrayCreate(&line, &d1));
    OK(cuMemAlloc(&p, 256));
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = in,
                       .srcPitch = WIDE,
                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                       .dstArray = flat,
                       .WidthInBytes = WIDE,
                       .Height = HIGH};
    OK(cuMemcpy2D(&c));
    CUDA_MEMCPY2D part = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                          .srcArray = flat,
                          .srcXInBytes = 3,
                          .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = WIDE,
                          .WidthInBytes = 5,
                          .Height = 4};
    OK(cuMemcpy2D(&part));
    for (int y = 0; y < 4; y++) {
        CHECK(memcmp(out[y], &in[y + 2][3], 5) == 0 && out[y][5] == 0);
    }
    part.srcY = HIGH - 3; /* one row too low */
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&part));
    OK(cuMemcpyHtoA(line, 8, in, 100));
    OK(cuMemcpyAtoD(p, line, 10, 50));
    OK(cuMemcpyDtoA(line, 200, p, 20));
    OK(cuMemcpyAtoH(out, line, 200, 20));
    CHECK(memcmp(out, &in[0][2], 20) == 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(line, 200, in, 57));
    OK(cuMemcpyAtoA(line, 0, line, 200, 20));
    OK(cuMemcpyAtoH(out, line, 0, 20));
    CHECK(memcmp(out, &in[0][2], 20) == 0);
    OK(cuArrayDestroy(line));
    OK(cuArrayDestroy(flat));
    OK(cuMemFree(p));
}

void levels_of_a_mipmapped_array_are_apart(void)
{
    unsigned char in[16], out[16];
    CUmipmappedArray m;
    CUarray level[5], none;
    CUDA_ARRAY3D_DESCRIPTOR d = {
        .Width = 16, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    primary();
    OK(cuMipmappedArrayCreate(&m, &d, 9)); /* "clamped": 16, 8, 4, 2, 1 */
    for (unsigned i = 0; i < 5; i++) {
        OK(cuMipmappedArrayGetLevel(&level[i], m, i));
        memset(in, (int)i + 1, sizeof(in));
        OK(cuMemcpyHtoA(level[i], 0, in, 16u >> i));
    }
    IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&none, m, 5));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(level[2], 0, in, 5));
    for (unsigned i = 0; i < 5; i++) {
        OK(cuMemcpyAtoH(out, level[i], 0, 16u >> i));
        CHECK(out[0] == i + 1 && out[(16u >> i) - 1] == i + 1);
    }
    OK(cuMipmappedArrayDestroy(m));
}

/* --- mapped memory -----------------------------------------------------------------------------*/
static CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static CUresult grant(CUdeviceptr p, size_t bytes, CUmemAccess_flags flags)
{
    CUmemAccessDesc d = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                         .flags = flags};
    return cuMemSetAccess(p, bytes, &d, 1);
}

#define READ_WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

void mapped_memory_is_accessed_in_one_piece(void)
{
    CUmemGenericAllocationHandle h[2];
    CUdeviceptr p, twice;
    unsigned char *seen;
    unsigned long long flags;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    unsigned type;
    int ordinal = -1;
    primary();
    OK(cuMemAllocHost((void **)&seen, 4 * MIB));
    OK(cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0));
    OK(cuMemAddressReserve(&twice, 2 * MIB, 4 * MIB, 0, 0));
    CHECK(twice % (4 * MIB) == 0);
    for (int i = 0; i < 2; i++) {
        h[i] = create(2 * MIB);
        OK(cuMemMap(p + (size_t)i * 2 * MIB, 2 * MIB, 0, h[i], 0));
    }
    IS(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, 2 * MIB, 0, h[1], 0)); /* "not currently mapped" */
    IS(CUDA_ERROR_INVALID_VALUE, grant(p, 6 * MIB, READ_WRITE));
    OK(grant(p, 4 * MIB, READ_WRITE));
    OK(cuMemGetAccess(&flags, &device, p + MIB));
    CHECK(flags == READ_WRITE);
    OK(cuMemcpyDtoH(seen, p, 4 * MIB));
    CHECK(seen[0] == 0 && seen[4 * MIB - 1] == 0);
    OK(cuMemsetD8(p, 7, 4 * MIB));
    OK(cuMemsetD8(p + 2 * MIB - 10, 9, 20)); /* over both */
    OK(cuMemcpyDtoH(seen, p, 4 * MIB));
    CHECK(seen[2 * MIB - 11] == 7 && seen[2 * MIB - 10] == 9 && seen[2 * MIB + 9] == 9 &&
          seen[2 * MIB + 10] == 7);
    OK(cuMemMap(twice, 2 * MIB, 0, h[1], 0));
    OK(grant(twice, 2 * MIB, READ_WRITE));
    OK(cuMemsetD8(twice + 100, 3, 1));
    OK(cuMemcpyDtoH(seen, p + 2 * MIB + 100, 1));
    CHECK(seen[0] == 3);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + MIB));
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p + MIB));
    CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
    IS(CUDA_ERROR_INVALID_VALUE,
       cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5 * MIB));
    OK(cuMemUnmap(p, 4 * MIB));
    OK(cuMemUnmap(twice, 2 * MIB));
    OK(cuMemRelease(h[0]));
    OK(cuMemRelease(h[1]));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 4 * MIB));
    OK(cuMemAddressFree(p, 8 * MIB));
    OK(cuMemAddressFree(twice, 2 * MIB));
    OK(cuMemFreeHost(seen));
}

static void access_is_an_error(CUmemAccess_flags flags, bool write) /* and sticky */
{
    CUdeviceptr p, q;
    CUstream s;
    primary();
    CUmemGenericAllocationHandle h = create(2 * MIB);
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&q, 16));
    OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(p, 2 * MIB, 0, h, 0));
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        OK(grant(p, 2 * MIB, flags));
    }
    OK(write ? cuMemsetD8Async(p, 1, 16, s) : cuMemcpyDtoDAsync(q, p, 16, s));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
}

void mapped_memory_without_access_is_no_memory(void)
{
    access_is_an_error(CU_MEM_ACCESS_FLAGS_PROT_NONE, false);
}

void mapped_memory_to_read_is_not_written(void)
{
    access_is_an_error(CU_MEM_ACCESS_FLAGS_PROT_READ, true);
}

void physical_memory_that_comes_again_is_empty(void)
{
    CUdeviceptr p;
    unsigned char seen[16];
    primary();
    OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        CUmemGenericAllocationHandle h = create(2 * MIB);
        OK(cuMemMap(p, 2 * MIB, 0, h, 0));
        OK(cuMemRelease(h));
        OK(grant(p, 2 * MIB, READ_WRITE));
        OK(cuMemcpyDtoH(seen, p, 16));
        CHECK(seen[0] == 0 && seen[15] == 0);
        OK(cuMemsetD8(p, 5, 2 * MIB));
        OK(cuCtxSynchronize());
        OK(cuMemUnmap(p, 2 * MIB));
    }
}

/* --- the log -----------------------------------------------------------------------------------*/
static void CUDA_CB noted(void *data, CUlogLevel level, char *message, size_t length)
{
    (void)data, (void)level, (void)message, (void)length;
}

void callbacks_of_the_log_come_and_go(void)
{
    CUlogsCallbackHandle first = NULL, second = NULL;
    primary();
    IS(CUDA_ERROR_INVALID_VALUE, cuLogsRegisterCallback(NULL, NULL, &first));
    OK(cuLogsRegisterCallback(noted, NULL, &first));
    OK(cuLogsRegisterCallback(noted, NULL, &second));
    CHECK(first && second && first != second);
    OK(cuLogsUnregisterCallback(first));
    OK(cuLogsUnregisterCallback(second));
}
