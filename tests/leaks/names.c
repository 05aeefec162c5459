/* Memory with several names is told once, by its allocation, as long as one of them lives.
 *
 * expect: 5100 bytes in 1, device: take@take < main@main
 */
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"
#include "tests/leaks/leak.h"

FRAME static char *take(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @take */
    return pointer;
}

int main(void)
{
    char *kept = take(5100); /* @main */
    char *freed = take(4100);
    CHECK(cachealloc_alias);
    OK(cachealloc_alias(kept, kept + 100));
    OK(cachealloc_alias(kept, kept + 200));
    OK(cachealloc_alias(freed, freed + 100));
    OK(cudaFree(kept));
    OK(cudaFree(kept + 200));
    OK(cudaFree(freed));
    OK(cudaFree(freed + 100));
    return 0;
}
