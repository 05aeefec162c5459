/* Takes the locale of its environment, as programs with a user interface do, and leaks 1,000 bytes.
 * Exit status 77 where that locale writes fractions with a point. */
#include <locale.h>
#include <cuda_runtime_api.h>
#include "check.h"

int main(void)
{
    void *memory;
    if (!setlocale(LC_ALL, "") || *localeconv()->decimal_point != ',') {
        printf("no locale with a comma\n");
        return 77;
    }
    CHECK(cudaMalloc(&memory, 1000) == cudaSuccess);
    return 0;
}
