/* Where the pages of `stats_page:true` lie, and what says whose they are. */
#ifndef CA_SHIM_LIFE_STATS_PAGE_H
#define CA_SHIM_LIFE_STATS_PAGE_H

#include <stddef.h>
#include <stdint.h>

/* With the configuration: later the program may be changing its environment. */
void ca_stats_page_configure(void);

/* The path of this process's page, in a folder that is its user's alone and is made where it is
 * missing; what a process that had the same id left there is removed. 0 or a negative errno; then
 * the path is that of the folder. */
int ca_stats_page_path(char *path, size_t bytes);

/* When this process began, in clock ticks since the boot: what distinguishes it from a later one of
 * the same id. 0 where /proc does not say. */
uint64_t ca_stats_page_began(void);

#endif
