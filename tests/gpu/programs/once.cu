// The null control: all memory is allocated once, then only kernels run. An allocator can gain
// nothing here and must lose nothing.
#include "program.cuh"

enum { N = 1 << 24, BLOCK = 256 };

__global__ void add(unsigned *to, unsigned value)
{
    to[blockIdx.x * BLOCK + threadIdx.x] += value;
}

int main(int argc, char **argv)
{
    start(argc, argv, 4000);
    unsigned *memory, sample[4];
    TRY(cudaMalloc(&memory, N * sizeof(*memory)));
    TRY(cudaMemset(memory, 0, N * sizeof(*memory)));
    add<<<N / BLOCK, BLOCK>>>(memory, 0);
    start_clock();
    for (int round = 1; round <= rounds; round++)
        add<<<N / BLOCK, BLOCK>>>(memory, round);
    TRY(cudaGetLastError());
    unsigned long long wrong = 0;
    unsigned sum = (unsigned)((unsigned long long)rounds * (rounds + 1) / 2);
    for (unsigned i = 0; i < 4; i++) {
        TRY(cudaMemcpy(&sample[i], memory + (size_t)(N - 1) * i / 3, sizeof(sample[i]),
                       cudaMemcpyDeviceToHost));
        wrong += sample[i] != sum;
    }
    int status = finish(wrong, sum);
    TRY(cudaFree(memory));
    return status;
}
