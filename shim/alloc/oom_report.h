/* What is said where memory is out. */
#ifndef CA_SHIM_ALLOC_OOM_REPORT_H
#define CA_SHIM_ALLOC_OOM_REPORT_H

#include <stddef.h>
#include "base/out.h"
#include "registry/table/registry.h"

/* Writes the report of a call that asked for `bytes`. For the thread that has the report lock
 * (shim/alloc/report_lock.h), under no lock. Format (checked by tests); what is not known or does
 * not apply is left out:
 *
 *   cachealloc[PID]: warning: out of memory: <bytes> bytes, device <n>, <kind> memory
 *       <frame>
 *       ...
 *   driver: <free> bytes free of <total>
 *   limit: <bytes> bytes in each context
 *   pool: <reserved> bytes reserved: <live> live, <pending> pending, <cached> cached in blocks of
 *     up to <largest> (<n>% fragmented), <exported> kept for other processes      (one line)
 *   not pooled: <bytes> bytes
 *   graphs: <bytes> bytes held by CUDA graphs of this process
 *   others: <bytes> bytes held by other processes and by the driver itself
 *   hint: ...
 *   HELD: <bytes> bytes in <n> allocations, <k> stacks
 *     device 0, device memory: ...
 *   #1: ...
 *   (<m> more groups, <bytes> bytes, not listed here)
 *
 * From HELD on in the words of the leak report (registry/report/format_text.c): what lives on the
 * device, or the pinned memory, by its ten largest groups. */
void ca_oom_report_write(ca_out_t *out, ca_kind_t kind, size_t bytes, unsigned device);

#endif
