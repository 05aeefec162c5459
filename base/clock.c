/* The clock, and bounds that tests can divide. Must not know: what is waited for. */
#include "base/clock.h"

static unsigned divisor = 1;

uint64_t ca_clock_of(clockid_t clock)
{
    struct timespec now;
    if (clock_gettime(clock, &now) != 0)
        return 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t ca_clock_ns(void)
{
    return ca_clock_of(CLOCK_MONOTONIC);
}

uint64_t ca_bound(uint64_t nanoseconds)
{
    return nanoseconds / divisor;
}

void ca_clock_divide(unsigned by)
{
    divisor = by;
}

#if CA_DEBUG
#include <stdlib.h>
#include "base/log.h"

/* Waits are possible before CUDA is used: at a fork, at an early end. */
__attribute__((constructor)) static void read_at_load(void)
{
    const char *asked = getenv("CA_CLOCK_DIVISOR");
    char *end;
    if (!asked)
        return;
    unsigned long by = strtoul(asked, &end, 10);
    if (*asked < '0' || *asked > '9' || *end || by < 1 || by > CA_CLOCK_DIVISOR_MOST)
        ca_warn(
            "CA_CLOCK_DIVISOR=%s: a whole number from 1 to %u is accepted; bounds stay as they are",
            asked, CA_CLOCK_DIVISOR_MOST);
    else
        divisor = (unsigned)by;
}
#endif
