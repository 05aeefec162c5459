/* A block and the segment that it is cut from. Host metadata only; the arena's lock guards all of
 * it. A block's object is handed to the caller as its opaque handle while the block is live. */
#ifndef CA_POOL_BLOCK_H
#define CA_POOL_BLOCK_H

#include <stddef.h>
#include "config/slot.h"
#include "pool/arena.h"

typedef enum {
    CA_BLOCK_LIVE = 1,
    CA_BLOCK_PENDING,
    CA_BLOCK_READY,
    CA_BLOCK_CACHED,   /* in a thread's cache: live to the heap, which does not ask for it back */
    CA_BLOCK_EXPORTED, /* freed, and kept as it is: see pool/export.h */
} ca_block_state_t;

/* Which requests a segment serves. Each kind has bins of its own, so that none is cut up for
 * another's requests. */
typedef enum {
    CA_POOL_MAIN,
    CA_POOL_OVERSIZE, /* above max_split, or dedicated: a single block for each, never split */
    CA_POOL_SMALL,    /* up to `small` */
    CA_POOLS,
} ca_pool_t;

typedef struct ca_segment ca_segment_t;
typedef struct ca_epoch ca_epoch_t;

struct ca_block {
    union {
        ca_slot_t slot; /* what is known of it while it is live: the caller's */
        struct {        /* over the slot's note, while it is not */
            uint64_t address;
            uint64_t slot_word;
            ca_block_t *prev, *next; /* its bin */
            union {
                ca_epoch_t *epoch; /* when pending */
                uint64_t tag;      /* when cached: see pool/cache.h */
            };
            ca_block_t *earlier, *later; /* in that epoch */
        };
    };
    ca_arena_t *arena;
    size_t bytes;
    ca_segment_t *segment;
    ca_block_t *lower, *upper; /* neighbours in the segment, by address */
    uint8_t state;             /* ca_block_state_t; see ca_block_state */
    bool touched;              /* some part of it was handed out before */
    bool exported;             /* while live: another process may see it */
    uint32_t freed;            /* the arena's count of operations when it was freed, cut off */
};

_Static_assert(offsetof(struct ca_block, later) + sizeof(void *) == sizeof(ca_slot_t),
               "the links lie over the note");

struct ca_segment {
    uint64_t base; /* as obtained upstream */
    size_t bytes;
    size_t usable;       /* bytes tiled by blocks: less only where the base is badly aligned */
    ca_block_t *first;   /* lowest block */
    size_t live_blocks;  /* of its blocks; those in caches too */
    uint64_t idle_since; /* arena->operations when its last live block was freed */
    uint32_t idle_tick;  /* arena->tick at that time */
    uint32_t refused;    /* the round of giving back in which upstream would not have it, or 0 */
    ca_pool_t pool;
    bool exported; /* another process may have it mapped: never goes back */
    ca_segment_t *prev, *next;
};

/* The block objects of one arena, recycled through a free list. */
typedef struct ca_block_slab {
    struct ca_block_chunk *chunks;
    ca_block_t *spare;
    size_t next; /* bytes handed out of the newest chunk */
    size_t live; /* objects in use */
} ca_block_slab_t;

ca_block_t *ca_block_new(ca_block_slab_t *slab); /* NULL when there is no host memory */
void ca_block_delete(ca_block_slab_t *slab, ca_block_t *block);

/* Gives the pages back but keeps the addresses: whoever still has a block's pointer reads zeros. */
void ca_block_discard(ca_block_slab_t *slab);

/* Of any block: between live and cached it changes without the lock. */
static inline ca_block_state_t ca_block_state(const ca_block_t *block)
{
    return (ca_block_state_t)__atomic_load_n(&block->state, __ATOMIC_RELAXED);
}

/* A block is handed out: whether some part of it was before. Without the lock, where it comes from
 * a cache. */
static inline bool ca_block_touch(ca_block_t *block)
{
    bool before = __atomic_load_n(&block->touched, __ATOMIC_RELAXED);

    if (!before)
        __atomic_store_n(&block->touched, true, __ATOMIC_RELAXED);
    return before;
}

/* All of what a hit reads. NULL will do. */
static inline void ca_block_prefetch(const ca_block_t *block)
{
    if (!block)
        return;
    __builtin_prefetch(block);
    __builtin_prefetch(&block->state);
}

static inline size_t ca_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

/* What a block of `bytes` (rounded) must be aligned to. */
static inline size_t ca_block_alignment(size_t bytes)
{
    return bytes >= CA_PAGE_FROM ? CA_PAGE : CA_GRANULE;
}

/* Bytes to skip at the front of `block` to reach that alignment. */
static inline size_t ca_block_padding(const ca_block_t *block, size_t alignment)
{
    return (size_t)(-block->address) & (alignment - 1);
}

#endif
