/* A program without CUDA that looks whether there is one, by a weak reference. */
#include <stdio.h>

__attribute__((weak)) int cudaMalloc(void **address, size_t bytes);

int main(void)
{
    void *address;
    if (cudaMalloc)
        printf("there, and answers %d\n", cudaMalloc(&address, 1000));
    else
        printf("not there\n");
    return 0;
}
