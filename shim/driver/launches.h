/* Launches that may begin before the kernel in front of them has ended (programmatic stream
 * serialization), and memory that is freed and allocated again in the order of a stream. A pair of
 * such calls submits nothing, so nothing stands between the kernel that had the memory and the one
 * that gets it. Whether the driver's own calls do nobody says: a program may rely on it. So the
 * first such launch on a stream after a reuse there is made as a common one, which waits for all
 * before it; the attribute is a permission, and no program can tell. What is captured stays as it
 * is: a graph as a whole waits for what is before it. */
#ifndef CA_SHIM_DRIVER_LAUNCHES_H
#define CA_SHIM_DRIVER_LAUNCHES_H

#include "pool/arena.h"

/* Memory that had been handed out before was handed out in the order of the stream. */
void ca_launches_handed(ca_stream_t *stream);

#endif
