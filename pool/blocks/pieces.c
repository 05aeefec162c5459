/* See pieces.h. */
#include "pool/blocks/pieces.h"

#include "base/lock.h"
#include "pool/blocks/block.h"
#include "pool/state.h"

/* i: bytes <= 2^i. */
static unsigned size_of(size_t bytes)
{
    unsigned i = bytes > 1 ? 64 - (unsigned)__builtin_clzll(bytes - 1) : 0;

    return i < CA_PIECES_SIZES ? i : CA_PIECES_SIZES - 1;
}

static void add_segment(const ca_segment_t *segment, ca_pieces_t *pieces)
{
    size_t largest = 0, smallest = SIZE_MAX;

    for (const ca_block_t *block = segment->first; block; block = ca_block_upper(block)) {
        if (ca_block_state(block) != CA_BLOCK_LIVE)
            continue;
        size_t bytes = ca_block_size(block);
        largest = bytes > largest ? bytes : largest;
        smallest = bytes < smallest ? bytes : smallest;
    }
    if (!largest)
        return;
    for (const ca_block_t *block = segment->first; block; block = ca_block_upper(block)) {
        if (ca_block_state(block) != CA_BLOCK_READY)
            continue;
        pieces->beside[size_of(largest)][size_of(ca_block_size(block))] += ca_block_size(block);
        pieces->among[size_of(smallest)] += ca_block_size(block);
    }
}

bool ca_arena_pieces_try(ca_arena_t *arena, ca_pieces_t *pieces)
{
    if (!ca_lock_take_timed(&arena->lock))
        return false;
    for (const ca_segment_t *s = arena->retired ? NULL : arena->segments; s; s = s->next)
        add_segment(s, pieces);
    ca_lock_drop(&arena->lock);
    return true;
}

size_t ca_pieces_small(const ca_pieces_t *pieces, size_t bytes, size_t most)
{
    for (unsigned t = 9; t < CA_PIECES_SIZES && (size_t)1 << t <= most; t++) {
        size_t whole = 0;
        for (unsigned largest = 0; largest <= t; largest++)
            for (unsigned piece = t + 1; piece < CA_PIECES_SIZES; piece++)
                whole += pieces->beside[largest][piece];
        if (whole >= bytes)
            return (size_t)1 << t;
    }
    return 0;
}

size_t ca_pieces_max_split(const ca_pieces_t *pieces, size_t bytes, size_t least)
{
    size_t whole = 0;

    /* A block of just 2^t bytes is not above that. */
    for (unsigned t = CA_PIECES_SIZES - 1; t > 0 && (size_t)1 << (t - 1) >= least; t--) {
        whole += pieces->among[t];
        if (whole >= bytes)
            return (size_t)1 << (t - 1);
    }
    return 0;
}

/* A piece loses less than a page, at its ends together. */
size_t ca_pieces_pages(const ca_pieces_t *pieces, size_t page)
{
    size_t whole = 0;

    for (unsigned piece = 1; piece < CA_PIECES_SIZES; piece++) {
        size_t least = (size_t)1 << (piece - 1), bytes = 0;
        if (least < page)
            continue;
        for (unsigned largest = 0; largest < CA_PIECES_SIZES; largest++)
            bytes += pieces->beside[largest][piece];
        whole += bytes - (bytes + least - 1) / least * page;
    }
    return whole;
}
