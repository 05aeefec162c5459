#include "base/backoff.h"

#include <errno.h>
#include <sched.h>
#include <time.h>
#include "base/cancel.h"

#define SPINS 200u
#define YIELDS 100u
#define SLEEP_NS 50000u

void ca_sleep(uint64_t nanoseconds)
{
    const struct timespec time = {.tv_sec = (time_t)(nanoseconds / 1000000000u),
                                  .tv_nsec = (long)(nanoseconds % 1000000000u)};
    int saved = errno, cancel = ca_cancel_hold();
    nanosleep(&time, NULL);
    ca_cancel_resume(cancel);
    errno = saved;
}

void ca_backoff(unsigned tries)
{
    int saved = errno;
    if (tries >= SPINS + YIELDS)
        ca_sleep(SLEEP_NS);
    else if (tries >= SPINS)
        sched_yield();
    errno = saved;
}
