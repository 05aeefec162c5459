/* A sorted array: segments number in the hundreds, are added rarely and looked up by bisection.
 * None overlaps another. */
#include "pool/blocks/span.h"

#include <errno.h>
#include <string.h>
#include "base/lock.h"
#include "base/mem.h"
#include "pool/state.h"

typedef struct ca_span {
    uint64_t begin, end;
    ca_arena_t *arena;
} ca_span_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_SPANS);
static ca_span_t *spans;
static size_t count, capacity;

/* The number of spans that begin at or below `address`. */
static size_t upper_bound(uint64_t address)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (spans[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* For two. */
static int reserve_spans(void)
{
    if (spans && count + 2 <= capacity)
        return 0;
    size_t more = capacity ? 2 * capacity : 256;
    ca_span_t *larger = ca_mem_map(more * sizeof *larger);
    if (!larger)
        return -ENOMEM;
    if (spans) {
        memcpy(larger, spans, count * sizeof *larger);
        ca_mem_unmap(spans, capacity * sizeof *spans);
    }
    spans = larger;
    capacity = more;
    return 0;
}

/* Puts the span in place of those from `at` to before `behind`. The caller reserved the space. */
static void put(size_t at, size_t behind, ca_span_t span)
{
    memmove(spans + at + 1, spans + behind, (count - behind) * sizeof *spans);
    spans[at] = span;
    count = count + 1 - (behind - at);
}

int ca_span_add(uint64_t base, size_t bytes, ca_arena_t *arena)
{
    uint64_t end = base + bytes;

    ca_lock_take(&lock);
    int rc = reserve_spans();
    if (rc == 0) {
        size_t at = upper_bound(base), behind;

        /* A span that is there already is of a context that died, which may go unreported: its
         * arena serves nothing any more. */
        for (size_t i = at > 0 ? at - 1 : 0; i < count && spans[i].begin < end; i++)
            if (spans[i].end > base)
                spans[i].arena->stopped = true;
        if (at > 0 && spans[at - 1].begin == base) {
            at--;
        } else if (at > 0 && spans[at - 1].end > base) {
            ca_span_t above = {end, spans[at - 1].end, spans[at - 1].arena};
            spans[at - 1].end = base;
            if (above.end > end)
                put(at, at, above);
        }
        for (behind = at; behind < count && spans[behind].end <= end; behind++)
            continue;
        if (behind < count && spans[behind].begin < end)
            spans[behind].begin = end;
        put(at, behind, (ca_span_t){base, end, arena});
    }
    ca_lock_drop(&lock);
    return rc;
}

void ca_span_remove(uint64_t base, size_t bytes, const ca_arena_t *arena)
{
    ca_lock_take(&lock);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (spans[i].begin < base || spans[i].begin >= base + bytes || spans[i].arena != arena)
            spans[kept++] = spans[i];
    count = kept;
    ca_lock_drop(&lock);
}

ca_arena_t *ca_span_owner(uint64_t base, size_t bytes)
{
    ca_lock_take(&lock);
    size_t at = upper_bound(base + bytes - 1);
    ca_arena_t *arena = at > 0 && spans[at - 1].end > base ? spans[at - 1].arena : NULL;
    ca_lock_drop(&lock);
    return arena;
}

bool ca_pool_owns(uint64_t address)
{
    return ca_span_arena(address) != NULL;
}

void ca_span_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_SPANS);
    spans = NULL;
    count = 0;
    capacity = 0;
}
