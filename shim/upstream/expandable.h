/* Whether the pool uses virtual memory in this process: expandable segments (pool/range/range.h),
 * what stops them, and the driver's limits for their memory.
 *
 * Memory of cuMemCreate has no handle for cuIpcOpenMemHandle, and no call makes one. So
 * `expandable_segments:true` stops with the first handle that is refused, and `auto` at the first
 * sign that there may be one: existing ranges stay as they are, none grows any more, and new
 * segments are plain. Both are for good. From any thread. */
#ifndef CA_SHIM_UPSTREAM_EXPANDABLE_H
#define CA_SHIM_UPSTREAM_EXPANDABLE_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

/* Whether a context that comes into service may have ranges. With no lock held. */
bool ca_expandable_wanted(void);

/* Called before a range grows: checks the libraries that were loaded since. False: it must not
 * grow. */
bool ca_expandable_may_grow(void);

/* `why` (a constant, for the log) is a sign of handles or peers: with `auto` no range grows any
 * more. */
void ca_expandable_sign(const char *why);

/* The driver has refused `what` (for the warning) for memory in a range: no range grows any more,
 * and new requests of 2 MiB and more get segments of their own, for which it is not refused. */
void ca_expandable_refused(const char *what);

#endif
