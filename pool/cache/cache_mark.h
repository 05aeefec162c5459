/* What thread caches freed, in the arena's epochs. A cache keeps its blocks, and puts a tag on what
 * it frees; an epoch has a mark of each cache whose frees its fence covers, with the tag up to
 * which it does. Once the fence has passed, so has the tag. The arena's lock is held in all
 * of these. */
#ifndef CA_POOL_CACHE_CACHE_MARK_H
#define CA_POOL_CACHE_CACHE_MARK_H

#include "pool/cache/cache_state.h"
#include "pool/fence/epoch.h"

/* "All that this cache freed with a tag up to `tag`". */
typedef struct ca_cache_mark {
    struct ca_cache_mark *next;
    ca_cache_t *cache;
    uint64_t tag;
} ca_cache_mark_t;

/* The calling thread is about to close the arena's open epoch: what the thread's cache holds is
 * closed with it. */
void ca_cache_close_own(ca_arena_t *arena);

/* The epoch has passed: its marks raise what has passed of their caches, and are taken off. */
void ca_cache_pass(ca_arena_t *arena, ca_epoch_t *epoch);

/* `from` is about to end, its blocks are in `to`: so are its marks. */
void ca_cache_move_marks(ca_arena_t *arena, ca_epoch_t *from, ca_epoch_t *to);

/* The epoch that a block in the cache waits for; the open one if nothing else. */
ca_epoch_t *ca_cache_epoch_of(const ca_arena_t *arena, const ca_cache_t *cache, uint64_t tag);

/* No epoch has a mark of this cache any more; NULL: of any, because they serve other arenas by the
 * time they would hear of it. */
void ca_cache_forget_marks(ca_arena_t *arena, const ca_cache_t *cache);

#endif
