/* The report as text. */
#ifndef CA_REGISTRY_REPORT_REPORT_H
#define CA_REGISTRY_REPORT_REPORT_H

#include "base/out.h"
#include "registry/report/model.h"

/* Writes the report; where nothing leaked, nothing. Format (checked by tests):
 *
 *   cachealloc[PID]: leak report, rank <r>, cause <dump or signal>, stacks sampled: <size>
 *   LEAK SUMMARY: <bytes> bytes in <n> allocations, <k> stacks
 *   (incomplete: <n> of 17 stripes were in use)
 *     device 0, device memory: <bytes> bytes in <n> allocations
 *     ...
 *   #1: <bytes> bytes in <n> allocations, device 0, device memory
 *     sizes <least> to <most>, sequence <first> to <last>, <n> threads: loader, worker
 *       load_tile at tiles.c:42
 *       main at tiles.c:99
 *   ...
 *   (<m> more groups, <bytes> bytes, not listed: leak_max:20)
 *   ALIVE WHEN THEIR CONTEXT WAS DESTROYED: <bytes> bytes in <n> allocations, <k> stacks
 *   #1: ...
 *   SUPPRESSED: <bytes> bytes in <n> allocations, <k> stacks
 *     <bytes> bytes in <n> allocations: leak:load_tile (<path>:<line>)
 *     not used: leak:save_tile (<path>:<line>)
 *   RULES FOR THE GROUPS ABOVE:
 *   leak:^load_tile$ kind=device
 *   PEAK: <bytes> bytes in <n> allocations, <k> stacks, <s>.<ms> s after the start
 *   (incomplete: some of it could not be read: in use, or no memory)
 *     device 0, device memory: <bytes> bytes in <n> allocations
 *   #1: ...
 *   (<m> more groups, <bytes> bytes, not listed here)
 *
 * The rank is there where a launcher set one, the cause but for the end of the process, the size
 * where stacks were sampled: one for as many bytes on average, and what has none is a group "(no
 * call stack)" for each kind of memory. The summary counts what is live now, and is there with
 * zeros when nothing is. A group is what went through the same functions, on one device and of one
 * kind; lines are those of its earliest stack. Sizes are there where they differ; sequence numbers
 * count the allocations of the process, and are one where they are the same; of one thread there is
 * its name, "thread main"; of more than are named the list ends in "...". Stripes are in use where
 * exit was called by a signal handler that interrupted an allocation: it may be missing. What was
 * alive in contexts that were destroyed, with cudaDeviceReset for instance, has its own heading and
 * its own count of groups; without it the heading is not there. What rules suppressed (suppress.h)
 * counts nowhere else, and is not listed; the rules are, those that were for nothing too.
 * `print_rules` adds a rule for each group that is listed, by its innermost function that has a
 * name. The peak is reported where the model has it, by its five largest groups; what leaked is
 * among it. */
void ca_format_text(ca_out_t *out, const ca_model_t *model, bool print_rules);

#endif
