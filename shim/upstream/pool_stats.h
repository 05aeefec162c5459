/* Figures of all arenas together. */
#ifndef CA_SHIM_UPSTREAM_POOL_STATS_H
#define CA_SHIM_UPSTREAM_POOL_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include "pool/arena.h"
#include "pool/blocks/pieces.h"

/* Adds up the living arenas (of device memory); reserved bytes and their peak are the process's,
 * the peak of live bytes is a sum of the contexts' own. False: an arena was in use (exit may be
 * called from a signal handler, over a frame that holds its lock) and is left out. */
bool ca_pool_stats(ca_arena_stats_t *total, size_t *contexts);

/* The same of one device, with what its arenas reserve, but without the peak of that. */
bool ca_pool_stats_on(unsigned device, ca_arena_stats_t *total);

/* What of its arenas is ready in pieces, between blocks that live. */
bool ca_pool_stats_pieces(unsigned device, ca_pieces_t *pieces);

/* The same as ca_pool_stats_on, of pinned host memory. */
bool ca_pool_stats_pinned(ca_arena_stats_t *total);

#endif
