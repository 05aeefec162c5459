/* The shim's statistics, for test programs that must know whether there is a shim: the public
 * functions are weak, so that the program also starts without it. */
#ifndef CA_TESTS_PRELOAD_SHIM_STATS_H
#define CA_TESTS_PRELOAD_SHIM_STATS_H

#include <stdbool.h>
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"

/* False where no shim is preloaded. */
static inline bool shim_stats(cachealloc_stats_t *stats)
{
    *stats = (cachealloc_stats_t){.size = sizeof(*stats)};
    return cachealloc_stats && cachealloc_stats(stats) == 0;
}

#endif
