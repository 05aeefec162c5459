/* Work of the host's, for cudaLaunchHostFunc, that takes 100 ms. */
#ifndef CA_TESTS_PRELOAD_SLOW_WORK_H
#define CA_TESTS_PRELOAD_SLOW_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/* Sets the atomic_bool `done` at its end. */
static void take_time(void *done)
{
    struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    atomic_store((atomic_bool *)done, true);
}

#endif
