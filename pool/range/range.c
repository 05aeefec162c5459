/* See range.h. */
#include "pool/range/range.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include "base/mutation.h"
#include "pool/range/export.h"
#include "pool/fence/order.h"
#include "pool/blocks/rounding.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"
#include "pool/range/view.h"

#define SPACE_MOST (CA_BLOCK_MOST / 2) /* of addresses */
#define SPACE_LEAST CA_RANGE_FROM

_Atomic size_t ca_ranges_count;
_Atomic bool ca_ranges_ended;

/* --- pages ------------------------------------------------------------------------------------ */

size_t ca_range_page_at(const ca_range_t *range, uint64_t at)
{
    size_t low = 0, high = range->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (range->pages[middle].at + range->pages[middle].page.bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A part of what is held, so that there are as many as are needed to serve well, and no more; of
 * the device a smaller one: where there is little, each page that one block spoils is much. */
static size_t page_bytes(const ca_arena_t *arena, size_t unit, size_t more)
{
    size_t page = unit, whole = ca_arena_whole(arena);

    while (2 * page <= CA_RANGE_PAGE_MOST &&
           2 * page <= (arena->reserved + more) / CA_RANGE_SHARE &&
           2 * page <= whole / CA_RANGE_DEVICE_SHARE)
        page *= 2;
    return page;
}

static bool grow_pages(ca_range_t *range, size_t more)
{
    if (range->count + more <= range->capacity)
        return true;
    size_t capacity = range->capacity ? 2 * range->capacity : 256;
    while (capacity < range->count + more)
        capacity *= 2;
    ca_range_page_t *larger = ca_mem_map(capacity * sizeof *larger);
    if (!larger)
        return false;
    if (range->count)
        memcpy(larger, range->pages, range->count * sizeof *larger);
    ca_mem_unmap(range->pages, range->capacity * sizeof *range->pages);
    range->pages = larger;
    range->capacity = capacity;
    return true;
}

/* Descriptions for the pages of [at, at + bytes), the last one of which may be smaller. */
static bool add_pages(ca_range_t *range, uint64_t at, size_t bytes, size_t page, size_t *added)
{
    size_t count = (bytes + page - 1) / page, first = ca_range_page_at(range, at);

    if (!grow_pages(range, count))
        return false;
    memmove(range->pages + first + count, range->pages + first,
            (range->count - first) * sizeof *range->pages);
    for (size_t i = 0; i < count; i++) {
        size_t its = bytes - i * page < page ? bytes - i * page : page;
        range->pages[first + i] = (ca_range_page_t){.at = at + i * page, .page.bytes = its};
    }
    range->count += count;
    *added = count;
    return true;
}

void ca_range_forget_pages(ca_range_t *range, uint64_t at, size_t count)
{
    size_t first = ca_range_page_at(range, at);

    memmove(range->pages + first, range->pages + first + count,
            (range->count - first - count) * sizeof *range->pages);
    range->count -= count;
}

/* --- holes ------------------------------------------------------------------------------------ */

static void list_hole(ca_range_t *range, ca_block_t *block)
{
    block->state = CA_BLOCK_HOLE;
    ca_block_set_prev(block, NULL);
    block->next = range->holes;
    if (block->next)
        ca_block_set_prev(block->next, block);
    range->holes = block;
}

static void unlist_hole(ca_range_t *range, ca_block_t *block)
{
    if (ca_block_prev(block))
        ca_block_prev(block)->next = block->next;
    else
        range->holes = block->next;
    if (block->next)
        ca_block_set_prev(block->next, ca_block_prev(block));
}

/* A lent block has lost its memory. */
void ca_range_make_hole(ca_arena_t *arena, ca_block_t *block)
{
    ca_range_t *range = arena->range;

    block->touched = false;
    if (ca_range_is(ca_block_upper(block), CA_BLOCK_HOLE)) {
        unlist_hole(range, ca_block_upper(block));
        ca_block_join(arena, block);
    }
    if (ca_range_is(ca_block_lower(block), CA_BLOCK_HOLE))
        ca_block_join(arena, ca_block_lower(block));
    else
        list_hole(range, block);
}

/* --- growth ----------------------------------------------------------------------------------- */

bool ca_range_wanted(const ca_arena_t *arena, size_t bytes)
{
    const ca_range_t *range = arena->range;

    if (!arena->params.expandable || !arena->upstream->pages || arena->params.host ||
        ca_pool_of(arena, bytes) != CA_POOL_MAIN || arena->no_fences ||
        atomic_load_explicit(&ca_export_dedicating, memory_order_relaxed) ||
        atomic_load_explicit(&ca_ranges_ended, memory_order_relaxed))
        return false;
    return range ? !range->stuck && range->holes
                 : arena->reserved + bytes >= CA_RANGE_FROM || CA_MUTATED(range_small);
}

void ca_range_review(ca_arena_t *arena)
{
    /* Others read it without the lock. */
    if (arena->range && arena->free_bytes / (CA_RANGE_WHOLE_SHARE - 1) < arena->reserved)
        __atomic_store_n(&arena->params.whole_pages, true, __ATOMIC_RELAXED);
}

size_t ca_range_alignment(const ca_arena_t *arena, size_t bytes)
{
    return arena->params.whole_pages && bytes % CA_SEGMENT_UNIT == 0 ? CA_SEGMENT_UNIT
                                                                     : ca_block_alignment(bytes);
}

size_t ca_range_padding(const ca_arena_t *arena, const ca_block_t *block, size_t bytes)
{
    size_t padding = ca_block_padding(block, ca_range_alignment(arena, bytes));

    return padding + bytes <= ca_block_size(block) && ca_block_segment(block)->ranged
               ? padding
               : ca_block_padding(block, ca_block_alignment(bytes));
}

/* What the hole would need. False: it is too small. */
static bool plan_at(ca_block_t *hole, size_t bytes, size_t alignment, size_t page, ca_fill_t *plan)
{
    ca_block_t *below = ca_block_lower(hole), *above = ca_block_upper(hole);
    size_t size = ca_block_size(hole), low = 0;

    if (!ca_range_is(below, CA_BLOCK_READY))
        below = NULL;
    if (below)
        low = ca_block_size(below) - ca_block_padding(below, alignment);
    if (below && low > ca_block_size(below)) /* all of it is padding */
        below = NULL, low = 0;
    size_t rest = low < bytes ? bytes - low : 1;
    *plan = (ca_fill_t){.hole = hole, .below = below, .bytes = ca_round_up(rest, page)};
    if (plan->bytes > size)
        plan->bytes = size;
    if (rest <= plan->bytes)
        return true;
    plan->above = ca_range_is(above, CA_BLOCK_READY) ? above : NULL;
    return plan->above && rest <= size + ca_block_size(above);
}

/* The least, of these the lowest; `fine`: at any place. */
static bool plan_for(const ca_arena_t *arena, size_t bytes, size_t page, bool fine, ca_fill_t *plan)
{
    const ca_range_t *range = arena->range;
    size_t alignment = fine ? ca_block_alignment(bytes) : ca_range_alignment(arena, bytes);
    ca_fill_t one;
    bool any = false;

    for (ca_block_t *hole = range->holes; hole; hole = hole->next)
        if (plan_at(hole, bytes, alignment, page, &one) &&
            (!any || one.bytes < plan->bytes ||
             (one.bytes == plan->bytes && one.hole->address < plan->hole->address))) {
            *plan = one;
            any = true;
        }
    return any;
}

size_t ca_range_needs(const ca_arena_t *arena, size_t bytes, bool fine)
{
    const ca_range_t *range = arena->range;
    size_t unit = range ? range->unit : CA_SEGMENT_UNIT;
    size_t page = fine ? unit : page_bytes(arena, unit, bytes);
    size_t view = range ? ca_view_needs(arena, bytes, page) : SIZE_MAX;
    ca_fill_t plan;
    size_t growth =
        range && plan_for(arena, bytes, page, fine, &plan) ? plan.bytes : ca_round_up(bytes, page);

    return view < growth ? view : growth;
}

ca_block_t *ca_range_hole(const ca_range_t *range, size_t bytes)
{
    ca_block_t *found = NULL;

    for (ca_block_t *hole = range->holes; hole; hole = hole->next)
        if (ca_block_size(hole) >= bytes && (!found || hole->address < found->address))
            found = hole;
    return found;
}

/* As many addresses as there may ever be memory, and more, since holes come to lie between. */
static size_t space_for(const ca_arena_t *arena, size_t unit)
{
    size_t device = arena->params.device_bytes ? arena->params.device_bytes : SPACE_MOST / 2;
    size_t space = device + device / 8;

    return ca_round_up(space < SPACE_MOST ? space : SPACE_MOST, unit);
}

/* Makes the arena's range. Drops the lock. */
static int begin(ca_arena_t *arena)
{
    uint64_t at = 0;
    int rc = -ENOMEM;
    ca_range_t *range = ca_mem_map(sizeof *range);

    if (!range)
        return -ENOSYS;
    ca_lock_drop(&arena->lock);
    range->unit = ca_upstream_page_unit(arena->upstream, arena->context);
    size_t space = range->unit ? space_for(arena, range->unit) : 0;
    while (space >= SPACE_LEAST &&
           (rc = ca_upstream_reserve(arena->upstream, arena->context, space, &at)) == -ENOMEM)
        space = ca_round_up(space / 2, range->unit);
    ca_lock_take(&arena->lock);
    bool serving = ca_arena_serving(arena);
    ca_segment_t *segment =
        rc == 0 && serving ? ca_segment_place(arena, at, space, CA_POOL_MAIN) : NULL;
    if (!segment) {
        if (rc == 0) {
            ca_lock_drop(&arena->lock);
            ca_upstream_unreserve(arena->upstream, arena->context, at, space);
            ca_lock_take(&arena->lock);
        }
        ca_mem_unmap(range, sizeof *range);
        if (rc == -EIO)
            ca_arena_stop(arena);
        if (!serving || rc == -EIO || rc == -EAGAIN)
            return serving ? rc : -EIO;
        arena->params.expandable = false;
        return -ENOSYS;
    }
    segment->ranged = true;
    range->segment = segment;
    range->idle_least = SIZE_MAX;
    list_hole(range, segment->first);
    arena->range = range;
    if (!arena->params.small) /* others read it without the lock */
        __atomic_store_n(&arena->params.small, ca_round_request(&arena->params, CA_ORDER_SMALL),
                         __ATOMIC_RELAXED);
    atomic_fetch_add(&ca_ranges_count, 1);
    return 0;
}

ca_block_t *ca_range_lend_part(ca_arena_t *arena, ca_block_t *block, uint64_t at, size_t bytes)
{
    size_t skipped = at - block->address;

    ca_block_unready(arena, block);
    ca_block_t *below = skipped ? ca_block_cut(arena, block, skipped) : NULL, *lent = NULL;
    if (below || !skipped)
        lent = ca_block_size(block) > bytes ? ca_block_cut(arena, block, bytes) : block;
    if (below && !lent) { /* in one piece again */
        ca_block_join(arena, below);
        block = below;
    } else if (below) {
        ca_block_give(arena, below);
    }
    if (lent != block)
        ca_block_give(arena, block);
    if (lent)
        lent->state = CA_BLOCK_LENT;
    return lent;
}

/* Holes, and what is ready beside them, come out of all lists. */
static ca_block_t *claim(ca_arena_t *arena, const ca_fill_t *fill)
{
    ca_block_t *block = fill->hole;

    if (fill->bytes < ca_block_size(block)) {
        if (!(block = ca_block_cut(arena, block, fill->bytes)))
            return NULL;
    } else {
        unlist_hole(arena->range, block);
    }
    block->state = CA_BLOCK_LENT;
    if (fill->below)
        ca_range_lend_part(arena, fill->below, fill->below->address, ca_block_size(fill->below));
    if (fill->above)
        ca_range_lend_part(arena, fill->above, fill->above->address, ca_block_size(fill->above));
    return block;
}

static size_t fill_bytes(const ca_fill_t *fill)
{
    return (fill->bytes / fill->page + 1) * sizeof(ca_page_t);
}

static void let_go(ca_fill_t *fill)
{
    ca_mem_unmap(fill->pages, fill_bytes(fill));
    fill->pages = NULL;
}

int ca_range_fill_begin(ca_arena_t *arena, ca_fill_t *fill)
{
    ca_range_t *range = arena->range;

    if (ca_grow_over_limit(arena, fill->bytes))
        return -ENOMEM;
    fill->at = fill->hole->address;
    fill->pages = ca_mem_map(fill_bytes(fill));
    fill->block = NULL;
    if (fill->pages && add_pages(range, fill->at, fill->bytes, fill->page, &fill->count) &&
        !(fill->block = claim(arena, fill)))
        ca_range_forget_pages(range, fill->at, fill->count);
    if (!fill->block) {
        let_go(fill);
        return -ENOSYS;
    }
    for (size_t i = 0, first = ca_range_page_at(range, fill->at); i < fill->count; i++)
        fill->pages[i].bytes = range->pages[first + i].page.bytes;
    return 0;
}

/* All or none. */
int ca_range_fill_make(const ca_arena_t *arena, ca_fill_t *fill)
{
    size_t made = 0;
    int rc = 0;

    for (; made < fill->count && rc == 0; made += rc == 0)
        rc = ca_upstream_make(arena->upstream, arena->context, fill->pages[made].bytes,
                              &fill->pages[made].handle);
    if (rc == 0 && (rc = ca_upstream_map(arena->upstream, arena->context, fill->at, fill->pages,
                                         fill->count)) == -ENOMEM)
        rc = -ENOSYS; /* there is memory, but no further mappings */
    while (rc < 0 && made > 0 && !CA_MUTATED(map_half))
        ca_upstream_drop(arena->upstream, arena->context, fill->pages[--made].handle);
    return rc;
}

int ca_range_fill_end(ca_arena_t *arena, ca_fill_t *fill, int rc)
{
    ca_range_t *range = arena->range;

    if (rc == 0) {
        size_t first = ca_range_page_at(range, fill->at);
        for (size_t i = 0; i < fill->count; i++) {
            range->pages[first + i].page = fill->pages[i];
            range->pages[first + i].made = true;
        }
        range->mappings += fill->count;
        range->held += fill->bytes;
    } else {
        ca_range_forget_pages(range, fill->at, fill->count);
    }
    if (rc == 0 && !arena->retired) {
        ca_mem_unmap(fill->pages, fill_bytes(fill));
        ca_reserved_raise(arena, fill->bytes);
        return 0;
    }
    let_go(fill);
    if (arena->retired)
        return -EIO;
    ca_range_make_hole(arena, fill->block);
    if (fill->below)
        ca_block_ready(arena, fill->below);
    if (fill->above)
        ca_block_ready(arena, fill->above);
    return rc;
}

void ca_range_return(ca_arena_t *arena, ca_block_t *lent)
{
    for (ca_block_t *next; lent; lent = next) {
        next = lent->next;
        ca_block_ready(arena, lent);
    }
}

/* What was claimed, in one piece. */
static ca_block_t *gather(ca_arena_t *arena, const ca_fill_t *fill)
{
    ca_block_t *low = fill->below ? fill->below : fill->block;

    if (fill->below)
        ca_block_join(arena, low);
    if (fill->above)
        ca_block_join(arena, low);
    return low;
}

/* Live from a lent block; the rest is ready. */
static ca_block_t *take_from(ca_arena_t *arena, ca_block_t *block, size_t bytes)
{
    size_t padding = ca_range_padding(arena, block, bytes);
    ca_block_t *below = padding ? ca_block_cut(arena, block, padding) : NULL, *served = block;

    if (ca_block_size(block) > bytes && !(served = ca_block_cut(arena, block, bytes)))
        served = block;
    ca_block_live(arena, served);
    if (served != block)
        ca_block_ready(arena, block);
    if (below)
        ca_block_ready(arena, below);
    return served;
}

int ca_range_grow(ca_arena_t *arena, size_t bytes, bool fine, ca_block_t **block)
{
    int rc = arena->range ? 0 : begin(arena);
    ca_fill_t fill;

    if (rc < 0)
        return rc;
    if ((*block = ca_block_take(arena, bytes, UINT_MAX)))
        return 0; /* that was freed meanwhile */
    ca_range_t *range = arena->range;
    size_t page = page_bytes(arena, range->unit, bytes);
    bool fits = plan_for(arena, bytes, fine ? range->unit : page, fine, &fill);
    size_t view = ca_view_needs(arena, bytes, fine ? range->unit : page);
    if (view != SIZE_MAX && (!fits || view < fill.bytes) &&
        (rc = ca_view_make(arena, bytes, fine ? range->unit : page, block)) != -ENOSYS)
        return rc;
    /* That may have dropped the lock. */
    if (!ca_arena_serving(arena))
        return -EIO;
    if (!plan_for(arena, bytes, fine ? range->unit : page, fine, &fill))
        return -ENOSYS;
    fill.page = page;
    if ((rc = ca_range_fill_begin(arena, &fill)) < 0)
        return rc;
    ca_lock_drop(&arena->lock);
    rc = ca_range_fill_make(arena, &fill);
    ca_lock_take(&arena->lock);
    rc = ca_range_fill_end(arena, &fill, rc);
    if (rc == -EIO && !arena->retired)
        ca_arena_stop(arena);
    if (rc < 0 && rc != -ENOMEM && rc != -EAGAIN && rc != -EIO) {
        range->stuck = true; /* other memory may be had */
        rc = -ENOSYS;
    }
    if (rc < 0)
        return rc;
    ca_block_t *lent = gather(arena, &fill);
    if (!ca_arena_serving(arena)) {
        ca_block_ready(arena, lent);
        return -EIO;
    }
    *block = take_from(arena, lent, bytes);
    ca_warmup_grown(arena, fill.bytes);
    return 0;
}
