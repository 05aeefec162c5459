/* Ready blocks by size: two-level segregated fit.
 *
 * A row per power of two of granules, 32 sub-bins in each row, a bitmap over the rows and one over
 * each row's sub-bins: insert and remove are constant time, and so is the step from a request to
 * the next bin that has something. Below 64 granules (32 KiB) a bin holds one exact size; above, a
 * bin spans 1/32 of its power of two, so a few blocks of it are compared and the tightest taken.
 *
 * The owner's lock guards it. Knows nothing of arenas, segments or epochs. */
#ifndef CA_POOL_BLOCKS_BIN_H
#define CA_POOL_BLOCKS_BIN_H

#include "pool/blocks/block.h"

#define CA_BIN_SUBS 32u
#define CA_BIN_ROWS 45u                 /* up to 2^57 bytes, an address space */
#define CA_BYTES_MOST ((size_t)1 << 40) /* larger requests are refused before they get here */
#define CA_BIN_COMPARES 16u             /* blocks of one bin that an allocation compares */

typedef struct ca_bins {
    uint64_t rows;
    uint32_t subs[CA_BIN_ROWS];
    ca_block_t *heads[CA_BIN_ROWS][CA_BIN_SUBS];
} ca_bins_t;

/* Row and sub-bin of a block of `bytes`. */
void ca_bin_of(size_t bytes, unsigned *row, unsigned *sub);

/* Moves to the next bin in use after (row, sub). */
bool ca_bins_next(const ca_bins_t *bins, unsigned *row, unsigned *sub);

void ca_bins_insert(ca_bins_t *bins, ca_block_t *block);
void ca_bins_remove(ca_bins_t *bins, ca_block_t *block);

/* Gives a block in the bins another size. */
void ca_bins_resize(ca_bins_t *bins, ca_block_t *block, size_t bytes);

/* The tightest block found that holds `bytes` at `alignment`, comparing at most `compares` blocks
 * of a bin. Only with an unbounded `compares` does NULL mean that there is none. */
ca_block_t *ca_bins_find(const ca_bins_t *bins, size_t bytes, size_t alignment, unsigned compares);

/* Of the blocks of just that size, aligned, the one that was freed last (nearly: a good hundred are
 * compared). NULL when there is none. */
ca_block_t *ca_bins_find_same(const ca_bins_t *bins, size_t bytes, size_t alignment);

/* Bytes of the largest block, or 0. */
size_t ca_bins_largest(const ca_bins_t *bins);

#endif
