/* Marks of thread caches in the arena's epochs; see cache_mark.h. */
#include "pool/cache/cache_mark.h"

#include "pool/cache/cache_hit.h"
#include "pool/state.h"

static void mark_off(ca_arena_t *arena, ca_cache_mark_t **link)
{
    ca_cache_mark_t *mark = *link;

    *link = mark->next;
    ca_slab_give(&arena->marks, mark);
}

static ca_cache_mark_t *mark_of(const ca_epoch_t *epoch, const ca_cache_t *cache)
{
    ca_cache_mark_t *mark = epoch->marks;

    while (mark && mark->cache != cache)
        mark = mark->next;
    return mark;
}

static bool add_mark(ca_arena_t *arena, ca_epoch_t *epoch, ca_cache_t *cache, uint64_t tag)
{
    ca_cache_mark_t *mark = mark_of(epoch, cache);

    if (!mark) {
        mark = ca_slab_take(&arena->marks);
        if (!mark)
            return false;
        mark->next = epoch->marks;
        mark->cache = cache;
        epoch->marks = mark;
    }
    if (mark->tag < tag)
        mark->tag = tag;
    return true;
}

void ca_cache_close_own(ca_arena_t *arena)
{
    ca_cache_t *cache = arena->caches ? ca_cache_own(arena) : NULL;

    if (!cache || !ca_cache_open_count(cache))
        return;
    /* Without host memory it goes on with the same tag, and is closed another time. */
    if (add_mark(arena, arena->plain_fences.open, cache, cache->open))
        cache->open++;
    ca_cache_open_anew(cache);
}

void ca_cache_pass(ca_arena_t *arena, ca_epoch_t *epoch)
{
    while (epoch->marks) {
        ca_cache_mark_t *mark = epoch->marks;
        if (atomic_load_explicit(&mark->cache->passed, memory_order_relaxed) < mark->tag)
            atomic_store_explicit(&mark->cache->passed, mark->tag, memory_order_release);
        mark_off(arena, &epoch->marks);
    }
}

void ca_cache_move_marks(ca_arena_t *arena, ca_epoch_t *from, ca_epoch_t *to)
{
    while (from->marks) {
        ca_cache_mark_t *mark = from->marks, *there = mark_of(to, mark->cache);
        if (there) {
            if (there->tag < mark->tag)
                there->tag = mark->tag;
            mark_off(arena, &from->marks);
        } else {
            from->marks = mark->next;
            mark->next = to->marks;
            to->marks = mark;
        }
    }
}

/* The first of a list whose fence covers what the cache freed with this tag. */
static ca_epoch_t *covering(ca_epoch_t *epoch, const ca_cache_t *cache, uint64_t tag)
{
    for (; epoch; epoch = epoch->next) {
        const ca_cache_mark_t *mark = mark_of(epoch, cache);
        if (mark && mark->tag >= tag)
            return epoch;
    }
    return NULL;
}

/* Fences pass in order, so the first will do. */
ca_epoch_t *ca_cache_epoch_of(const ca_arena_t *arena, const ca_cache_t *cache, uint64_t tag)
{
    ca_epoch_t *epoch = NULL;

    if (tag != cache->open)
        epoch = covering(arena->plain_fences.closed.head, cache, tag);
    if (!epoch && tag != cache->open)
        epoch = covering(arena->plain_fences.closing.head, cache, tag);
    return epoch ? epoch : arena->plain_fences.open;
}

static void forget_marks(ca_arena_t *arena, ca_epoch_t *epoch, const ca_cache_t *cache)
{
    for (; epoch; epoch = epoch->next)
        for (ca_cache_mark_t **link = &epoch->marks; *link;)
            if (!cache || (*link)->cache == cache)
                mark_off(arena, link);
            else
                link = &(*link)->next;
}

void ca_cache_forget_marks(ca_arena_t *arena, const ca_cache_t *cache)
{
    forget_marks(arena, arena->plain_fences.open, cache);
    forget_marks(arena, arena->plain_fences.closing.head, cache);
    forget_marks(arena, arena->plain_fences.closed.head, cache);
}
