/* The library's one clock, and the bound of waits by time; those that count tries have their own.
 * No call here blocks, allocates or takes a lock; any thread may make it, a signal handler too. The
 * fast path does not read the clock. */
#ifndef CA_BASE_CLOCK_H
#define CA_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of a clock that never goes back; of another clock of clock_gettime; or 0. */
uint64_t ca_clock_ns(void);
uint64_t ca_clock_of(clockid_t clock);

/* How long a wait of ours with a fixed bound of so many nanoseconds may take: just that. Tests,
 * which would wait for the bound itself, divide it, by CA_CLOCK_DIVISOR=1..1000 in the environment
 * of a debug build, or by the next call. What an option of the user's bounds is not divided. */
uint64_t ca_bound(uint64_t nanoseconds);

static inline unsigned ca_bound_ms(unsigned milliseconds)
{
    return (unsigned)(ca_bound((uint64_t)milliseconds * 1000000) / 1000000);
}

#define CA_CLOCK_DIVISOR_MOST 1000u
/* For unit programs, before there are threads. */
void ca_clock_divide(unsigned divisor);

#endif
