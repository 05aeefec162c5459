/* What goes back of a range, what is asked of ranges, and their invariants; see range.h. */
#include <errno.h>
#include <stdatomic.h>
#include "base/thread_state.h"
#include "base/mutation.h"
#include "pool/growth/giving.h"
#include "pool/range/range.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"
#include "pool/range/view.h"

/* --- giving back ------------------------------------------------------------------------------ */

/* The next ready block of the range after `block`, from those of `least` bytes on, NULL: the first;
 * by size, nearly. */
static ca_block_t *next_ready(const ca_arena_t *arena, const ca_block_t *block, size_t least)
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

/* The pages that lie wholly in a block and are not pinned, the highest in a row: how many, from the
 * number `*first` on. */
static size_t whole_pages(const ca_range_t *range, const ca_block_t *block, size_t *first)
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
    for (ca_block_t *block = NULL; (block = next_ready(arena, block, range->unit));)
        if ((count = whole_pages(range, block, &first)))
            bytes += ca_range_page_end(&range->pages[first + count - 1]) - range->pages[first].at;
    return bytes;
}

void ca_range_find_ready(ca_arena_t *arena)
{
    ca_range_t *range = arena->range;

    for (size_t i = 0; i < range->count; i++)
        range->pages[i].ready = NULL;
    for (ca_block_t *block = NULL; (block = next_ready(arena, block, range->unit));) {
        uint64_t end = block->address + ca_block_size(block);
        for (size_t i = first_from(range, block->address);
             i < range->count && range->pages[i].at < end; i++)
            range->pages[i].ready = range->pages[i].pinned ? NULL : block;
    }
}

size_t ca_range_vacant(const ca_arena_t *arena)
{
    const ca_range_t *range = arena->range;

    if (!range || arena->pins)
        return 0;
    size_t bytes = range->held, next = 0;
    for (const ca_block_t *block = range->segment->first; block; block = ca_block_upper(block)) {
        uint64_t end = block->address + ca_block_size(block);
        if (!ca_range_is(block, CA_BLOCK_LIVE) && !ca_range_is(block, CA_BLOCK_LENT))
            continue;
        size_t first = ca_range_page_at(range, block->address);
        for (next = first > next ? first : next; next < range->count && range->pages[next].at < end;
             next++)
            bytes -= range->pages[next].made ? range->pages[next].page.bytes : 0;
    }
    /* The memory of a view that is pending is lent. */
    for (const ca_view_t *view = range->newest; view; view = view->older)
        if (ca_range_is(view->segment->first, CA_BLOCK_PENDING))
            bytes += ca_block_size(view->segment->first);
    return bytes;
}

/* The highest ready block with a whole page, or NULL. */
static ca_block_t *highest(const ca_arena_t *arena)
{
    ca_block_t *found = NULL;
    size_t first;

    for (ca_block_t *block = NULL; (block = next_ready(arena, block, arena->range->unit));)
        if ((!found || block->address > found->address) &&
            whole_pages(arena->range, block, &first) > 0)
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
    size_t from = whole_pages(range, block, &first) + first - 1;
    uint64_t end = ca_range_page_end(&range->pages[from]);
    while (from > first && end - range->pages[from].at < bytes)
        from--;
    uint64_t at = range->pages[from].at;
    *lent = ca_range_lend_part(arena, block, at, whole || end - at < bytes ? end - at : bytes);
    return *lent ? 0 : -ENOSYS;
}

size_t ca_range_give(ca_arena_t *arena, size_t bytes)
{
    ca_range_t *range = arena->range;
    ca_block_t *block = NULL;

    if (!range || arena->pins || range->walks || !ca_arena_serving(arena) ||
        ca_range_lend(arena, bytes, true, &block) < 0)
        return 0;
    uint64_t at = block->address;
    size_t released = ca_block_size(block), first = ca_range_page_at(range, at);
    size_t count = ca_range_page_at(range, at + released) - first,
           free_bytes = count * sizeof(ca_page_t);
    ca_page_t *pages = ca_mem_map(free_bytes);
    if (!pages) {
        ca_block_ready(arena, block);
        return 0;
    }
    ca_view_t *views = ca_view_detach(arena, at, released);
    for (size_t i = 0; i < count; i++) {
        pages[i] = range->pages[first + i].page;
        range->pages[first + i].made = false; /* on its way out */
    }
    range->held -= released;
    range->mappings -= count;
    arena->leaving += released;
    ca_giving_begin();
    ca_lock_drop(&arena->lock);
    ca_view_unmap(arena, views);
    int rc = ca_upstream_unmap(arena->upstream, arena->context, at, released);
    for (size_t i = 0; i < count && rc == 0; i++)
        ca_upstream_drop(arena->upstream, arena->context, pages[i].handle);
    ca_lock_take(&arena->lock);
    ca_mem_unmap(pages, free_bytes);
    arena->leaving -= released;
    if (rc == 0) {
        ca_range_forget_pages(range, at, count);
        ca_reserved_lower(arena, released);
    } else { /* they stay */
        first = ca_range_page_at(range, at);
        for (size_t i = 0; i < count; i++)
            range->pages[first + i].made = true;
        range->held += released;
        range->mappings += count;
    }
    if (rc == -EIO)
        ca_arena_stop(arena);
    ca_giving_end(rc == 0);
    if (arena->retired)
        return 0;
    if (rc == 0)
        ca_range_make_hole(arena, block);
    else
        ca_block_ready(arena, block);
    return rc == 0 ? released : 0;
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
    int cancellation = ca_cancel_hold(); /* no other thread would give back the rest */
    ca_lock_drop(&arena->lock);
    if (!CA_MUTATED(range_left)) {
        ca_view_unmap(arena, range->newest);
        give_all(arena, range, base, space);
    }
    ca_mem_unmap(range->pages, range->capacity * sizeof *range->pages);
    ca_mem_unmap(range, sizeof *range);
    atomic_fetch_sub(&ca_ranges_count, 1);
    ca_cancel_resume(cancellation);
    ca_lock_take(&arena->lock);
}

/* --- questions -------------------------------------------------------------------------------- */

bool ca_range_holds(uint64_t address)
{
    if (atomic_load_explicit(&ca_ranges_count, memory_order_relaxed) == 0)
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
        range->pages[i].pinned = !CA_MUTATED(reached_released);
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
    size_t free_bytes = range ? (range->count + range->view_count + 1) * sizeof(row_t) : 0,
           count = 0;
    row_t *rows = range ? ca_mem_map(free_bytes) : NULL;
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
    ca_mem_unmap(rows, free_bytes);
    ca_arena_leave(arena, cancellation);
    ca_lock_drop(&arena->lock);
    return rc;
}

void ca_ranges_reset_after_fork(void)
{
    atomic_store(&ca_ranges_count, 0);
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
    return ca_range_is(ca_block_upper(block), CA_BLOCK_HOLE) ? "two holes are not one" : NULL;
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
        const char *broken = ca_range_is(block, CA_BLOCK_HOLE) ? check_hole(range, block)
                                                               : check_memory(range, block);
        if (broken)
            return broken;
    }
    return NULL;
}
