/* Whether segments grow in this process (pool/range/range.h), what ends that, and what the driver
 * says of their memory.
 *
 * Memory of cuMemCreate has no handle for cuIpcOpenMemHandle, and no call gives it one. So
 * `expandable_segments:true` ends with the first handle that is refused, and `auto` where anything
 * says that there may be one: then nothing that is there changes, no range grows any more, and
 * what comes is plain. Both are for good. */
#ifndef CA_SHIM_UPSTREAM_EXPANDABLE_H
#define CA_SHIM_UPSTREAM_EXPANDABLE_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

/* Whether a context that is about to be served may have ranges. With no lock held. */
bool ca_expandable_wanted(void);

/* Before a range grows: libraries that were loaded since. False: it must not. */
bool ca_expandable_may_grow(void);

/* `why` (a constant, for the log) speaks for handles or peers: with `auto` nothing grows any more.
 */
void ca_expandable_sign(const char *why);

/* The driver has refused `what` (for the warning) of memory in a range: nothing grows any more, and
 * new requests of 2 MiB and more get segments of their own, of which it is not refused. */
void ca_expandable_refused(const char *what);

#endif
