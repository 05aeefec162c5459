/* Launches that may begin before the kernel in front of them has ended (programmatic stream
 * serialization), beside memory that is freed and allocated again in the order of a stream. Such a
 * pair of calls submits nothing, so nothing stands between the kernel that used the memory and the
 * one that gets it. No document says whether the driver's own calls do, so a program may rely on
 * it. The first such launch on a stream after a reuse is therefore made a common one, which waits
 * for all work before it. The attribute is a permission, and no program can see the difference.
 * Captured launches stay as they are: a graph as a whole waits for the work before it.
 *
 * From any thread, with no lock held. */
#ifndef CA_SHIM_DRIVER_LAUNCHES_H
#define CA_SHIM_DRIVER_LAUNCHES_H

#include "pool/arena.h"

/* The pool has reused memory in the order of the stream. */
void ca_launches_handed(ca_stream_t *stream);

#endif
