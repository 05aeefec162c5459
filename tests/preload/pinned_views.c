/* What CUDA tells about pinned memory, whichever call it came from and with whatever flags, at its
 * start and inside; and what wrong calls answer. Prints one line each: the lines are the same with
 * and without a pool. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "check.h"

#define BYTES 10000

static void tell(const char *what, int answer)
{
    printf("%s: %d\n", what, answer);
    (void)cudaGetLastError();
}

/* The driver's functions, as a runtime finds them. */
#define DRIVER(name, version, answers)                                                             \
    static CUresult(CUDAAPI *name) answers;                                                        \
    if (!name)                                                                                     \
    OK(cudaGetDriverEntryPointByVersion(#name, (void **)&name, version, cudaEnableDefault, NULL))
#undef cuMemGetAddressRange

/* All ways to ask for it: by the call, by one attribute, by several. */
static void range_at(unsigned char *host, size_t offset)
{
    DRIVER(cuMemGetAddressRange, 3020, (CUdeviceptr *, size_t *, CUdeviceptr));
    DRIVER(cuPointerGetAttribute, 4000, (void *, CUpointer_attribute, CUdeviceptr));
    DRIVER(cuPointerGetAttributes, 7000, (unsigned, CUpointer_attribute *, void **, CUdeviceptr));
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)host, base[3] = {0};
    size_t bytes[3] = {0};
    void *values[] = {&bytes[2], &base[2]};
    tell("  range", (int)cuMemGetAddressRange(&base[0], &bytes[0], at + offset));
    tell("  its start", (int)cuPointerGetAttribute(&base[1], asked[1], at + offset));
    tell("  its size", (int)cuPointerGetAttribute(&bytes[1], asked[0], at + offset));
    tell("  both", (int)cuPointerGetAttributes(2, asked, values, at + offset));
    for (int i = 0; i < 3; i++)
        printf("  begins %zd before, has %zu\n", (ssize_t)(at - base[i]), bytes[i]);
}

static void look_at(unsigned char *host, size_t offset)
{
    struct cudaPointerAttributes a = {.type = 99};
    void *device = NULL;
    unsigned flags = 99;
    int code = (int)cudaPointerGetAttributes(&a, host + offset);
    printf("  at %zu: code %d type %d device %d: host pointer %d, device pointer %d\n", offset,
           code, (int)a.type, a.device, a.hostPointer == host + offset,
           a.devicePointer == host + offset);
    code = (int)cudaHostGetDevicePointer(&device, host + offset, 0);
    printf("  device pointer: code %d, the same %d\n", code, device == host + offset);
    code = (int)cudaHostGetFlags(&flags, host + offset);
    printf("  flags: code %d, %#x\n", code, flags);
    range_at(host, offset);
}

static unsigned char *get(unsigned flags)
{
    unsigned char *host = NULL;
    if (flags == 8)
        OK(cudaMallocHost((void **)&host, BYTES));
    else
        OK(cudaHostAlloc((void **)&host, BYTES, flags));
    CHECK((uintptr_t)host % 512 == 0); /* what the driver keeps for itself, as for device memory */
    return host;
}

/* From and to the middle of a buffer. */
static void copy_inside(unsigned char *host)
{
    unsigned char *device;
    OK(cudaMalloc((void **)&device, BYTES));
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 7);
    OK(cudaMemcpy(device, host + 1234, 5000, cudaMemcpyDefault));
    memset(host, 0, BYTES);
    OK(cudaMemcpyAsync(host + 321, device, 5000, cudaMemcpyDefault, 0));
    OK(cudaStreamSynchronize(0));
    CHECK(host[320] == 0 && host[5321] == 0);
    for (size_t i = 0; i < 5000; i++)
        CHECK(host[321 + i] == (unsigned char)((i + 1234) * 7));
    OK(cudaFree(device));
}

static void wrong_calls(void)
{
    unsigned char *host = get(0);
    void *device, *odd = NULL;
    OK(cudaMalloc(&device, BYTES));
    tell("register again", cudaHostRegister(host, 4096, 0));
    tell("register the inside again", cudaHostRegister(host + 4096, 4096, 0));
    tell("unregister", cudaHostUnregister(host));
    tell("cudaFree of pinned memory", cudaFree(host));
    tell("cudaFree of its inside", cudaFree(host + 512));
    tell("cudaFreeAsync of pinned memory", cudaFreeAsync(host, 0));
    tell("cudaFreeHost of its inside", cudaFreeHost(host + 4096));
    tell("cudaFreeHost of device memory", cudaFreeHost(device));
    tell("cudaFreeHost of the inside of device memory", cudaFreeHost((char *)device + 512));
    tell("unknown flags", cudaHostAlloc(&odd, BYTES, 0x100));
    memset(host, 1, BYTES); /* and all that did no harm */
    OK(cudaMemcpy(device, host, BYTES, cudaMemcpyHostToDevice));
    tell("cudaFreeHost", cudaFreeHost(host));
    tell("again", cudaFreeHost(host));
    tell("and again", cudaFreeHost(host));
    tell("cudaFree", cudaFree(device));
}

int main(void)
{
    for (unsigned round = 0; round < 3; round++) {
        unsigned char *held[9];
        for (unsigned flags = 0; flags <= 8; flags++) {
            held[flags] = get(flags);
            printf("flags %u\n", flags);
            look_at(held[flags], 0);
            look_at(held[flags], 5000);
            copy_inside(held[flags]);
        }
        for (unsigned flags = 0; flags <= 8; flags++)
            OK(cudaFreeHost(held[(flags + round) % 9]));
        OK(cudaDeviceSynchronize());
    }
    wrong_calls();
    return 0;
}
