/* See view.h. */
#include "pool/range/view.h"

#include <errno.h>
#include "base/mutation.h"
#include "pool/growth/grow.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/blocks/span.h"
#include "pool/state.h"

static size_t memory_of(size_t count)
{
    return sizeof(ca_view_t) + count * sizeof(uint64_t);
}

static const ca_range_page_t *page_of(const ca_range_t *range, const ca_view_t *view, size_t i)
{
    return &range->pages[ca_range_page_at(range, view->pages[i])];
}

/* --- the list, newest first ------------------------------------------------------------------- */

static void list(ca_range_t *range, ca_view_t *view)
{
    view->newer = NULL;
    view->older = range->newest;
    *(range->newest ? &range->newest->newer : &range->oldest) = view;
    range->newest = view;
}

static void unlist(ca_range_t *range, ca_view_t *view)
{
    *(view->newer ? &view->newer->older : &range->newest) = view->older;
    *(view->older ? &view->older->newer : &range->oldest) = view->newer;
}

static ca_block_state_t state_of(const ca_view_t *view)
{
    return ca_block_state(view->segment->first);
}

/* --- serving again ---------------------------------------------------------------------------- */

/* Whether its pages are ready: of the last one what is left of the request. */
static bool serves(const ca_range_t *range, const ca_view_t *view, size_t bytes)
{
    for (size_t i = 0; bytes; i++) {
        const ca_range_page_t *page = page_of(range, view, i);
        size_t wanted = bytes < page->page.bytes ? bytes : page->page.bytes;
        const ca_block_t *ready = page->ready;
        if (!ready || ready->address + ca_block_size(ready) - page->at < wanted)
            return false;
        bytes -= wanted;
    }
    return true;
}

/* The part of a ready block that holds the address, where others may have been cut off below it. */
static ca_block_t *part_at(ca_block_t *block, uint64_t at)
{
    while (block->address > at)
        block = ca_block_lower(block);
    return block;
}

/* Lends its pages to the view: false where there is no host memory. */
static bool lend(ca_arena_t *arena, ca_view_t *view, size_t bytes)
{
    const ca_range_t *range = arena->range;
    ca_block_t **end = &view->lent;

    for (size_t i = 0; bytes;) {
        const ca_range_page_t *page = page_of(range, view, i++);
        uint64_t at = page->at;
        size_t run = page->page.bytes;
        /* With those that follow it there, too. */
        for (; run < bytes && i < view->count && view->pages[i] == at + run &&
               page_of(range, view, i)->ready == page->ready;
             i++)
            run += page_of(range, view, i)->page.bytes;
        if (run > bytes)
            run = bytes;
        ca_block_t *lent = ca_range_lend_part(arena, part_at(page->ready, at), at, run);
        *end = lent;
        if (!lent) {
            ca_range_return(arena, view->lent);
            view->lent = NULL;
            return false;
        }
        lent->next = NULL;
        end = &lent->next;
        bytes -= run;
    }
    return true;
}

static ca_block_t *make_live(ca_arena_t *arena, ca_view_t *view, size_t bytes)
{
    ca_block_t *block = view->segment->first;

    if (CA_MUTATED(view_pages_kept))
        ca_view_return(arena, view);
    ca_block_set_size(block, bytes);
    view->segment->usable = bytes;
    ca_block_live(arena, block);
    return block;
}

/* One that became ready in pin mode, and is just as large. */
static ca_block_t *take_pinned(ca_arena_t *arena, size_t bytes)
{
    for (ca_view_t *view = arena->range->newest; view; view = view->older) {
        ca_block_t *block = view->segment->first;
        if (ca_block_state(block) != CA_BLOCK_READY || ca_block_size(block) != bytes)
            continue;
        arena->ready -= bytes;
        ca_block_live(arena, block);
        return block;
    }
    return NULL;
}

ca_block_t *ca_view_take(ca_arena_t *arena, ca_pool_t pool, size_t bytes)
{
    ca_range_t *range = arena->range;
    ca_view_t *found = NULL;
    bool marked = false;

    if (!range || !ca_view_for(bytes) || pool != CA_POOL_MAIN || bytes > arena->ready)
        return NULL;
    ca_block_t *pinned = arena->unmerged ? take_pinned(arena, bytes) : NULL;
    if (pinned || arena->pins)
        return pinned;
    for (ca_view_t *view = range->newest; view; view = view->older) {
        if (view->bytes < bytes || view->bytes - view->last >= bytes ||
            state_of(view) != CA_BLOCK_HOLE || (found && view->bytes >= found->bytes))
            continue;
        if (!marked)
            ca_range_find_ready(arena);
        marked = true;
        if (serves(range, view, bytes))
            found = view;
    }
    if (!found || !lend(arena, found, bytes))
        return NULL;
    unlist(range, found);
    list(range, found);
    return make_live(arena, found, bytes);
}

void ca_view_return(ca_arena_t *arena, ca_view_t *view)
{
    ca_block_t *lent = view->lent;

    view->lent = NULL;
    ca_range_return(arena, lent);
}

static void end_use(ca_arena_t *arena, ca_view_t *view)
{
    view->segment->first->state = CA_BLOCK_HOLE;
    arena->range->at_work |= arena->home != NULL;
    ca_view_return(arena, view);
}

void ca_view_ready(ca_arena_t *arena, ca_block_t *block)
{
    if (!arena->pins || CA_MUTATED(view_pinned_returned)) {
        end_use(arena, ca_block_segment(block)->view);
        return;
    }
    block->state = CA_BLOCK_READY;
    arena->ready += ca_block_size(block);
    arena->unmerged = true;
}

void ca_view_merge(ca_arena_t *arena)
{
    for (ca_view_t *view = arena->range ? arena->range->newest : NULL; view; view = view->older)
        if (state_of(view) == CA_BLOCK_READY) {
            arena->ready -= ca_block_size(view->segment->first);
            end_use(arena, view);
        }
}

/* --- giving up -------------------------------------------------------------------------------- */

static bool is_over(const ca_view_t *view, uint64_t at, size_t bytes)
{
    for (size_t i = 0; i < view->count; i++)
        if (view->pages[i] - at < bytes)
            return true;
    return false;
}

static void detach(ca_arena_t *arena, ca_view_t *view)
{
    ca_range_t *range = arena->range;
    ca_segment_t *segment = view->segment;

    unlist(range, view);
    for (size_t i = 0; i < view->count; i++)
        range->pages[ca_range_page_at(range, view->pages[i])].views--;
    range->view_count--;
    range->view_bytes -= view->bytes;
    range->mappings -= view->count;
    ca_block_forget(segment->first);
    ca_block_delete(&arena->blocks, segment->first);
    ca_segment_unlink(arena, segment);
    ca_span_remove(view->at, view->bytes, arena);
    ca_slab_give(&arena->segment_slab, segment);
}

void ca_view_pin(ca_arena_t *arena, ca_view_t *view)
{
    view->pinned = !CA_MUTATED(reached_released);
    for (size_t i = 0; i < view->count; i++)
        ca_range_pin_pages(arena->range, view->pages[i], 1);
}

ca_view_t *ca_view_detach(ca_arena_t *arena, uint64_t at, size_t bytes)
{
    ca_view_t *detached = NULL;

    for (ca_view_t *view = arena->range->newest, *older; view; view = older) {
        older = view->older;
        if (!is_over(view, at, bytes))
            continue;
        detach(arena, view);
        view->older = detached;
        detached = view;
    }
    return detached;
}

static void give_addresses(const ca_arena_t *arena, uint64_t at, size_t bytes)
{
    (void)ca_upstream_unmap(arena->upstream, arena->context, at, bytes);
    ca_upstream_unreserve(arena->upstream, arena->context, at, bytes);
}

void ca_view_unmap(const ca_arena_t *arena, ca_view_t *views)
{
    for (ca_view_t *older; views; views = older) {
        older = views->older;
        give_addresses(arena, views->at, views->bytes);
        ca_mem_unmap(views, memory_of(views->count));
    }
}

/* --- making one ------------------------------------------------------------------------------- */

size_t ca_view_needs(const ca_arena_t *arena, size_t bytes, size_t page)
{
    const ca_range_t *range = arena->range;

    if (!ca_view_for(bytes) || arena->pins || range->no_views ||
        ca_pool_of(arena, bytes) != CA_POOL_MAIN)
        return SIZE_MAX;
    size_t ready = ca_range_idle(arena);
    if (ready >= bytes)
        return 0;
    size_t more = ca_round_up(bytes - ready, page);
    return ready && !range->stuck && ca_range_hole(range, more) ? more : SIZE_MAX;
}

bool ca_view_needs_none(const ca_arena_t *arena, size_t bytes)
{
    return arena->range && ca_view_needs(arena, bytes, arena->range->unit) == 0;
}

/* Whether no work comes by the addresses of a view that is kept. Drops the lock. */
static bool none_at_work(ca_arena_t *arena)
{
    uint64_t ns = arena->home ? arena->params.reuse_wait_ns : 0;

    if (!ca_nothing_in_flight(arena))
        return false;
    if (arena->range->at_work && !ca_epoch_device_idle(arena, ns))
        return false;
    if (ca_arena_serving(arena))
        arena->range->at_work = false; /* none has come home meanwhile */
    return ca_arena_serving(arena);
}

/* Kept views go, oldest first, until there are few enough. False: some may be in flight. Drops the
 * lock. */
static bool drop_oldest(ca_arena_t *arena, size_t bytes)
{
    ca_range_t *range = arena->range;

    while (range->view_bytes + bytes > CA_VIEWS_MOST * range->held ||
           range->mappings > CA_MAPPINGS_MOST) {
        if (!none_at_work(arena) || range->walks || arena->pins)
            return false;
        ca_view_t *view = range->oldest;
        while (view && (state_of(view) != CA_BLOCK_HOLE || view->pinned))
            view = view->newer;
        if (!view)
            break; /* all are in use: no more than there is memory */
        detach(arena, view);
        view->older = NULL;
        ca_lock_drop(&arena->lock);
        ca_view_unmap(arena, view);
        ca_lock_take(&arena->lock);
    }
    return ca_arena_serving(arena);
}

typedef struct making {
    ca_block_t *lent, **end;
    size_t left;  /* bytes, still to be had */
    size_t count; /* pages */
    size_t total; /* bytes of these */
    bool touched;
    ca_fill_t fill;
    ca_view_t *view;
    ca_page_t *pages;
    uint64_t at;
} making_t;

static void append(const ca_range_t *range, making_t *m, ca_block_t *lent)
{
    uint64_t end = lent->address + ca_block_size(lent);

    lent->next = NULL;
    *m->end = lent;
    m->end = &lent->next;
    m->left -= ca_block_size(lent);
    m->touched |= lent->touched;
    for (size_t i = ca_range_page_at(range, lent->address);
         i < range->count && range->pages[i].at < end; i++) {
        m->count++;
        m->total += range->pages[i].page.bytes;
    }
}

/* The highest pages first, which keeps what is ready below in one piece, and makes a program that
 * comes round take the same ones. */
static int lend_ready(ca_arena_t *arena, making_t *m)
{
    ca_block_t *lent;
    int rc = 0;

    while (m->left && (rc = ca_range_lend(arena, m->left, false, &lent)) == 0)
        append(arena->range, m, lent);
    return rc == -ENOENT ? 0 : rc;
}

static void undo(ca_arena_t *arena, making_t *m)
{
    ca_mem_unmap(m->view, memory_of(m->count));
    ca_mem_unmap(m->pages, m->count * sizeof *m->pages);
    if (!arena->retired)
        ca_range_return(arena, m->lent);
}

/* What the view consists of, but for the handles of what is new. */
static void describe(const ca_range_t *range, making_t *m)
{
    size_t n = 0;

    for (const ca_block_t *lent = m->lent; lent; lent = lent->next) {
        uint64_t end = lent->address + ca_block_size(lent);
        for (size_t i = ca_range_page_at(range, lent->address);
             i < range->count && range->pages[i].at < end; i++, n++) {
            m->view->pages[n] = range->pages[i].at;
            m->pages[n] = range->pages[i].page;
        }
    }
    for (size_t i = ca_range_page_at(range, m->fill.at); n < m->count; i++, n++)
        m->view->pages[n] = range->pages[i].at;
}

/* All that is done under the lock before upstream is asked. */
static int begin(ca_arena_t *arena, making_t *m, size_t page)
{
    int rc = lend_ready(arena, m);

    if (rc == 0 && m->left) {
        size_t unit = page ? page : arena->range->unit;
        m->fill = (ca_fill_t){.bytes = ca_round_up(m->left, unit), .page = unit};
        m->fill.hole = page ? ca_range_hole(arena->range, m->fill.bytes) : NULL;
        rc = m->fill.hole ? ca_range_fill_begin(arena, &m->fill) : -ENOSYS;
        m->count += rc == 0 ? m->fill.count : 0;
        m->total += rc == 0 ? m->fill.bytes : 0;
    }
    if (rc == 0 && (!(m->view = ca_mem_map(memory_of(m->count))) ||
                    !(m->pages = ca_mem_map(m->count * sizeof *m->pages)))) {
        if (m->fill.block)
            (void)ca_range_fill_end(arena, &m->fill, -ENOSYS);
        rc = -ENOSYS;
    }
    if (rc < 0)
        undo(arena, m);
    else
        describe(arena->range, m);
    return rc;
}

/* Without the lock. */
static int ask(const ca_arena_t *arena, making_t *m)
{
    int rc = ca_upstream_reserve(arena->upstream, arena->context, m->total, &m->at);

    if (rc < 0)
        return rc;
    rc = ca_upstream_map(arena->upstream, arena->context, m->at, m->pages, m->count);
    if (rc < 0)
        ca_upstream_unreserve(arena->upstream, arena->context, m->at, m->total);
    return rc;
}

/* The view is there. False: there is no host memory. */
static bool enter(ca_arena_t *arena, making_t *m)
{
    ca_range_t *range = arena->range;
    ca_view_t *view = m->view;

    if (!(view->segment = ca_segment_place(arena, m->at, m->total, CA_POOL_VIEW)))
        return false;
    view->segment->view = view;
    view->segment->ranged = true;
    view->segment->first->touched = m->touched;
    view->at = m->at;
    view->bytes = m->total;
    view->count = m->count;
    view->last = m->pages[m->count - 1].bytes;
    view->lent = m->lent;
    for (size_t i = 0; i < m->count; i++)
        range->pages[ca_range_page_at(range, view->pages[i])].views++;
    list(range, view);
    range->view_count++;
    range->view_bytes += m->total;
    range->mappings += m->count;
    if (CA_MUTATED(view_counted))
        ca_reserved_raise(arena, m->total);
    return true;
}

/* The new memory has come, or not: as much of it as is needed is lent to the view. */
static int end_fill(ca_arena_t *arena, making_t *m, int filled, bool mapped)
{
    ca_block_t *block = m->fill.block, *head = block;

    if (!block)
        return filled;
    int rc = ca_range_fill_end(arena, &m->fill, filled);
    if (rc < 0)
        return rc;
    ca_warmup_grown(arena, m->fill.bytes);
    if (!mapped) {
        ca_block_ready(arena, block);
        return 0;
    }
    if (ca_block_size(block) > m->left && (head = ca_block_cut(arena, block, m->left)))
        ca_block_ready(arena, block);
    head = head ? head : block;
    head->next = NULL;
    *m->end = head;
    m->touched |= head->touched;
    return 0;
}

static void give_unused(ca_arena_t *arena, const making_t *m)
{
    ca_lock_drop(&arena->lock);
    give_addresses(arena, m->at, m->total);
    ca_lock_take(&arena->lock);
}

int ca_view_make(ca_arena_t *arena, size_t bytes, size_t page, ca_block_t **block)
{
    making_t m = {.left = bytes};
    ca_range_t *range = arena->range;

    if (!drop_oldest(arena, bytes))
        return ca_arena_serving(arena) ? -ENOSYS : -EIO;
    m.end = &m.lent;
    int rc = begin(arena, &m, page);
    if (rc < 0)
        return rc;
    unsigned walked = range->walked;
    ca_lock_drop(&arena->lock);
    int filled = m.fill.block ? ca_range_fill_make(arena, &m.fill) : 0;
    for (size_t i = 0; filled == 0 && i < m.fill.count; i++)
        m.pages[m.count - m.fill.count + i] = m.fill.pages[i];
    int mapped = filled == 0 ? ask(arena, &m) : filled;
    ca_lock_take(&arena->lock);
    while (mapped == 0 && range->walked != walked) { /* by without this one: see ca_range_walk */
        walked = range->walked;
        give_unused(arena, &m);
        ca_lock_drop(&arena->lock);
        mapped = ask(arena, &m);
        ca_lock_take(&arena->lock);
    }
    rc = end_fill(arena, &m, filled, mapped == 0);
    if (rc == 0 && mapped < 0)
        rc = mapped == -EIO || mapped == -EAGAIN ? mapped : -ENOSYS;
    range->no_views |= rc == -ENOSYS && !arena->retired;
    if (rc == -EIO && !arena->retired)
        ca_arena_stop(arena);
    if (mapped == 0 && (arena->retired || !enter(arena, &m))) {
        give_unused(arena, &m);
        rc = arena->retired ? -EIO : -ENOSYS;
    }
    if (rc < 0 || mapped < 0) {
        undo(arena, &m);
        return arena->retired ? -EIO : rc;
    }
    ca_mem_unmap(m.pages, m.count * sizeof *m.pages);
    if (!ca_arena_serving(arena)) {
        end_use(arena, m.view);
        return -EIO;
    }
    *block = make_live(arena, m.view, bytes);
    return 0;
}

/* --- the invariants --------------------------------------------------------------------------- */

static const char *check_view(const ca_range_t *range, const ca_view_t *view)
{
    size_t bytes = 0, lent = 0;

    for (size_t i = 0; i < view->count; i++) {
        size_t at = ca_range_page_at(range, view->pages[i]);
        if (at == range->count || range->pages[at].at != view->pages[i] || !range->pages[at].made)
            return "a page of a view is none of its range";
        bytes += range->pages[at].page.bytes;
    }
    for (const ca_block_t *block = view->lent; block; block = block->next) {
        if (ca_block_state(block) != CA_BLOCK_LENT)
            return "a view uses what is not lent";
        lent += ca_block_size(block);
    }
    if (bytes != view->bytes || view->segment->view != view)
        return "a view's own fields are wrong";
    if (state_of(view) == CA_BLOCK_HOLE ? lent > 0 : lent < ca_block_size(view->segment->first))
        return "a view uses more or less than it has";
    return NULL;
}

const char *ca_view_check(const ca_arena_t *arena)
{
    const ca_range_t *range = arena->range;
    size_t views = 0, bytes = 0, pages = 0, mapped = 0;

    if (!range)
        return NULL;
    for (const ca_view_t *view = range->newest; view; view = view->older) {
        const char *broken = check_view(range, view);
        if (broken)
            return broken;
        views++;
        bytes += view->bytes;
        pages += view->count;
    }
    for (size_t i = 0; i < range->count; i++) {
        pages += range->pages[i].made;
        mapped += range->pages[i].views + range->pages[i].made;
    }
    return views == range->view_count && bytes == range->view_bytes && pages == mapped &&
                   pages == range->mappings
               ? NULL
               : "counts of views are wrong";
}
