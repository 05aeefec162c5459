/* How many threads are inside a section, for others to wait until none is. Counted in parts, each
 * thread in one of them: threads that come and go all the time write no cache line in common.
 *
 * A thread enters and then checks whether it may stay; a thread that wants the section empty says
 * so first and then asks. Everything here is sequentially consistent, as both must be: one of the
 * two sees the other. Zeroed, it is empty. Thread-safe. */
#ifndef CA_BASE_IN_FLIGHT_H
#define CA_BASE_IN_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include "base/thread_state.h"

#define CA_PARTS 4u
/* From one part to the next, wherever the first begins: processors fetch lines in pairs. */
#define CA_PART_BYTES 128u

/* The calling thread's, always the same. */
static inline unsigned ca_part_of_thread(void)
{
    return ca_thread_number() % CA_PARTS;
}

typedef struct ca_in_flight {
    struct {
        _Atomic unsigned here;
        char apart[CA_PART_BYTES - sizeof(unsigned)];
    } parts[CA_PARTS];
} ca_in_flight_t;

/* Returns the part, for a thread that leaves at once. */
static inline unsigned ca_in_flight_enter(ca_in_flight_t *in_flight)
{
    unsigned part = ca_part_of_thread();
    atomic_fetch_add(&in_flight->parts[part].here, 1);
    return part;
}

static inline void ca_in_flight_leave_part(ca_in_flight_t *in_flight, unsigned part)
{
    atomic_fetch_sub(&in_flight->parts[part].here, 1);
}

/* By the thread that entered. */
static inline void ca_in_flight_leave(ca_in_flight_t *in_flight)
{
    ca_in_flight_leave_part(in_flight, ca_part_of_thread());
}

/* Whether a thread is inside that entered before this call. */
static inline bool ca_in_flight_any(const ca_in_flight_t *in_flight)
{
    bool any = false;
    for (unsigned i = 0; i < CA_PARTS && !any; i++)
        any = atomic_load(&in_flight->parts[i].here) != 0;
    return any;
}

/* For the child of a fork, which has none of the threads that were inside. */
static inline void ca_in_flight_reset(ca_in_flight_t *in_flight)
{
    for (unsigned i = 0; i < CA_PARTS; i++)
        atomic_store(&in_flight->parts[i].here, 0);
}

#endif
