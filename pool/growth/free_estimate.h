/* What the driver said that it has left, and how long one goes by that: while it was long more than
 * is wanted, so that what others obtain meanwhile changes nothing. On hardware to ask takes about
 * as long as to allocate (tests/gpu/results, cuMemGetInfo). */
#ifndef CA_POOL_GROWTH_FREE_ESTIMATE_H
#define CA_POOL_GROWTH_FREE_ESTIMATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CA_LOOK_SERVES_NS 10000000u

/* All zero: never asked. Bytes. */
typedef struct ca_free_estimate {
    size_t found;   /* SIZE_MAX where the driver does not know, 0 where it has refused since */
    size_t held;    /* what whoever looks had obtained by then */
    uint64_t until; /* ca_clock_ns */
} ca_free_estimate_t;

/* What is left by now, where whoever looked holds `held`. */
static inline size_t ca_free_estimate_left(const ca_free_estimate_t *look, size_t held)
{
    if (look->found == SIZE_MAX)
        return SIZE_MAX;
    return look->found + look->held > held ? look->found + look->held - held : 0;
}

/* Whether obtaining `bytes` may go by it at the time `now`: half of what was found is there then,
 * and twice of what is to be left. */
static inline bool ca_free_estimate_serves(const ca_free_estimate_t *look, size_t held,
                                           size_t bytes, size_t leave, uint64_t now)
{
    size_t left = ca_free_estimate_left(look, held);

    return now < look->until && left >= bytes && left - bytes >= look->found / 2 &&
           (left - bytes) / 2 >= leave;
}

#endif
