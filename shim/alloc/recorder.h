/* A trace of the program's device allocations, for build/replay: `record:PATH`. */
#ifndef CA_SHIM_ALLOC_RECORDER_H
#define CA_SHIM_ALLOC_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include "base/out.h"
#include "registry/table/registry.h"

/* Most allocations and frees that a trace has; what comes later is left out. */
#define CA_RECORD_MOST 1000000u

extern _Atomic bool ca_recorder_on;

/* With the configuration: whether there is anything to record, and where to. */
void ca_recorder_configure(void);

/* The record was just inserted, and its address is not yet the program's; or it was just taken out,
 * and its memory not yet released. So no other thread comes in between with the same memory. */
void ca_recorder_alloc(const ca_allocation_t *record);
void ca_recorder_free(const ca_allocation_t *record);

/* At exit: the file. `out` is the caller's for the time of the call. */
void ca_recorder_write(ca_out_t *out);

/* The child has a trace of its own. */
void ca_recorder_reset_after_fork(void);

#endif
