/* The invariants of an arena, all of them, from its structures alone. */
#include "pool/arena.h"

#include "pool/cache/cache.h"
#include "pool/range/range.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"
#include "pool/fence/stream.h"
#include "pool/range/view.h"

typedef struct sums {
    size_t blocks, live, pending, ready, exported;
    size_t pending_count, ready_count, live_count;
} sums_t;

static const char *check_block(const ca_block_t *block, sums_t *sums)
{
    sums->blocks++;
    switch (ca_block_state(block)) {
    case CA_BLOCK_LIVE:
        sums->live += ca_block_size(block);
        sums->live_count++;
        return __atomic_load_n(&block->touched, __ATOMIC_RELAXED)
                   ? NULL
                   : "a live block is not marked touched";
    case CA_BLOCK_CACHED:
        sums->live += ca_block_size(block);
        sums->live_count++;
        return NULL;
    case CA_BLOCK_PENDING:
        sums->pending += ca_block_size(block);
        sums->pending_count++;
        return ca_block_epoch(block) ? NULL : "a pending block is in no epoch";
    case CA_BLOCK_READY:
        sums->ready += ca_block_size(block);
        sums->ready_count += !ca_block_segment(block)->view;
        if (ca_block_lower(block) && ca_block_state(ca_block_lower(block)) == CA_BLOCK_READY &&
            !block->arena->unmerged)
            return "two ready neighbours are not merged";
        return NULL;
    case CA_BLOCK_EXPORTED:
        sums->exported += ca_block_size(block);
        return block->exported && ca_block_segment(block)->exported
                   ? NULL
                   : "a block is kept that was not exported";
    case CA_BLOCK_LENT:
    case CA_BLOCK_HOLE:
        return ca_block_segment(block)->ranged ? NULL : "a block is lent that is in no range";
    default:
        return "a block has no state";
    }
}

static const char *check_segment(const ca_arena_t *arena, const ca_segment_t *segment, sums_t *sums)
{
    const ca_block_t *lower = NULL;
    size_t live_before = sums->live_count, bytes_before = sums->live;
    uint64_t at = (segment->base + CA_PAGE - 1) & ~(uint64_t)(CA_PAGE - 1);
    uint64_t end = at + segment->usable;

    if (!segment->first || end > segment->base + segment->bytes)
        return "a segment's own fields are wrong";
    for (const ca_block_t *block = segment->first; block;
         lower = block, block = ca_block_upper(block)) {
        if (block->arena != arena || ca_block_segment(block) != segment ||
            ca_block_lower(block) != lower)
            return "a block's links are wrong";
        if (block->address != at || ca_block_size(block) == 0 || ca_block_size(block) % CA_GRANULE)
            return "blocks do not tile their segment";
        const char *broken = check_block(block, sums);
        if (broken)
            return broken;
        at += ca_block_size(block);
    }
    if (ca_segment_whole(segment) && ca_block_upper(segment->first))
        return "an oversize segment is split";
    if (segment->stranded && !segment->mixed)
        return "bytes are stranded in a segment that is not mixed";
    if (sums->live - bytes_before != segment->live)
        return "a segment's live bytes are wrong";
    if (sums->live_count - live_before != segment->live_blocks)
        return "a segment's count of live blocks is wrong";
    return at == end ? NULL : "blocks do not tile their segment";
}

static const char *check_bins(const ca_bins_t *bins, ca_block_state_t state, size_t *count)
{
    for (unsigned row = 0; row < CA_BIN_ROWS; row++) {
        if (((bins->rows >> row) & 1) != (bins->subs[row] != 0))
            return "the bins' row bitmap is wrong";
        for (unsigned sub = 0; sub < CA_BIN_SUBS; sub++) {
            const ca_block_t *prev = NULL, *block = bins->heads[row][sub];
            if (((bins->subs[row] >> sub) & 1) != (block != NULL))
                return "the bins' bitmap is wrong";
            for (; block; prev = block, block = block->next, ++*count) {
                unsigned its_row, its_sub;
                ca_bin_of(ca_block_size(block), &its_row, &its_sub);
                if (its_row != row || its_sub != sub ||
                    (state == CA_BLOCK_READY &&
                     bins != &block->arena->bins[ca_block_segment(block)->pool]))
                    return "a block is in the wrong bin";
                if (block->state != state || ca_block_prev(block) != prev)
                    return "a bin's list is wrong";
            }
        }
    }
    return NULL;
}

static const char *check_epoch(const ca_epoch_t *epoch, size_t *count)
{
    const ca_block_t *prev = NULL;
    size_t blocks = 0, bytes = 0;

    for (const ca_block_t *block = epoch->blocks; block;
         prev = block, block = ca_block_later(block)) {
        if (block->state != CA_BLOCK_PENDING || ca_block_epoch(block) != epoch ||
            ca_block_earlier(block) != prev)
            return "an epoch's list is wrong";
        blocks++;
        bytes += ca_block_size(block);
    }
    *count += blocks;
    return blocks == epoch->count && bytes == epoch->bytes ? NULL : "an epoch's sums are wrong";
}

static const char *check_epochs(const ca_epoch_list_t *list, size_t *count)
{
    const ca_epoch_t *prev = NULL;
    size_t epochs = 0;

    for (const ca_epoch_t *epoch = list->head; epoch; prev = epoch, epoch = epoch->next) {
        const char *broken = check_epoch(epoch, count);
        if (broken)
            return broken;
        if (epoch->prev != prev || epoch->passed)
            return "a list of epochs is wrong";
        epochs++;
    }
    return epochs == list->count && list->tail == prev ? NULL : "a list of epochs is wrong";
}

static const char *check_queue(const ca_fence_queue_t *fences, size_t *count)
{
    const char *broken = check_epoch(fences->open, count);
    if (!broken)
        broken = check_epochs(&fences->closing, count);
    return broken ? broken : check_epochs(&fences->closed, count);
}

static const char *check_lists(const ca_arena_t *arena, const sums_t *sums)
{
    size_t ready = 0, pending = 0;
    const char *broken = NULL;

    for (unsigned pool = 0; pool < CA_POOLS && !broken; pool++)
        broken = check_bins(&arena->bins[pool], CA_BLOCK_READY, &ready);
    if (!broken)
        broken = check_queue(&arena->plain_fences, &pending);
    if (!broken)
        broken = check_epoch(arena->passed, &pending);
    if (!broken && arena->owed && (arena->owed->count || arena->owed->marks))
        broken = "an epoch that is in no list holds something";
    for (ca_stream_t *stream = arena->streams; stream && !broken; stream = stream->next) {
        size_t before = pending, listed = 0;
        broken = check_queue(&stream->fences, &pending);
        if (!broken)
            broken = check_bins(stream->bins, CA_BLOCK_PENDING, &listed);
        if (!broken && listed != pending - before)
            broken = "a stream's bins do not hold its pending blocks";
        if (!broken && pending > before && !stream->busy)
            broken = "a stream with pending blocks is not among the busy ones";
    }
    if (!broken && ready != sums->ready_count)
        broken = "a ready block is in no bin";
    if (!broken && pending != sums->pending_count)
        broken = "a pending block is in no epoch";
    return broken;
}

const char *ca_check_locked(const ca_arena_t *arena)
{
    sums_t sums = {0};
    const ca_segment_t *prev = NULL;
    size_t segments = 0, stranded = 0, vacant = 0, reserved = arena->leaving;

    if (arena->retired)
        return NULL;
    for (const ca_segment_t *segment = arena->segments; segment;
         prev = segment, segment = segment->next) {
        const char *broken = check_segment(arena, segment, &sums);
        if (broken)
            return broken;
        if (segment->prev != prev)
            return "the list of segments is wrong";
        if (!arena->stopped &&
            (!ca_pool_owns(segment->base) || !ca_pool_owns(segment->base + segment->bytes - 1)))
            return "a segment is missing from the index of addresses";
        segments++;
        stranded += segment->stranded;
        vacant += segment->live_blocks == 0;
        reserved += segment->ranged ? 0 : segment->bytes;
    }
    reserved += arena->range ? arena->range->held : 0;
    if (segments != arena->segment_count || vacant != arena->vacant ||
        sums.blocks != arena->blocks.live || arena->blocks.made < arena->blocks.live)
        return "counts of segments or blocks are wrong";
    if (reserved != arena->reserved || arena->reserved > arena->reserved_peak)
        return "reserved bytes are wrong";
    if (sums.live != arena->live || sums.pending != arena->pending || sums.ready != arena->ready)
        return "live, pending or ready bytes are wrong";
    if (stranded != arena->stranded)
        return "stranded bytes are wrong";
    if (sums.exported != arena->exported)
        return "exported bytes are wrong";
    if (ca_arena_in_use(arena) > arena->live_peak || arena->live_peak > arena->reserved_peak)
        return "the live peak is wrong";
    const char *broken = ca_range_check(arena);
    if (!broken)
        broken = ca_view_check(arena);
    return broken ? broken : check_lists(arena, &sums);
}

const char *ca_arena_check(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    const char *broken = ca_check_locked(arena);
    if (!broken)
        broken = ca_caches_check(arena);
    ca_lock_drop(&arena->lock);
    return broken;
}
