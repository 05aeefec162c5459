/* See mixed.h. */
#include "pool/blocks/mixed.h"

/* Where the size of the device is not known there is no bound. */
static size_t stranded_most(const ca_arena_t *arena, bool round)
{
    size_t whole = ca_arena_whole(arena);
    size_t part =
        whole / CA_MIXED_SHARE > CA_SEGMENT_FIRST ? whole / CA_MIXED_SHARE : CA_SEGMENT_FIRST;

    if (!round)
        return part;
    return arena->free_bytes > whole / 2 ? SIZE_MAX : part + part / 2;
}

bool ca_mixed_allows_other(const ca_arena_t *arena, const ca_segment_t *segment, size_t bytes)
{
    /* It came round with no more live than when it last grew for this. */
    bool round = arena->mixed_again && arena->live_peak <= arena->mixed_peak;
    size_t most = stranded_most(arena, round);

    if (!round && bytes > most / CA_MIXED_LARGE)
        return segment->bytes - bytes <= bytes / CA_MIXED_SHARE;
    return segment->mixed || arena->stranded + segment->bytes - segment->live - bytes <= most;
}

void ca_mixed_live(ca_arena_t *arena, ca_segment_t *segment, size_t bytes)
{
    segment->live += bytes;
    size_t rest = segment->bytes - segment->live;
    if (ca_mixed_at_home(segment, bytes) || (segment->mixed && rest >= segment->stranded))
        return;
    arena->stranded += rest - segment->stranded;
    segment->stranded = rest;
    segment->mixed = true;
}

void ca_mixed_unlive(ca_arena_t *arena, ca_segment_t *segment, size_t bytes)
{
    segment->live -= bytes;
    if (segment->live)
        return;
    arena->stranded -= segment->stranded;
    segment->stranded = 0;
    segment->mixed = false;
}

void ca_mixed_grows(ca_arena_t *arena)
{
    arena->mixed_again = arena->live_peak <= arena->mixed_peak;
    arena->mixed_peak = arena->live_peak;
}

/* --- apart ------------------------------------------------------------------------------------ */

void ca_apart_small(ca_arena_t *arena, size_t bytes)
{
    if (bytes > arena->params.max_split)
        bytes = arena->params.max_split;
    if (arena->params.small < bytes) /* others read it without the lock, as the next one */
        __atomic_store_n(&arena->params.small, bytes, __ATOMIC_RELAXED);
}

void ca_apart_refused(ca_arena_t *arena, size_t bytes)
{
    size_t pieces = 0;

    if (arena->apart || arena->range) /* pages go back whatever lives beside them */
        return;
    for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
        pieces += segment->live_blocks ? segment->bytes - segment->live : 0;
    if (pieces < bytes)
        return;
    /* A `max_split` that was chosen stays as it is. */
    if (arena->params.max_split == SIZE_MAX) {
        __atomic_store_n(&arena->params.max_split, CA_SEGMENT_UNIT - 1, __ATOMIC_RELAXED);
        arena->apart = true;
    }
    ca_apart_small(arena, CA_SEGMENT_UNIT - 1);
}
