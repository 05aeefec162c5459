// A kernel, a device variable, a constant and a managed variable, a stream and events: what an
// ordinary nvcc program registers and calls. Says ok and leaves 0 when no call failed. Results are
// looked at only where `check` is given as an argument: kernels of the simulated CUDA do nothing.
#include <cstdio>
#include <cstring>

__device__ int offsets[16];
__constant__ float scale[4];
__managed__ int bias = 0;

__global__ void fill(int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = i * (int)scale[0] + offsets[i % 16] + bias;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cudaError_t e = (call);                                                                    \
        if (e != cudaSuccess) {                                                                    \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e));           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

int main(int argc, char **argv)
{
    const int n = 1000;
    bool check = argc > 1 && strcmp(argv[1], "check") == 0;
    int *d, h[n], off[16];
    float s[4] = {1, 2, 3, 4};
    for (int i = 0; i < 16; i++)
        off[i] = 100 * i;
    TRY(cudaMalloc(&d, n * sizeof(int)));
    TRY(cudaMemset(d, 0, n * sizeof(int)));
    TRY(cudaMemcpyToSymbol(offsets, off, sizeof off));
    TRY(cudaMemcpyToSymbol(scale, s, sizeof s));
    int back[16];
    TRY(cudaMemcpyFromSymbol(back, offsets, sizeof back));
    if (memcmp(back, off, sizeof off) != 0) {
        printf("a device variable does not keep what is written to it\n");
        return 1;
    }
    bias = 7;

    cudaStream_t stream;
    cudaEvent_t start, end;
    TRY(cudaStreamCreate(&stream));
    TRY(cudaEventCreate(&start));
    TRY(cudaEventCreate(&end));
    TRY(cudaDeviceSynchronize());
    TRY(cudaEventRecord(start, stream));
    fill<<<(n + 255) / 256, 256, 0, stream>>>(d, n);
    TRY(cudaGetLastError());
    TRY(cudaEventRecord(end, stream));
    TRY(cudaMemcpyAsync(h, d, sizeof h, cudaMemcpyDeviceToHost, stream));
    TRY(cudaStreamSynchronize(stream));
    float ms = -1;
    TRY(cudaEventElapsedTime(&ms, start, end));
    for (int i = 0; check && i < n; i++)
        if (h[i] != i + off[i % 16] + bias) {
            printf("element %d is %d\n", i, h[i]);
            return 1;
        }

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((n + 255) / 256);
    config.blockDim = dim3(256);
    config.stream = stream;
    TRY(cudaLaunchKernelEx(&config, fill, d, n));
    int m = n;
    void *args[] = {&d, &m};
    TRY(cudaLaunchCooperativeKernel(fill, config.gridDim, config.blockDim, args, 0, stream));
    TRY(cudaLaunchKernel((const void *)fill, config.gridDim, config.blockDim, args, 0, stream));
    TRY(cudaStreamSynchronize(stream));

    int blocks = 0;
    cudaFuncAttributes a;
    TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 256, 0));
    TRY(cudaFuncGetAttributes(&a, fill));
    if (blocks < 1 || a.maxThreadsPerBlock < 256) {
        printf("blocks %d, threads %d\n", blocks, a.maxThreadsPerBlock);
        return 1;
    }
    fill<<<1, 2048>>>(d, n);
    if (cudaGetLastError() != cudaErrorInvalidConfiguration) {
        printf("2048 threads were let through\n");
        return 1;
    }
    TRY(cudaEventDestroy(start));
    TRY(cudaEventDestroy(end));
    TRY(cudaStreamDestroy(stream));
    TRY(cudaFree(d));
    printf("ok\n");
    return 0;
}
