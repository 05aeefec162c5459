/* Rounding of requests; see rounding.h.
 *
 * Coarser sizes waste memory inside of blocks, and make freed blocks fit later requests of about
 * the same size. Which is worth more depends on the program, so both rules are off by default. */
#include "pool/blocks/rounding.h"

/* The least class that holds `bytes`, or 0. The classes come as the user wrote them; there are a
 * few dozen at most, in one or two cache lines: looking at all is as quick as a search. */
static size_t class_of(const ca_arena_params_t *params, size_t bytes)
{
    size_t least = 0;

    for (size_t i = 0; i < params->size_class_count; i++) {
        size_t one = params->size_classes[i];
        if (one >= bytes && (!least || one < least))
            least = one;
    }
    return least;
}

/* `steps` is a power of two. With 4 of them 1 MiB is followed by 1.25, 1.5, 1.75 and 2 MiB. */
static size_t stepped(size_t bytes, unsigned steps)
{
    size_t power = (size_t)1 << (63 - __builtin_clzll(bytes));

    return power > steps ? ca_round_up(bytes, power / steps) : bytes;
}

size_t ca_round_coarsely(const ca_arena_params_t *params, size_t bytes)
{
    size_t classed = class_of(params, bytes);

    if (classed)
        return classed;
    return params->roundup ? stepped(bytes, params->roundup) : bytes;
}
