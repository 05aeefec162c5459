/* What the cases about arrays, physical memory and registered host memory need: descriptions, right
 * and wrong ones, and setups. Included by parity.c alone. */
#ifndef CA_TESTS_PARITY_TRACKED_H
#define CA_TESTS_PARITY_TRACKED_H

static struct {
    CUarray array;
    CUmipmappedArray mipmap;
    CUmemGenericAllocationHandle handle;
    CUmodule module;
    cudaArray_t rt_array;
    char host[4096];
} t;

static const CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 1},
                                   no_width = {0, 64, CU_AD_FORMAT_FLOAT, 1},
                                   three_channels = {64, 64, CU_AD_FORMAT_FLOAT, 3};
static const CUDA_ARRAY3D_DESCRIPTOR deep = {64, 64, 4, CU_AD_FORMAT_FLOAT, 1, 0};
static const struct cudaChannelFormatDesc floats = {32, 0, 0, 0, cudaChannelFormatKindFloat};

static CUresult create(size_t bytes, int device, unsigned long long flags)
{
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};

    return cuMemCreate(&t.handle, bytes, &what, flags);
}

static void drv_array(void)
{
    drv_context();
    MUST(cuArrayCreate(&t.array, &flat));
}

static void drv_registered(void)
{
    drv_context();
    MUST(cuMemHostRegister(t.host, sizeof t.host, 0));
}

static void registered(void)
{
    context();
    MUST(cudaHostRegister(t.host, sizeof t.host, cudaHostRegisterDefault));
}

#endif
