/* Everything is freed, by whatever thread and kind: not a word but that, where a file asks for it.
 *
 * expect: nothing
 */
#include <pthread.h>
#include "tests/leaks/leak.h"

static void *kept[64];

static void *release(void *arg)
{
    for (int i = 0; i < 64; i++)
        OK(cudaFree(kept[i]));
    return arg;
}

int main(void)
{
    pthread_t thread;
    void *pinned, *ordered;
    for (int i = 0; i < 64; i++)
        OK(cudaMalloc(&kept[i], 1000 * ((size_t)i + 1)));
    OK(cudaMallocHost(&pinned, 3000));
    OK(cudaMallocAsync(&ordered, 3000, 0));
    CHECK(pthread_create(&thread, NULL, release, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(cudaFreeAsync(ordered, 0));
    OK(cudaFreeHost(pinned));
    return 0;
}
