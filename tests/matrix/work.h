/* The work (pattern.h) through the runtime. */
#ifndef CA_TESTS_MATRIX_WORK_H
#define CA_TESTS_MATRIX_WORK_H

#include <cuda_runtime_api.h>
#include "tests/matrix/pattern.h"

static inline long long work(void)
{
    static pattern_t p;
    long long sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        void *memory = NULL;
        pattern_fill(&p, round);
        OK(cudaMalloc(&memory, p.bytes));
        OK(cudaMemcpy(memory, p.in, p.bytes, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(p.out, memory, p.bytes, cudaMemcpyDeviceToHost));
        OK(cudaFree(memory));
        sum += pattern_sum(&p);
    }
    return sum;
}

#endif
