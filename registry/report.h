/* The leak report: live records grouped by call stack, device and kind.
 *
 * Needs no CUDA and takes no lock while it writes: it works on a snapshot. */
#ifndef CA_REGISTRY_REPORT_H
#define CA_REGISTRY_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include "config/out.h"
#include "registry/registry.h"

typedef struct ca_report_options {
    size_t least_bytes;   /* smaller groups are counted, not listed */
    unsigned most_groups; /* listed at most */
    const char *rank;     /* of the process; NULL or empty where it has none */
} ca_report_options_t;

/* Groups and writes the report. Returns the number of leaked allocations, those of destroyed
 * contexts included, or -ENOMEM; where there are none nothing is written. Cannot be cancelled.
 * Format (checked by tests):
 *
 *   cachealloc[PID]: leak report, rank <r>
 *   LEAK SUMMARY: <bytes> bytes in <n> allocations, <k> stacks
 *   (incomplete: <n> of 32 shards were in use)
 *     device 0, device memory: <bytes> bytes in <n> allocations
 *     ...
 *   #1: <bytes> bytes in <n> allocations, device 0, device memory
 *       load_tile at tiles.c:42
 *       main at tiles.c:99
 *   ...
 *   (<m> more groups, <bytes> bytes, not listed: leak_max:20)
 *   ALIVE WHEN THEIR CONTEXT WAS DESTROYED: <bytes> bytes in <n> allocations, <k> stacks
 *   #1: ...
 *
 * The rank is there where a launcher set one. The summary counts what is live now, and is there
 * with zeros when nothing is. Shards are in use where exit was called by a signal handler that
 * interrupted an allocation. What was alive in contexts that are gone, with cudaDeviceReset for
 * instance, has its own heading and its own count of groups; without it the heading is not there.
 */
long ca_report_leaks(ca_out_t *out, const ca_report_options_t *options);

#endif
