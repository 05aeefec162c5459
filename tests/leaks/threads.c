/* Groups tell the names of the threads that allocated, as they were then.
 *
 * expect: 9000 bytes in 3, device, 3 threads loader saver: forget@forget < work@work
 * expect: 500 bytes in 1, device: keep@keep < main@main
 * expect: 70 bytes in 1, device, thread late: forget_last@last < work@work_last
 */
#include <pthread.h>
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static int forget_last(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 70)); /* @last */
    return 1;
}

FRAME static int keep(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 500)); /* @keep */
    return 1;
}

FRAME static void *work(void *name)
{
    pthread_setname_np(pthread_self(), name);
    if (strcmp(name, "late") == 0)
        CHECK(forget_last() == 1); /* @work_last */
    else
        CHECK(forget(3000) == 1); /* @work */
    pthread_setname_np(pthread_self(), "done");
    return NULL;
}

int main(void)
{
    static char *const names[] = {"loader", "loader", "saver", "late"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, work, names[i]) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(keep() == 1); /* @main */
    return 0;
}
