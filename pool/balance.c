/* See balance.h. */
#include "pool/balance.h"

#include "pool/cache/cache.h"
#include "pool/fence/epoch.h"
#include "pool/growth/grow.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/blocks/span.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

/* What only one of the two knows of the context that they share. */
static void share_context(const ca_arena_t *from, ca_arena_t *to)
{
    to->fenced |= from->fenced;
    if (to->free_bytes > from->free_bytes)
        to->free_bytes = from->free_bytes;
    if (to->slack < from->slack)
        to->slack = from->slack;
}

static void move_pending(ca_arena_t *to, ca_block_t *block)
{
    ca_epoch_freed_by(to->whole.open, CA_BY_SEVERAL);
    const ca_epoch_t *epoch = ca_block_epoch(block);
    to->whole.open->foreign |=
        epoch->foreign || (epoch->line->stream && epoch->line->stream->kind == CA_STREAM_ELSEWHERE);
    ca_epoch_pull(block);
    ca_epoch_push_into(to->whole.open, block);
    ca_block_set_freed(block, to->operations);
}

static void move_block(ca_arena_t *from, ca_arena_t *to, ca_block_t *block, ca_segment_t *segment)
{
    size_t bytes = ca_block_size(block);

    ca_block_place(block)->segment = segment;
    switch (ca_block_state(block)) {
    case CA_BLOCK_PENDING:
        move_pending(to, block);
        from->pending -= bytes, to->pending += bytes;
        break;
    case CA_BLOCK_READY:
        ca_bins_remove(&from->bins[segment->pool], block);
        ca_block_set_freed(block, to->operations);
        ca_bins_insert(&to->bins[segment->pool], block);
        from->ready -= bytes, to->ready += bytes;
        break;
    default:
        from->live -= bytes, to->live += bytes;
    }
    from->blocks.live--, from->blocks.made--;
    to->blocks.live++, to->blocks.made++;
    /* Last: a thread that reads it may put the block into a cache at once, and may see `to` here
     * first. */
    __atomic_store_n(&block->arena, to, __ATOMIC_RELEASE);
}

/* The number of its blocks, or 0: there is no host memory. */
static size_t move_segment(ca_arena_t *from, ca_arena_t *to, ca_segment_t *old)
{
    ca_segment_t *segment = ca_slab_take(&to->segment_slab);
    size_t blocks = 0;

    if (!segment)
        return 0;
    ca_segment_unlink(from, old);
    *segment = *old;
    segment->idle_since = to->operations;
    segment->idle_tick = to->tick;
    segment->refused = 0;
    ca_segment_link(to, segment);
    ca_slab_give(&from->segment_slab, old);
    for (ca_block_t *block = segment->first; block; block = ca_block_upper(block), blocks++)
        move_block(from, to, block, segment);
    ca_span_move(segment->base, segment->bytes, from, to);
    ca_reserved_move(from, to, segment->bytes);
    from->stranded -= segment->stranded, to->stranded += segment->stranded;
    ca_arena_note_peak(to);
    return blocks;
}

/* Whether at most so many bytes are. Of many blocks it looks at no more than it must. */
static bool little_pending(const ca_arena_t *from, const ca_segment_t *segment, size_t most)
{
    if (from->pending <= most)
        return true;
    size_t bytes = 0;
    for (const ca_block_t *block = segment->first; block && bytes <= most;
         block = ca_block_upper(block))
        if (ca_block_state(block) == CA_BLOCK_PENDING)
            bytes += ca_block_size(block);
    return bytes <= most;
}

/* What is pending loses its fence to an open epoch, which cannot be waited for: as much as one may
 * hold, see ca_epoch_due. */
static size_t pending_most(const ca_arena_t *from, const ca_arena_t *to)
{
    size_t most = to->free_bytes / CA_EPOCH_FREE_SHARE / ca_arena_sharers(to);

    if (most > ca_epoch_bytes(from->live_peak))
        most = ca_epoch_bytes(from->live_peak);
    return most > to->whole.open->bytes ? most - to->whole.open->bytes : 0;
}

static bool may_get(const ca_arena_t *arena)
{
    return ca_arena_serving(arena) && !arena->pins && !arena->no_fences;
}

/* What was freed in the order of a stream stays where the stream is. */
bool ca_balance_gives(const ca_arena_t *arena)
{
    return may_get(arena) && !arena->streams;
}

static bool may_move(const ca_arena_t *from, const ca_arena_t *to, const ca_segment_t *segment,
                     size_t bytes)
{
    return !segment->exported && !segment->ranged && segment->bytes <= bytes &&
           little_pending(from, segment, pending_most(from, to));
}

/* Or the caches would be locked out for nothing. */
static bool has_one(const ca_arena_t *from, const ca_arena_t *to, size_t bytes)
{
    const ca_segment_t *segment = from->segments;

    while (segment && !may_move(from, to, segment, bytes))
        segment = segment->next;
    return segment;
}

/* Caches are locked out. Returns the bytes. */
static size_t move_segments(ca_arena_t *from, ca_arena_t *to, size_t bytes)
{
    size_t moved = 0, blocks = 0;

    for (ca_segment_t *segment = from->segments, *next; segment && blocks < CA_BALANCE_BLOCKS;
         segment = next) {
        size_t its = segment->bytes;
        next = segment->next;
        if (!may_move(from, to, segment, bytes - moved))
            continue;
        size_t its_blocks = move_segment(from, to, segment);
        if (!its_blocks)
            break;
        blocks += its_blocks;
        moved += its;
    }
    return moved;
}

size_t ca_balance(ca_arena_t *from, ca_arena_t *to, size_t bytes)
{
    size_t moved = 0;

    ca_lock_take(&from->lock);
    /* Of two locks of one rank the second must not be waited for. */
    if (!ca_lock_try(&to->lock)) {
        ca_lock_drop(&from->lock);
        return 0;
    }
    ca_blocks_merge(from);
    if (ca_balance_gives(from) && may_get(to) && has_one(from, to, bytes)) {
        ca_caches_lock_out(from);
        ca_pin_merge(from); /* neighbours from pin mode would never merge there */
        share_context(from, to);
        moved = move_segments(from, to, bytes);
        if (moved)
            ca_warmup_gave(from);
        ca_caches_review(to);
        ca_caches_open(from);
    }
    ca_arena_drop(from); /* first: the live bytes of both are never published twice */
    ca_arena_drop(to);
    return moved;
}
