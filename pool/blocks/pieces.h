/* Memory that is ready, and of no use to a large request because other blocks live in its segments:
 * for a report that names what would have kept those apart. */
#ifndef CA_POOL_BLOCKS_PIECES_H
#define CA_POOL_BLOCKS_PIECES_H

#include "pool/arena.h"

#define CA_PIECES_SIZES 40u /* powers of two; the last one stands for all larger ones too */

/* Ready bytes in segments that have a live block, which the driver would otherwise have. */
typedef struct ca_pieces {
    /* By the largest live block of the segment, and the piece: [i] of at most 2^i bytes and more
     * than half of that. */
    size_t beside[CA_PIECES_SIZES][CA_PIECES_SIZES];
    /* By the smallest live block. */
    size_t among[CA_PIECES_SIZES];
} ca_pieces_t;

/* Adds those of an arena. False where its lock stayed in use, as ca_arena_stats_try. */
bool ca_arena_pieces_try(ca_arena_t *arena, ca_pieces_t *pieces);

/* The least power of two, `most` at most, so that segments of their own for all requests up to it
 * (`small`) would have left `bytes` more to the driver; 0: none. */
size_t ca_pieces_small(const ca_pieces_t *pieces, size_t bytes, size_t most);

/* The largest power of two, `least` at least, so that segments of their own for each request above
 * it (`max_split`) would have; 0: none. */
size_t ca_pieces_max_split(const ca_pieces_t *pieces, size_t bytes, size_t least);

/* At least so many bytes of them are whole pages of `page` bytes, wherever they begin: what
 * expandable segments map elsewhere. */
size_t ca_pieces_pages(const ca_pieces_t *pieces, size_t page);

#endif
