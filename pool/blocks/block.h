/* A block and the segment that it is cut from. Host metadata only; the arena's lock guards all of
 * it. A block's object is handed to the caller as its opaque handle while the block is live. */
#ifndef CA_POOL_BLOCKS_BLOCK_H
#define CA_POOL_BLOCKS_BLOCK_H

#include <stddef.h>
#include "base/record.h"
#include "pool/arena.h"

typedef enum {
    CA_BLOCK_LIVE = 1,
    CA_BLOCK_PENDING,
    CA_BLOCK_READY,
    CA_BLOCK_CACHED,   /* in a thread's cache: the arena counts it as live */
    CA_BLOCK_EXPORTED, /* freed, and kept as it is: see pool/range/export.h */
    CA_BLOCK_LENT, /* of a range: its memory is used by other addresses: see pool/range/range.h */
    CA_BLOCK_HOLE, /* addresses without memory */
} ca_block_state_t;

/* Which requests a segment serves. Each kind has bins of its own, so that none is cut up for
 * another's requests. */
typedef enum {
    CA_POOL_MAIN,
    CA_POOL_OVERSIZE, /* above max_split, or dedicated: a single block for each, never split */
    CA_POOL_SMALL,    /* up to `small` */
    CA_POOLS,
    CA_POOL_VIEW = CA_POOLS, /* other addresses of a range's memory, see pool/range/view.h: a single
                                block, never split, and in no bin */
} ca_pool_t;

typedef struct ca_segment ca_segment_t;
typedef struct ca_epoch ca_epoch_t;

/* What the fast path touches. It has a cache line of its own, so that threads whose blocks are
 * beside each other do not wait for each other's lines. The rest is in the block's place
 * (ca_block_place). Pointers take 48 bits (CA_MEM_POINTER_BITS), which leaves bits for other
 * fields: the functions below read and set them. */
struct ca_block {
    union {
        ca_record_t record; /* what is known of it while it is live: the caller's */
        struct {            /* over the record's payload, while it is not */
            uint64_t address;
            uint64_t record_state;
            ca_block_t *next; /* of its bin, or its cache's class */
            union {
                uint64_t tag; /* when cached: see pool/cache/cache.h */
                struct {
                    uint64_t prev : 48; /* in its bin */
                    uint64_t epoch_low : 16;
                };
            };
            uint64_t earlier : 48; /* when pending, in its epoch */
            uint64_t epoch_middle : 16;
            uint64_t later : 48;
            uint64_t epoch_high : 16;
        };
    };
    ca_arena_t *arena;
    uint32_t granules; /* its size; see ca_block_size */
    union {
        struct {
            uint8_t state; /* ca_block_state_t; see ca_block_state */
            bool touched;  /* some part of it was handed out before */
        };
        uint16_t state_touched; /* see ca_block_set_state */
    };
    bool exported; /* while live: another process may see it */
    union {
        uint8_t freed_high; /* see ca_block_freed */
        uint8_t class_mark; /* while live or cached: see ca_cache_class_mark */
    };
};

/* Where a block lies. */
typedef struct ca_block_place {
    ca_segment_t *segment;
    ca_block_t *upper;   /* neighbour in the segment, by address */
    uint64_t lower : 48; /* the other one */
    uint64_t freed_low : 16;
} ca_block_place_t;

#define CA_BLOCK_PAGE ((size_t)4096)
#define CA_BLOCK_PAGE_BLOCKS 46u

/* Blocks, and behind them their places. A chunk is a row of these. */
typedef struct ca_block_page {
    ca_block_t blocks[CA_BLOCK_PAGE_BLOCKS];
    ca_block_place_t places[CA_BLOCK_PAGE_BLOCKS];
    struct ca_block_page *older; /* the chunk before this one; of a chunk's first page */
    size_t pages;                /* of the chunk; as older */
    unsigned color;              /* whose blocks these are: see ca_block_slab_t */
    unsigned used;               /* of its blocks, from the first on */
} ca_block_page_t;

_Static_assert(offsetof(struct ca_block, arena) == sizeof(ca_record_t),
               "the links lie over the payload");
_Static_assert(sizeof(struct ca_block) == 64, "a cache line");
_Static_assert(offsetof(struct ca_block, touched) == offsetof(struct ca_block, state) + 1 &&
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "see ca_block_set_state");
_Static_assert(sizeof(ca_block_page_t) <= CA_BLOCK_PAGE, "see tests/unit/test_metadata.c");

#define CA_BLOCK_MOST ((size_t)UINT32_MAX * CA_GRANULE) /* bytes */

static inline ca_block_page_t *ca_block_page(const ca_block_t *block)
{
    return (ca_block_page_t *)((uintptr_t)block & ~(uintptr_t)(CA_BLOCK_PAGE - 1));
}

static inline ca_block_place_t *ca_block_place(const ca_block_t *block)
{
    ca_block_page_t *page = ca_block_page(block);
    return &page->places[block - page->blocks];
}

static inline size_t ca_block_size(const ca_block_t *block)
{
    return (size_t)block->granules * CA_GRANULE;
}

/* A multiple of CA_GRANULE, up to CA_BLOCK_MOST. */
static inline void ca_block_set_size(ca_block_t *block, size_t bytes)
{
    block->granules = (uint32_t)(bytes / CA_GRANULE);
}

/* ca_block_LINK and ca_block_set_LINK, for the links of 48 bits. */
#define CA_BLOCK_LINK(link)                                                                        \
    static inline ca_block_t *ca_block_##link(const ca_block_t *block)                             \
    {                                                                                              \
        return (ca_block_t *)(uintptr_t)block->link;                                               \
    }                                                                                              \
    static inline void ca_block_set_##link(ca_block_t *block, const ca_block_t *to)                \
    {                                                                                              \
        block->link = (uintptr_t)to;                                                               \
    }
CA_BLOCK_LINK(prev)
CA_BLOCK_LINK(earlier)
CA_BLOCK_LINK(later)
#undef CA_BLOCK_LINK

static inline ca_block_t *ca_block_upper(const ca_block_t *block)
{
    return ca_block_place(block)->upper;
}

static inline ca_block_t *ca_block_lower(const ca_block_t *block)
{
    return (ca_block_t *)(uintptr_t)ca_block_place(block)->lower;
}

static inline void ca_block_set_lower(const ca_block_t *block, const ca_block_t *to)
{
    ca_block_place(block)->lower = (uintptr_t)to;
}

static inline ca_segment_t *ca_block_segment(const ca_block_t *block)
{
    return ca_block_place(block)->segment;
}

/* Of a pending block. */
static inline ca_epoch_t *ca_block_epoch(const ca_block_t *block)
{
    return (ca_epoch_t *)(uintptr_t)((uint64_t)block->epoch_high << 32 |
                                     (uint64_t)block->epoch_middle << 16 | block->epoch_low);
}

static inline void ca_block_set_epoch(ca_block_t *block, const ca_epoch_t *epoch)
{
    uint64_t bits = (uintptr_t)epoch;
    block->epoch_low = bits & 0xffff;
    block->epoch_middle = bits >> 16 & 0xffff;
    block->epoch_high = bits >> 32;
}

#define CA_BLOCK_FREED_BITS 24

/* The arena's count of operations when it was freed, cut off; of a block that is not live. */
static inline uint32_t ca_block_freed(const ca_block_t *block)
{
    return (uint32_t)block->freed_high << 16 | (uint32_t)ca_block_place(block)->freed_low;
}

static inline void ca_block_set_freed(ca_block_t *block, uint64_t operations)
{
    ca_block_place(block)->freed_low = operations & 0xffff;
    block->freed_high = operations >> 16 & 0xff;
}

/* Of two blocks, whether the first was freed later, where not too many were between. */
static inline bool ca_block_freed_after(const ca_block_t *block, const ca_block_t *other)
{
    uint32_t since = ca_block_freed(block) - ca_block_freed(other);
    return (int32_t)(since << (32 - CA_BLOCK_FREED_BITS)) > 0;
}

struct ca_segment {
    uint64_t base; /* as obtained upstream */
    size_t bytes;
    size_t usable;       /* bytes tiled by blocks: less only where the base is badly aligned */
    ca_block_t *first;   /* lowest block */
    size_t live_blocks;  /* of its blocks; those in caches too */
    size_t live;         /* bytes of these */
    size_t asked;        /* the request that it was obtained for; 0 when unknown */
    size_t stranded;     /* bytes; see mixed.h */
    uint64_t idle_since; /* arena->operations when its last live block was freed */
    uint32_t idle_tick;  /* arena->tick at that time */
    uint32_t refused;    /* the round of giving back in which upstream would not have it, or 0 */
    ca_pool_t pool;
    bool mixed;
    bool exported;        /* another process may have it mapped: never goes back */
    bool ranged;          /* a range or a view: its memory goes page by page */
    struct ca_view *view; /* NULL: it has memory of its own */
    ca_segment_t *prev, *next;
};

#define CA_BLOCK_COLORS 4u
#define CA_BLOCK_KEPT (CA_BLOCK_COLORS - 1)

/* The block objects of one arena, recycled through free lists. A chunk has the objects of one
 * color: those that one thread made, and each fourth thread besides. The fast path writes its
 * block, and processors fetch the next lines ahead, of the next page too, which takes them away
 * from the thread that is using them: so a page has one color. */
typedef struct ca_block_slab {
    ca_block_page_t *chunks; /* while `bytes` is 0: zeros of a life before, or NULL */
    struct {
        ca_block_t *spare;
        ca_block_page_t *page; /* its newest; may be used up */
        size_t left;           /* pages behind that one in its chunk */
    } colors[CA_BLOCK_COLORS];
    size_t made;                          /* objects, in use or spare */
    size_t live;                          /* objects in use */
    size_t bytes;                         /* of all chunks */
    ca_block_page_t *kept[CA_BLOCK_KEPT]; /* zeros of lives before, for colors but the first */
    unsigned kept_count;
} ca_block_slab_t;

ca_block_t *ca_block_new(ca_block_slab_t *slab); /* NULL when there is no host memory */
void ca_block_delete(ca_block_slab_t *slab, ca_block_t *block);

/* Gives the pages back but keeps the addresses: a thread that still has a block's pointer reads
 * zeros. The first chunk is for the blocks of the arena's next life, if it has one. */
void ca_block_discard(ca_block_slab_t *slab);

/* Of any block: between live and cached it changes without the lock. */
static inline ca_block_state_t ca_block_state(const ca_block_t *block)
{
    return (ca_block_state_t)__atomic_load_n(&block->state, __ATOMIC_RELAXED);
}

/* Of a block that is handed out, or was: it is touched too. One store sets both, without the lock,
 * because the arena reads the states of neighbours meanwhile. */
static inline void ca_block_set_state(ca_block_t *block, ca_block_state_t state)
{
    __atomic_store_n(&block->state_touched, (uint16_t)((unsigned)state | 1u << 8),
                     __ATOMIC_RELAXED);
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
