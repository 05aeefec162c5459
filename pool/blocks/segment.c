/* Segments and their blocks; see segment.h. */
#include "pool/blocks/segment.h"

#include <limits.h>
#include "base/counters.h"
#include "base/inline.h"
#include "pool/cache/cache_hit.h"
#include "pool/fence/epoch.h"
#include "pool/range/export.h"
#include "pool/growth/giving.h"
#include "pool/blocks/mixed.h"
#include "pool/blocks/span.h"
#include "pool/state.h"
#include "pool/range/view.h"

static ca_bins_t *bins_of(ca_arena_t *arena, const ca_segment_t *segment)
{
    return &arena->bins[segment->pool];
}

ca_pool_t ca_pool_of(const ca_arena_t *arena, size_t bytes)
{
    if (ca_export_dedicates(&arena->params, bytes))
        return CA_POOL_OVERSIZE;
    if (bytes <= __atomic_load_n(&arena->params.small, __ATOMIC_RELAXED))
        return CA_POOL_SMALL;
    return bytes > __atomic_load_n(&arena->params.max_split, __ATOMIC_RELAXED) ? CA_POOL_OVERSIZE
                                                                               : CA_POOL_MAIN;
}

/* A block that was not in use. Its record's state stays as it is, empty: a thread that found the
 * record by an address that it no longer has may be reading it. */
static void describe(ca_block_t *block, uint64_t address, size_t bytes, ca_segment_t *segment,
                     ca_arena_t *arena)
{
    ca_record_set_address(&block->record, address);
    block->next = NULL;
    ca_block_set_prev(block, NULL);
    ca_block_set_epoch(block, NULL);
    ca_block_set_earlier(block, NULL);
    ca_block_set_later(block, NULL);
    block->arena = arena;
    ca_block_set_size(block, bytes);
    ca_block_place(block)->segment = segment;
    ca_block_set_lower(block, NULL);
    ca_block_place(block)->upper = NULL;
    block->touched = block->exported = false;
    ca_block_set_freed(block, 0);
    block->state = 0;
}

static void link_segment(ca_arena_t *arena, ca_segment_t *segment)
{
    segment->prev = NULL;
    segment->next = arena->segments;
    if (segment->next)
        segment->next->prev = segment;
    arena->segments = segment;
    arena->segment_count++;
    arena->vacant += segment->live_blocks == 0;
}

void ca_segment_unlink(ca_arena_t *arena, ca_segment_t *segment)
{
    if (segment->prev)
        segment->prev->next = segment->next;
    else
        arena->segments = segment->next;
    if (segment->next)
        segment->next->prev = segment->prev;
    arena->segment_count--;
    arena->vacant -= segment->live_blocks == 0;
}

ca_segment_t *ca_segment_place(ca_arena_t *arena, uint64_t base, size_t bytes, ca_pool_t pool)
{
    /* Blocks begin on a page and end on a granule, whatever upstream returned. */
    uint64_t begin = (base + CA_PAGE - 1) & ~(uint64_t)(CA_PAGE - 1);
    uint64_t end = (base + bytes) & ~(uint64_t)(CA_GRANULE - 1);

    if (end <= begin || end - begin > CA_BLOCK_MOST)
        return NULL;
    ca_segment_t *segment = ca_slab_take(&arena->segment_slab);
    ca_block_t *block = ca_block_new(&arena->blocks);
    if (!segment || !block || ca_span_add(base, bytes, arena) < 0) {
        if (segment)
            ca_slab_give(&arena->segment_slab, segment);
        if (block)
            ca_block_delete(&arena->blocks, block);
        return NULL;
    }
    *segment = (ca_segment_t){.base = base,
                              .bytes = bytes,
                              .usable = end - begin,
                              .first = block,
                              .pool = pool,
                              .idle_since = arena->operations,
                              .idle_tick = arena->tick};
    link_segment(arena, segment);
    describe(block, begin, segment->usable, segment, arena);
    return segment;
}

ca_segment_t *ca_segment_add(ca_arena_t *arena, uint64_t base, size_t bytes, ca_pool_t pool)
{
    ca_segment_t *segment = ca_segment_place(arena, base, bytes, pool);

    if (segment) {
        ca_reserved_raise(arena, bytes);
        ca_block_ready(arena, segment->first);
    }
    return segment;
}

void ca_segment_detach(ca_arena_t *arena, ca_segment_t *segment)
{
    for (ca_block_t *block = segment->first, *upper; block; block = upper) {
        upper = ca_block_upper(block);
        ca_block_forget(block);
        if (ca_block_state(block) == CA_BLOCK_PENDING) {
            ca_epoch_pull(block);
            arena->pending -= ca_block_size(block);
        } else if (ca_block_state(block) == CA_BLOCK_EXPORTED) {
            arena->exported -= ca_block_size(block);
        } else {
            ca_bins_remove(bins_of(arena, segment), block);
            arena->ready -= ca_block_size(block);
        }
        ca_block_delete(&arena->blocks, block);
    }
    ca_segment_unlink(arena, segment);
    arena->leaving += segment->bytes;
    ca_giving_begin();
    /* Before the memory goes back: another context may get the address at once. */
    ca_span_remove(segment->base, segment->bytes, arena);
    ca_slab_give(&arena->segment_slab, segment);
}

bool ca_segment_idle(const ca_segment_t *segment)
{
    const ca_block_t *block = segment->first;

    if (!segment->exported)
        return ca_block_state(block) == CA_BLOCK_READY && !ca_block_upper(block);
    while (block &&
           (ca_block_state(block) == CA_BLOCK_READY || ca_block_state(block) == CA_BLOCK_EXPORTED))
        block = ca_block_upper(block);
    return !block;
}

ca_segment_t *ca_segment_at(const ca_arena_t *arena, uint64_t address)
{
    ca_segment_t *segment = arena->segments;

    while (segment && address - segment->base >= segment->bytes)
        segment = segment->next;
    return segment;
}

ca_block_t *ca_segment_block_at(const ca_segment_t *segment, uint64_t address)
{
    ca_block_t *block = segment->first;

    while (block && (address < block->address || address - block->address >= ca_block_size(block)))
        block = ca_block_upper(block);
    return block;
}

void ca_block_give(ca_arena_t *arena, ca_block_t *block)
{
    block->state = CA_BLOCK_READY;
    arena->ready += ca_block_size(block);
    ca_bins_insert(bins_of(arena, ca_block_segment(block)), block);
}

void ca_block_unready(ca_arena_t *arena, ca_block_t *block)
{
    ca_bins_remove(bins_of(arena, ca_block_segment(block)), block);
    arena->ready -= ca_block_size(block);
}

/* Takes a block, in no list, out of its segment's chain: its memory is now a neighbour's. */
static void dissolve(ca_arena_t *arena, ca_block_t *block)
{
    ca_block_forget(block);
    if (ca_block_lower(block))
        ca_block_place(ca_block_lower(block))->upper = ca_block_upper(block);
    else
        ca_block_segment(block)->first = ca_block_upper(block);
    if (ca_block_upper(block))
        ca_block_set_lower(ca_block_upper(block), ca_block_lower(block));
    ca_block_delete(&arena->blocks, block);
    ca_count(merges);
}

static void merge_ready(ca_arena_t *arena, ca_block_t *block)
{
    ca_block_t *lower = ca_block_lower(block), *upper = ca_block_upper(block);

    if (upper && ca_block_state(upper) == CA_BLOCK_READY) {
        ca_block_unready(arena, upper);
        ca_block_join(arena, block);
    }
    if (!lower || ca_block_state(lower) != CA_BLOCK_READY) {
        ca_block_give(arena, block);
        return;
    }
    size_t bytes = ca_block_size(block);
    lower->touched |= block->touched; /* what was live is touched: enough for all */
    arena->ready += bytes;
    dissolve(arena, block);
    ca_bins_resize(bins_of(arena, ca_block_segment(lower)), lower, ca_block_size(lower) + bytes);
}

void ca_block_ready(ca_arena_t *arena, ca_block_t *block)
{
    if (ca_block_segment(block)->view) {
        ca_view_ready(arena, block);
    } else if (block->exported && !CA_MUTATED(reuse_exported)) {
        block->state = CA_BLOCK_EXPORTED;
        arena->exported += ca_block_size(block);
    } else if (!arena->pins) {
        merge_ready(arena, block);
    } else {
        ca_block_give(arena, block);
        arena->unmerged = true;
    }
}

void ca_blocks_ready(ca_arena_t *arena, ca_epoch_t *epoch)
{
    for (ca_block_t *block; epoch && (block = epoch->blocks);) {
        ca_epoch_pull(block);
        arena->pending -= ca_block_size(block);
        ca_block_ready(arena, block);
    }
}

bool ca_segment_merge(ca_arena_t *arena, ca_segment_t *segment)
{
    bool merged = false;

    /* From below: a block's lower neighbour is not ready any more, so it takes the upper one in. */
    for (ca_block_t *block = segment->first, *upper; (upper = ca_block_upper(block)) != NULL;) {
        if (ca_block_state(block) != CA_BLOCK_READY || ca_block_state(upper) != CA_BLOCK_READY) {
            block = upper;
            continue;
        }
        ca_block_unready(arena, block);
        merge_ready(arena, block);
        merged = true;
    }
    return merged;
}

/* Cuts the lowest `bytes` off a block, whose own size is the caller's to change. Returns them as a
 * block that is in no list and has no state yet, or NULL when there is no host memory. */
static ca_block_t *cut(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    ca_block_t *low = ca_block_new(&arena->blocks);

    if (!low)
        return NULL;
    describe(low, block->address, bytes, ca_block_segment(block), arena);
    ca_block_set_lower(low, ca_block_lower(block));
    ca_block_place(low)->upper = block;
    low->touched = block->touched;
    ca_block_forget(block);
    if (ca_block_lower(low))
        ca_block_place(ca_block_lower(low))->upper = low;
    else
        ca_block_segment(low)->first = low;
    ca_block_set_lower(block, low);
    ca_record_set_address(&block->record, block->address + bytes);
    ca_count(splits);
    return low;
}

/* The same of a ready block, which stays ready with the rest. */
static ca_block_t *split(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    ca_block_t *low = cut(arena, block, bytes);

    if (low) {
        ca_bins_resize(bins_of(arena, ca_block_segment(block)), block,
                       ca_block_size(block) - bytes);
        arena->ready -= bytes;
    }
    return low;
}

CA_INLINE void make_live(ca_arena_t *arena, ca_block_t *block, ca_segment_t *segment, size_t bytes)
{
    block->state = CA_BLOCK_LIVE;
    block->class_mark = ca_cache_class_mark(bytes, arena->cache_most);
    block->exported = false; /* an export may have met it before a join that failed */
    if (segment->live_blocks++ == 0)
        arena->vacant--;
    arena->live += bytes;
    ca_arena_note_peak(arena);
    ca_mixed_live(arena, segment, bytes);
}

void ca_block_live(ca_arena_t *arena, ca_block_t *block)
{
    make_live(arena, block, ca_block_segment(block), ca_block_size(block));
}

void ca_block_unlive(ca_arena_t *arena, ca_block_t *block)
{
    ca_segment_t *segment = ca_block_segment(block);
    size_t bytes = ca_block_size(block);

    block->state = CA_BLOCK_PENDING;
    ca_block_set_freed(block, arena->operations);
    if (--segment->live_blocks == 0) {
        arena->vacant++;
        segment->idle_since = arena->operations;
        segment->idle_tick = arena->tick;
    }
    if (CA_MUTATED(view_early) && segment->view)
        ca_view_return(arena, segment->view);
    arena->live -= bytes;
    arena->pending += bytes;
    ca_mixed_unlive(arena, segment, bytes);
}

ca_block_t *ca_block_take_pending(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    ca_block_t *served = block;

    if (ca_block_size(block) > bytes && !ca_segment_whole(ca_block_segment(block))) {
        served = cut(arena, block, bytes);
        if (!served)
            return NULL;
        ca_epoch_shrink(block, bytes);
    } else {
        ca_epoch_pull(block);
    }
    arena->pending -= ca_block_size(served);
    ca_block_live(arena, served);
    return served;
}

ca_block_t *ca_block_take_from(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    size_t padding = ca_range_padding(arena, block, bytes);
    ca_block_t *served = NULL;

    if (ca_block_size(block) < bytes + padding)
        return NULL;
    ca_block_t *skipped = padding ? split(arena, block, padding) : NULL;
    if (skipped)
        ca_block_give(arena, skipped);
    else if (padding)
        return NULL;
    if (ca_block_size(block) > bytes && ca_block_segment(block)->pool != CA_POOL_OVERSIZE)
        served = split(arena, block, bytes);
    if (!served) {
        /* A perfect fit; or the request gets the rest too, without host memory to describe it. */
        ca_block_unready(arena, block);
        served = block;
    }
    ca_block_live(arena, served);
    return served;
}

bool ca_block_close_enough(const ca_block_t *block, size_t bytes)
{
    size_t unused = ca_block_size(block) - bytes;

    return unused <= CA_SEGMENT_UNIT || unused <= bytes / 8;
}

#define ELSEWHERE_COMPARES 64 /* ready blocks */

/* The tightest block, or nearly, that the request may be cut from (mixed.h), or NULL. With
 * `segment` in others that are in use, or smaller. */
static ca_block_t *elsewhere(const ca_arena_t *arena, ca_pool_t pool, size_t bytes,
                             size_t alignment, const ca_segment_t *segment)
{
    const ca_bins_t *bins = &arena->bins[pool];
    unsigned row, sub, compares = ELSEWHERE_COMPARES;
    ca_bin_of(bytes, &row, &sub);

    do {
        for (ca_block_t *block = bins->heads[row][sub]; block && compares;
             block = block->next, compares--) {
            const ca_segment_t *other = ca_block_segment(block);
            if (ca_block_size(block) >= bytes + ca_block_padding(block, alignment) &&
                (!segment || other->live || other->bytes < segment->bytes) &&
                ca_mixed_allows(arena, other, bytes))
                return block;
        }
    } while (compares && ca_bins_next(bins, &row, &sub));
    return NULL;
}

/* Instead of the tightest one. */
static ca_block_t *better(const ca_arena_t *arena, ca_pool_t pool, size_t bytes, size_t alignment,
                          ca_block_t *block)
{
    const ca_segment_t *segment = ca_block_segment(block);
    ca_block_t *found = NULL;

    if (ca_mixed_wakes(segment, bytes))
        found = elsewhere(arena, pool, bytes, alignment, segment);
    if (!found && !ca_mixed_allows(arena, segment, bytes))
        return elsewhere(arena, pool, bytes, alignment, NULL);
    return found ? found : block;
}

#define WHOLE_COMPARES 8 /* blocks */

/* Whether a block that was not merged is just what the request gets. */
static inline bool is_exact(const ca_arena_t *arena, const ca_block_t *block, ca_pool_t pool,
                            size_t bytes, size_t alignment)
{
    const ca_segment_t *segment = ca_block_segment(block);

    return ca_block_size(block) == bytes && segment->pool == pool &&
           !ca_block_padding(block, alignment) && !ca_mixed_wakes(segment, bytes) &&
           ca_mixed_allows(arena, segment, bytes);
}

/* One that has not been merged, or NULL. */
static ca_block_t *whole(ca_arena_t *arena, ca_pool_t pool, size_t bytes, size_t alignment)
{
    unsigned compares = WHOLE_COMPARES;

    for (ca_block_t *block = arena->passed->blocks; block && compares;
         block = ca_block_later(block), compares--) {
        if (!is_exact(arena, block, pool, bytes, alignment))
            continue;
        ca_epoch_pull_from(arena->passed, block);
        arena->pending -= bytes;
        ca_block_live(arena, block);
        return block;
    }
    return NULL;
}

bool ca_block_take_whole(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    if (!ca_block_stays_whole(arena, block) || ca_export_begins(&arena->params, bytes) ||
        !is_exact(arena, block, ca_pool_of(arena, bytes), bytes, ca_block_alignment(bytes)))
        return false;
    arena->pending -= bytes;
    make_live(arena, block, ca_block_segment(block), bytes);
    return true;
}

/* With `any` from whatever fits. */
static inline ca_block_t *take(ca_arena_t *arena, size_t bytes, unsigned compares, bool any)
{
    ca_pool_t pool = ca_pool_of(arena, bytes);
    size_t alignment = ca_block_alignment(bytes);
    ca_block_t *block = NULL;

    if (arena->passed->blocks) {
        if (!ca_export_begins(&arena->params, bytes) &&
            (block = whole(arena, pool, bytes, alignment)))
            return block;
        ca_blocks_merge(arena);
    }
    if (bytes > arena->ready)
        return NULL;
    if (arena->pins) /* an oversize block is its whole segment */
        block = ca_bins_find_same(
            &arena->bins[pool],
            pool == CA_POOL_OVERSIZE ? ca_round_up(bytes, CA_SEGMENT_UNIT) : bytes, alignment);
    if (arena->pins && !block && (block = ca_view_take(arena, pool, bytes)))
        return block;
    if (!any) /* else any place will do */
        alignment = ca_range_alignment(arena, bytes);
    any |= block || pool == CA_POOL_OVERSIZE; /* nothing is cut */
    if (!block)
        block = ca_bins_find(&arena->bins[pool], bytes, alignment, compares);
    if (block && !any)
        block = better(arena, pool, bytes, alignment, block);
    if (!block)
        return ca_view_take(arena, pool, bytes);
    if ((pool == CA_POOL_OVERSIZE && !ca_block_close_enough(block, bytes)) ||
        (ca_export_begins(&arena->params, bytes) &&
         (ca_block_lower(block) || ca_block_upper(block))))
        return NULL;
    return ca_block_take_from(arena, block, bytes);
}

ca_block_t *ca_block_take(ca_arena_t *arena, size_t bytes, unsigned compares)
{
    return take(arena, bytes, compares, false);
}

ca_block_t *ca_block_take_any(ca_arena_t *arena, size_t bytes)
{
    return take(arena, bytes, UINT_MAX, true);
}

bool ca_block_withheld(const ca_arena_t *arena, size_t bytes)
{
    ca_pool_t pool = ca_pool_of(arena, bytes);

    return bytes <= arena->ready && pool != CA_POOL_OVERSIZE &&
           ca_bins_find(&arena->bins[pool], bytes, ca_range_alignment(arena, bytes),
                        CA_BIN_COMPARES);
}

ca_block_t *ca_block_take_elsewhere(ca_arena_t *arena, size_t bytes)
{
    static const ca_pool_t shared[] = {CA_POOL_MAIN, CA_POOL_SMALL};
    ca_pool_t own = ca_pool_of(arena, bytes);
    bool begins = ca_export_begins(&arena->params, bytes);
    ca_block_t *block = NULL;

    if (own == CA_POOL_OVERSIZE && bytes > arena->params.max_split && !arena->apart)
        return NULL;
    /* Better without a segment of its own than not at all. */
    for (size_t i = 0; i < sizeof shared / sizeof *shared && !block; i++)
        if (shared[i] != own || begins)
            block =
                ca_bins_find(&arena->bins[shared[i]], bytes, ca_block_alignment(bytes), UINT_MAX);
    return block ? ca_block_take_from(arena, block, bytes) : NULL;
}

/* --- ranges and views ------------------------------------------------------------------------- */

ca_block_t *ca_block_cut(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    ca_block_t *low = cut(arena, block, bytes);

    if (low) {
        ca_block_set_size(block, ca_block_size(block) - bytes);
        low->state = block->state;
    }
    return low;
}

void ca_block_join(ca_arena_t *arena, ca_block_t *block)
{
    ca_block_t *upper = ca_block_upper(block);

    block->touched |= upper->touched;
    ca_block_set_size(block, ca_block_size(block) + ca_block_size(upper));
    dissolve(arena, upper);
}
