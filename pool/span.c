/* A sorted array: segments number in the hundreds, are added rarely and looked up by bisection. */
#include "pool/span.h"

#include <errno.h>
#include <string.h>
#include "config/lock.h"
#include "config/mem.h"
#include "pool/arena.h"

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

static int make_room(void)
{
    if (count < capacity)
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

int ca_span_add(uint64_t base, size_t bytes, ca_arena_t *arena)
{
    ca_lock_take(&lock);
    int rc = make_room();
    if (rc == 0) {
        size_t at = upper_bound(base);
        memmove(spans + at + 1, spans + at, (count - at) * sizeof *spans);
        spans[at] = (ca_span_t){base, base + bytes, arena};
        count++;
    }
    ca_lock_drop(&lock);
    return rc;
}

/* The arena's segment that begins at `base`, or NULL. */
static ca_span_t *find(uint64_t base, const ca_arena_t *arena)
{
    size_t at = upper_bound(base);

    /* A context that dies may leave a range with the same base: we are told late, or not at all. */
    while (at > 0 && spans[at - 1].begin == base && spans[at - 1].arena != arena)
        at--;
    return at > 0 && spans[at - 1].begin == base ? &spans[at - 1] : NULL;
}

void ca_span_remove(uint64_t base, const ca_arena_t *arena)
{
    ca_lock_take(&lock);
    ca_span_t *span = find(base, arena);
    if (span) {
        count--;
        memmove(span, span + 1, (size_t)(spans + count - span) * sizeof *spans);
    }
    ca_lock_drop(&lock);
}

void ca_span_move(uint64_t base, const ca_arena_t *from, ca_arena_t *to)
{
    ca_lock_take(&lock);
    ca_span_t *span = find(base, from);
    if (span)
        span->arena = to;
    ca_lock_drop(&lock);
}

ca_arena_t *ca_span_arena(uint64_t address)
{
    ca_lock_take(&lock);
    size_t at = upper_bound(address);
    ca_arena_t *arena = at > 0 && address < spans[at - 1].end ? spans[at - 1].arena : NULL;
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
