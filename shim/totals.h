/* Figures of all arenas together. */
#ifndef CA_SHIM_TOTALS_H
#define CA_SHIM_TOTALS_H

#include <stddef.h>
#include "pool/arena.h"

/* Adds up the arenas in service; peaks are sums of the arenas' own. Returns how many there are. */
size_t ca_totals(ca_arena_stats_t *total);

#endif
