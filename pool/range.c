/* See range.h. */
#include "pool/range.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include "config/cancel.h"
#include "config/mutation.h"
#include "pool/export.h"
#include "pool/giving.h"
#include "pool/order.h"
#include "pool/rounding.h"
#include "pool/segment.h"
#include "pool/settle.h"
#include "pool/span.h"
#include "pool/state.h"
#include "pool/view.h"

#define SPACE_MOST (CA_BLOCK_MOST / 2) /* of addresses */
#define SPACE_LEAST CA_RANGE_FROM

static _Atomic size_t ranges; /* of the process */
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
    size_t page = unit, device = arena->params.device_bytes, limit = arena->params.limit;
    size_t whole = device && device < limit ? device : limit;

    while (2 * page <= CA_RANGE_PAGE_MOST &&
           2 * page <= (arena->reserved + more) / CA_RANGE_SHARE &&
           2 * page <= whole / CA_RANGE_DEVICE_SHARE)
        page *= 2;
    return page;
}

static bool make_room(ca_range_t *range, size_t more)
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

/* Room for the pages of [at, at + bytes), the last one of which may be smaller. */
static bool add_pages(ca_range_t *range, uint64_t at, size_t bytes, size_t page, size_t *added)
{
    size_t count = (bytes + page - 1) / page, first = ca_range_page_at(range, at);

    if (!make_room(range, count))
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

static void remove_pages(ca_range_t *range, uint64_t at, size_t count)
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

static bool is(const ca_block_t *block, ca_block_state_t state)
{
    return block && ca_block_state(block) == state;
}

/* A lent block has lost its memory. */
static void make_hole(ca_arena_t *arena, ca_block_t *block)
{
    ca_range_t *range = arena->range;

    block->touched = false;
    if (is(ca_block_upper(block), CA_BLOCK_HOLE)) {
        unlist_hole(range, ca_block_upper(block));
        ca_block_join(arena, block);
    }
    if (is(ca_block_lower(block), CA_BLOCK_HOLE))
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

void ca_range_review(ca_arena_t *arena, size_t reserved)
{
    /* Others read it without the lock. */
    if (arena->range && arena->room / (CA_RANGE_WHOLE_SHARE - 1) < reserved)
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

    if (!is(below, CA_BLOCK_READY))
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
    plan->above = is(above, CA_BLOCK_READY) ? above : NULL;
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
    atomic_fetch_add(&ranges, 1);
    return 0;
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
        ca_block_claim(arena, fill->below);
    if (fill->above)
        ca_block_claim(arena, fill->above);
    return block;
}

static size_t room_of(const ca_fill_t *fill)
{
    return (fill->bytes / fill->page + 1) * sizeof(ca_page_t);
}

static void let_go(ca_arena_t *arena, ca_fill_t *fill)
{
    ca_mem_unmap(fill->pages, room_of(fill));
    fill->pages = NULL;
    if (arena->shards)
        ca_shards_give_up(arena->shards, fill->bytes);
}

int ca_range_fill_begin(ca_arena_t *arena, ca_fill_t *fill)
{
    ca_range_t *range = arena->range;

    if (arena->shards && !ca_shards_claim(arena->shards, fill->bytes, arena->params.limit))
        return -ENOMEM;
    fill->at = fill->hole->address;
    fill->pages = ca_mem_map(room_of(fill));
    fill->block = NULL;
    if (fill->pages && add_pages(range, fill->at, fill->bytes, fill->page, &fill->count) &&
        !(fill->block = claim(arena, fill)))
        remove_pages(range, fill->at, fill->count);
    if (!fill->block) {
        let_go(arena, fill);
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
        remove_pages(range, fill->at, fill->count);
    }
    if (rc == 0 && !arena->retired) {
        ca_mem_unmap(fill->pages, room_of(fill));
        ca_reserved_raise(arena, fill->bytes);
        return 0;
    }
    let_go(arena, fill);
    if (arena->retired)
        return -EIO;
    make_hole(arena, fill->block);
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
    ca_block_t *below = padding ? ca_block_cut(arena, block, padding) : NULL, *taken = block;

    if (ca_block_size(block) > bytes && !(taken = ca_block_cut(arena, block, bytes)))
        taken = block;
    ca_block_live(arena, taken);
    if (taken != block)
        ca_block_ready(arena, block);
    if (below)
        ca_block_ready(arena, below);
    return taken;
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
    ca_settle_grown(arena, fill.bytes);
    return 0;
}

/* --- giving back ------------------------------------------------------------------------------ */

ca_block_t *ca_range_next_ready(const ca_arena_t *arena, const ca_block_t *block, size_t least)
{
    const ca_bins_t *bins = &arena->bins[CA_POOL_MAIN];
    unsigned row, sub;
    ca_bin_of(block ? ca_block_size(block) : least, &row, &sub);
    ca_block_t *next = block ? block->next : bins->heads[row][sub];

    for (;;) {
        while (next &&
               (ca_block_segment(next) != arena->range->segment || ca_block_size(next) < least))
            next = next->next;
        if (next || !ca_bins_next(bins, &row, &sub))
            return next;
        next = bins->heads[row][sub];
    }
}

/* The first page that begins in [at, ...), whatever lies there. */
static size_t first_from(const ca_range_t *range, uint64_t at)
{
    size_t first = ca_range_page_at(range, at);

    return first + (first < range->count && range->pages[first].at < at);
}

size_t ca_range_whole_pages(const ca_range_t *range, const ca_block_t *block, size_t *first)
{
    size_t last = ca_range_page_at(range, block->address + ca_block_size(block));

    *first = first_from(range, block->address);
    while (*first < last && range->pages[last - 1].pinned)
        last--;
    for (size_t i = *first; i < last; i++)
        if (range->pages[i].pinned)
            *first = i + 1;
    return *first < last ? last - *first : 0;
}

size_t ca_range_idle(const ca_arena_t *arena)
{
    const ca_range_t *range = arena->range;
    size_t bytes = 0, first, count;

    if (!range || arena->pins)
        return 0;
    for (ca_block_t *block = NULL; (block = ca_range_next_ready(arena, block, range->unit));)
        if ((count = ca_range_whole_pages(range, block, &first)))
            bytes += ca_range_page_end(&range->pages[first + count - 1]) - range->pages[first].at;
    return bytes;
}

void ca_range_look(ca_arena_t *arena)
{
    ca_range_t *range = arena->range;

    for (size_t i = 0; i < range->count; i++)
        range->pages[i].ready = NULL;
    for (ca_block_t *block = NULL; (block = ca_range_next_ready(arena, block, range->unit));) {
        uint64_t end = block->address + ca_block_size(block);
        for (size_t i = first_from(range, block->address);
             i < range->count && range->pages[i].at < end; i++)
            range->pages[i].ready = range->pages[i].pinned ? NULL : block;
    }
}

/* A row of blocks in which nothing lives: bytes of the pages that lie wholly in it. */
static size_t pages_in(const ca_range_t *range, uint64_t from, uint64_t to)
{
    size_t bytes = 0;

    for (size_t i = ca_range_page_at(range, from); i < range->count; i++) {
        if (ca_range_page_end(&range->pages[i]) > to)
            break;
        if (range->pages[i].at >= from)
            bytes += range->pages[i].page.bytes;
    }
    return bytes;
}

/* The memory of a view that is pending is lent. */
static bool is_vacant(const ca_block_t *block)
{
    return !is(block, CA_BLOCK_LIVE) && !is(block, CA_BLOCK_LENT);
}

size_t ca_range_vacant(const ca_arena_t *arena)
{
    const ca_range_t *range = arena->range;
    size_t bytes = 0;
    uint64_t from = 0;

    if (!range || arena->pins)
        return 0;
    for (const ca_block_t *block = range->segment->first; block; block = ca_block_upper(block)) {
        if (!is_vacant(block) && from)
            bytes += pages_in(range, from, block->address);
        from = !is_vacant(block) ? 0 : from ? from : block->address;
    }
    if (from)
        bytes += pages_in(range, from, range->segment->base + range->segment->bytes);
    for (const ca_view_t *view = range->newest; view; view = view->older)
        if (is(view->segment->first, CA_BLOCK_PENDING))
            bytes += ca_block_size(view->segment->first);
    return bytes;
}

/* The highest ready block with a whole page, or NULL. */
static ca_block_t *highest(const ca_arena_t *arena)
{
    ca_block_t *found = NULL;
    size_t first;

    for (ca_block_t *block = NULL; (block = ca_range_next_ready(arena, block, arena->range->unit));)
        if ((!found || block->address > found->address) &&
            ca_range_whole_pages(arena->range, block, &first) > 0)
            found = block;
    return found;
}

int ca_range_lend(ca_arena_t *arena, size_t bytes, bool whole, ca_block_t **lent)
{
    const ca_range_t *range = arena->range;
    ca_block_t *block = highest(arena);
    size_t first;

    if (!block)
        return -ENOENT;
    size_t from = ca_range_whole_pages(range, block, &first) + first - 1;
    uint64_t end = ca_range_page_end(&range->pages[from]);
    while (from > first && end - range->pages[from].at < bytes)
        from--;
    uint64_t at = range->pages[from].at;
    *lent = ca_block_lend(arena, block, at, whole || end - at < bytes ? end - at : bytes);
    return *lent ? 0 : -ENOSYS;
}

/* Pages could not be unmapped. */
static void stay(ca_range_t *range, uint64_t at, size_t count, size_t bytes)
{
    for (size_t i = ca_range_page_at(range, at), end = i + count; i < end; i++)
        range->pages[i].made = true;
    range->held += bytes;
    range->mappings += count;
}

size_t ca_range_give(ca_arena_t *arena, size_t bytes)
{
    ca_range_t *range = arena->range;
    ca_block_t *block = NULL;

    if (!range || arena->pins || range->walks || !ca_arena_serving(arena) ||
        ca_range_lend(arena, bytes, true, &block) < 0)
        return 0;
    uint64_t at = block->address;
    size_t given = ca_block_size(block), first = ca_range_page_at(range, at);
    size_t count = ca_range_page_at(range, at + given) - first, room = count * sizeof(ca_page_t);
    ca_page_t *pages = ca_mem_map(room);
    if (!pages) {
        ca_block_ready(arena, block);
        return 0;
    }
    ca_view_t *views = ca_view_detach(arena, at, given);
    for (size_t i = 0; i < count; i++) {
        pages[i] = range->pages[first + i].page;
        range->pages[first + i].made = false; /* on its way out */
    }
    range->held -= given;
    range->mappings -= count;
    arena->leaving += given;
    ca_giving_begin();
    ca_lock_drop(&arena->lock);
    ca_view_unmap(arena, views);
    int rc = ca_upstream_unmap(arena->upstream, arena->context, at, given);
    for (size_t i = 0; i < count && rc == 0; i++)
        ca_upstream_drop(arena->upstream, arena->context, pages[i].handle);
    ca_lock_take(&arena->lock);
    ca_mem_unmap(pages, room);
    arena->leaving -= given;
    if (rc == 0) {
        remove_pages(range, at, count);
        ca_reserved_lower(arena, given);
    } else {
        stay(range, at, count, given);
    }
    if (rc == -EIO)
        ca_arena_stop(arena);
    ca_giving_end(rc == 0);
    if (arena->retired)
        return 0;
    if (rc == 0)
        make_hole(arena, block);
    else
        ca_block_ready(arena, block);
    return rc == 0 ? given : 0;
}

void ca_range_tick(ca_arena_t *arena)
{
    ca_range_t *range = arena->range;
    size_t idle = ca_range_idle(arena);

    if (!range || idle >= range->idle_least)
        return;
    range->idle_least = idle;
    range->idle_tick = arena->tick;
}

size_t ca_range_idle_longer(ca_arena_t *arena, uint32_t ticks)
{
    ca_range_t *range = arena->range;

    /* The count wraps around. */
    if (!range || range->idle_least == SIZE_MAX || arena->tick - range->idle_tick <= ticks)
        return 0;
    size_t idle = range->idle_least, now = ca_range_idle(arena);
    range->idle_least = SIZE_MAX; /* from here on anew */
    return idle < now ? idle : now;
}

/* No lock is held. */
static void give_all(const ca_arena_t *arena, ca_range_t *range, uint64_t base, size_t space)
{
    for (size_t i = 0, row = 0; i < range->count; i++) {
        const ca_range_page_t *page = &range->pages[i];
        if (i + 1 < range->count && ca_range_page_end(page) == page[1].at)
            continue;
        uint64_t at = range->pages[row].at;
        (void)ca_upstream_unmap(arena->upstream, arena->context, at, ca_range_page_end(page) - at);
        row = i + 1;
    }
    for (size_t i = 0; i < range->count; i++)
        ca_upstream_drop(arena->upstream, arena->context, range->pages[i].page.handle);
    ca_upstream_unreserve(arena->upstream, arena->context, base, space);
}

void ca_range_end(ca_arena_t *arena)
{
    ca_range_t *range = arena->range;

    if (!range)
        return;
    uint64_t base = range->segment->base;
    size_t space = range->segment->bytes;
    arena->range = NULL;
    __atomic_store_n(&arena->params.whole_pages, false, __ATOMIC_RELAXED);
    int cancellation = ca_cancel_hold(); /* nobody else would give back the rest */
    ca_lock_drop(&arena->lock);
    if (!CA_MUTATED(range_left)) {
        ca_view_unmap(arena, range->newest);
        give_all(arena, range, base, space);
    }
    ca_mem_unmap(range->pages, range->capacity * sizeof *range->pages);
    ca_mem_unmap(range, sizeof *range);
    atomic_fetch_sub(&ranges, 1);
    ca_cancel_resume(cancellation);
    ca_lock_take(&arena->lock);
}

/* --- questions -------------------------------------------------------------------------------- */

bool ca_range_holds(uint64_t address)
{
    if (atomic_load_explicit(&ranges, memory_order_relaxed) == 0)
        return false;
    ca_arena_t *arena = ca_span_lock(address);
    if (!arena)
        return false;
    const ca_segment_t *segment = ca_segment_at(arena, address);
    bool holds = segment && segment->ranged;
    ca_lock_drop(&arena->lock);
    return holds;
}

void ca_range_pin(uint64_t address, size_t bytes)
{
    ca_arena_t *arena = ca_range_holds(address) ? ca_span_lock(address) : NULL;

    if (!arena)
        return;
    const ca_segment_t *segment = arena->range ? ca_segment_at(arena, address) : NULL;
    if (segment && segment->view)
        ca_view_pin(arena, segment->view);
    else if (segment && segment->ranged)
        ca_range_pin_pages(arena->range, address, bytes);
    ca_lock_drop(&arena->lock);
}

void ca_range_pin_pages(ca_range_t *range, uint64_t at, size_t bytes)
{
    size_t i = ca_range_page_at(range, at);

    for (; i < range->count && range->pages[i].at < at + bytes; i++)
        range->pages[i].pinned = !CA_MUTATED(reached_given);
}

void ca_ranges_end(void)
{
    atomic_store(&ca_ranges_ended, true);
}

typedef struct row {
    uint64_t at;
    size_t bytes;
    bool sure;
} row_t;

static size_t rows_of(const ca_range_t *range, row_t *rows)
{
    size_t count = 0;

    for (size_t i = 0; i < range->count; i++) {
        const ca_range_page_t *page = &range->pages[i];
        row_t *last = count ? &rows[count - 1] : NULL;
        if (last && page->made && last->sure && last->at + last->bytes == page->at)
            last->bytes += page->page.bytes;
        else
            rows[count++] = (row_t){page->at, page->page.bytes, page->made};
    }
    for (const ca_view_t *view = range->newest; view; view = view->older)
        rows[count++] = (row_t){view->at, view->bytes, true};
    return count;
}

int ca_range_walk(ca_arena_t *arena, ca_range_visit_t *visit, void *arg)
{
    int rc = 0;

    ca_lock_take(&arena->lock);
    int cancellation = ca_arena_enter(arena);
    ca_range_t *range = arena->range;
    size_t room = range ? (range->count + range->view_count + 1) * sizeof(row_t) : 0, count = 0;
    row_t *rows = range ? ca_mem_map(room) : NULL;
    if (rows) {
        count = rows_of(range, rows);
        range->walks++;
        range->walked++;
        ca_lock_drop(&arena->lock);
        for (size_t i = 0; i < count && rc == 0; i++)
            rc = visit(arg, rows[i].at, rows[i].bytes, rows[i].sure);
        ca_lock_take(&arena->lock);
        range->walks--;
    } else if (range) {
        rc = -ENOMEM;
    }
    ca_mem_unmap(rows, room);
    ca_arena_leave(arena, cancellation);
    ca_lock_drop(&arena->lock);
    return rc;
}

void ca_ranges_reset_after_fork(void)
{
    atomic_store(&ranges, 0);
    atomic_store(&ca_ranges_ended, false);
}

/* --- the invariants --------------------------------------------------------------------------- */

static const char *check_hole(const ca_range_t *range, const ca_block_t *block)
{
    size_t at = ca_range_page_at(range, block->address);
    const ca_block_t *hole = range->holes;

    while (hole && hole != block)
        hole = hole->next;
    if (!hole)
        return "a hole is in no list";
    if (at < range->count && range->pages[at].at < block->address + ca_block_size(block))
        return "a hole has memory";
    return is(ca_block_upper(block), CA_BLOCK_HOLE) ? "two holes are not one" : NULL;
}

static const char *check_memory(const ca_range_t *range, const ca_block_t *block)
{
    uint64_t at = block->address, end = at + ca_block_size(block);

    for (size_t i = ca_range_page_at(range, at); at < end; i++) {
        if (i == range->count || range->pages[i].at > at)
            return "a block of a range has no memory";
        if (!range->pages[i].made && ca_block_state(block) != CA_BLOCK_LENT)
            return "a page is in use that is not there yet";
        at = ca_range_page_end(&range->pages[i]);
    }
    return NULL;
}

const char *ca_range_check(const ca_arena_t *arena)
{
    const ca_range_t *range = arena->range;
    size_t held = 0;

    if (!range)
        return NULL;
    for (size_t i = 0; i < range->count; i++) {
        held += range->pages[i].made ? range->pages[i].page.bytes : 0;
        if (i && ca_range_page_end(&range->pages[i - 1]) > range->pages[i].at)
            return "pages of a range overlap";
    }
    if (held != range->held)
        return "the bytes that a range holds are wrong";
    for (const ca_block_t *block = range->segment->first; block; block = ca_block_upper(block)) {
        const char *broken =
            is(block, CA_BLOCK_HOLE) ? check_hole(range, block) : check_memory(range, block);
        if (broken)
            return broken;
    }
    return NULL;
}
