/* Frees that are wrong answer what the plain runtime answers, and harm nobody: double, interior,
 * host memory, garbage. NULL is fine. */
#include <cuda_runtime_api.h>
#include "check.h"

static void wrong(void *pointer)
{
    ANSWERS(cudaErrorInvalidValue, cudaFree(pointer));
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
}

int main(void)
{
    char *a, *b, *c, on_stack[16];
    unsigned char byte = 0;
    OK(cudaMalloc((void **)&a, 100000));
    OK(cudaMalloc((void **)&b, 100000));
    OK(cudaMemset(b, 42, 100000));
    OK(cudaFree(NULL));
    OK(cudaFree(a));
    for (int i = 0; i < 3; i++) {
        wrong(a);        /* double */
        wrong(b + 4096); /* interior */
        wrong(b + 1);
        wrong(on_stack);
        wrong((void *)(uintptr_t)0x1234500);
    }
    /* The neighbours are untouched, and `a` is handed out once. */
    OK(cudaMalloc((void **)&a, 100000));
    OK(cudaMalloc((void **)&c, 100000));
    CHECK(a != c && a != b && b != c);
    OK(cudaMemset(a, 1, 100000));
    OK(cudaMemset(c, 2, 100000));
    OK(cudaMemcpy(&byte, b + 99999, 1, cudaMemcpyDeviceToHost));
    CHECK(byte == 42);
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(c));
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
