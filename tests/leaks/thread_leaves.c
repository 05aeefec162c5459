/* A thread that leaves by pthread_exit, and the end of the process called by another thread than
 * the first.
 *
 * exit: 3
 * expect: 800 bytes in 1, device, thread leaver: forget@forget < leave@leave
 * expect: 600 bytes in 1, device, thread ender: forget@forget < end@end
 */
#include <pthread.h>
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static void *leave(void *arg)
{
    pthread_setname_np(pthread_self(), "leaver");
    CHECK(forget(800) == 1); /* @leave */
    pthread_exit(arg);
}

FRAME static void *end(void *first)
{
    pthread_setname_np(pthread_self(), "ender");
    CHECK(pthread_join(*(pthread_t *)first, NULL) == 0);
    CHECK(forget(600) == 1); /* @end */
    exit(3);
}

int main(void)
{
    pthread_t first, second;
    CHECK(pthread_create(&first, NULL, leave, NULL) == 0);
    CHECK(pthread_create(&second, NULL, end, &first) == 0);
    pthread_join(second, NULL);
    return 0;
}
