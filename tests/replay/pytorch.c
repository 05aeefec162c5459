/* A model of PyTorch's CUDA caching allocator in its default configuration, to compare with: its
 * published constants and rules, none of its code, and no CUDA below it.
 *
 * Requests are rounded to 512 B. Up to 1 MiB they come from the small pool, above from the large
 * one; each segment serves one pool. Segments are of 2 MiB for small requests, of 20 MiB for large
 * ones below 10 MiB, otherwise the request rounded to 2 MiB.
 *
 * The smallest block of the pool that holds the request serves it, of those the one at the lowest
 * address. It is split when the remainder is at least 512 B (small) or more than 1 MiB (large).
 * Free neighbours of one segment merge at once, work in flight or not: one stream. When the device
 * has nothing left all wholly free segments go back, then comes one more try.
 *
 * Free blocks stand in a list that is searched from end to end: the figures are what matters. */
#include <stdlib.h>
#include "tests/replay/policy.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define ROUNDING ((size_t)512)
#define SMALL_MOST (1 * MiB)
#define SMALL_SEGMENT (2 * MiB)
#define MIDDLE_SEGMENT (20 * MiB)
#define OWN_FROM (10 * MiB)
#define OWN_ROUNDING (2 * MiB)
#define SMALL_REST ROUNDING
#define LARGE_REST (1 * MiB)

typedef struct block block_t;

struct block {
    uint64_t address;
    size_t bytes;
    bool small;
    block_t *lower, *upper; /* in its segment */
    block_t *prev, *next;   /* free blocks of its pool */
    bool free;
};

typedef struct model {
    block_t *pools[2]; /* free blocks: large, small */
    uint64_t next_address;
    size_t memory, reserved, reserved_peak;
    uint64_t calls, hits;
} model_t;

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static void insert(model_t *model, block_t *block)
{
    block_t **head = &model->pools[block->small];
    block->free = true;
    block->prev = NULL;
    block->next = *head;
    if (*head)
        (*head)->prev = block;
    *head = block;
}

static void take_out(model_t *model, block_t *block)
{
    block->free = false;
    if (block->prev)
        block->prev->next = block->next;
    else
        model->pools[block->small] = block->next;
    if (block->next)
        block->next->prev = block->prev;
}

static block_t *best_fit(const model_t *model, size_t bytes, bool small)
{
    block_t *best = NULL;
    for (block_t *block = model->pools[small]; block; block = block->next)
        if (block->bytes >= bytes &&
            (!best || block->bytes < best->bytes ||
             (block->bytes == best->bytes && block->address < best->address)))
            best = block;
    return best;
}

static void give_back(model_t *model)
{
    for (unsigned pool = 0; pool < 2; pool++)
        for (block_t *block = model->pools[pool], *next; block; block = next) {
            next = block->next;
            if (block->lower || block->upper)
                continue;
            take_out(model, block);
            model->reserved -= block->bytes;
            model->calls++;
            free(block);
        }
}

/* A new segment, as one block in no list; NULL: out of memory. */
static block_t *grow(model_t *model, size_t bytes, bool small)
{
    size_t segment = small              ? SMALL_SEGMENT
                     : bytes < OWN_FROM ? MIDDLE_SEGMENT
                                        : round_up(bytes, OWN_ROUNDING);
    if (segment > model->memory - model->reserved)
        give_back(model);
    block_t *block = segment > model->memory - model->reserved ? NULL : calloc(1, sizeof(*block));
    if (!block)
        return NULL;
    *block = (block_t){.address = model->next_address, .bytes = segment, .small = small};
    model->next_address += segment;
    model->reserved += segment;
    if (model->reserved > model->reserved_peak)
        model->reserved_peak = model->reserved;
    model->calls++;
    return block;
}

static bool worth_splitting(const block_t *block, size_t bytes)
{
    size_t rest = block->bytes - bytes;
    return block->small ? rest >= SMALL_REST : rest > LARGE_REST;
}

static block_t *allocate(model_t *model, size_t bytes)
{
    bytes = round_up(bytes, ROUNDING);
    bool small = bytes <= SMALL_MOST;
    block_t *block = best_fit(model, bytes, small);
    if (block) {
        take_out(model, block);
        model->hits++;
    } else if (!(block = grow(model, bytes, small))) {
        return NULL;
    }
    block_t *rest = worth_splitting(block, bytes) ? calloc(1, sizeof(*rest)) : NULL;
    if (!rest)
        return block;
    *rest = (block_t){.address = block->address + bytes,
                      .bytes = block->bytes - bytes,
                      .small = small,
                      .lower = block,
                      .upper = block->upper};
    if (rest->upper)
        rest->upper->lower = rest;
    block->upper = rest;
    block->bytes = bytes;
    insert(model, rest);
    return block;
}

/* `block` takes in its upper neighbour. */
static void merge_upper(block_t *block)
{
    block_t *upper = block->upper;
    block->bytes += upper->bytes;
    block->upper = upper->upper;
    if (block->upper)
        block->upper->lower = block;
    free(upper);
}

static void release(model_t *model, block_t *block)
{
    if (block->upper && block->upper->free) {
        take_out(model, block->upper);
        merge_upper(block);
    }
    if (block->lower && block->lower->free) {
        block = block->lower;
        take_out(model, block);
        merge_upper(block);
    }
    insert(model, block);
}

static int run_pass(model_t *model, const trace_t *trace, block_t **live)
{
    for (size_t i = 0; i < trace->count; i++) {
        const step_t *step = &trace->steps[i];
        block_t *block = live[step->slot];
        if (!step->allocates && block) {
            release(model, block);
            live[step->slot] = NULL;
        } else if (!(live[step->slot] = allocate(model, step->bytes))) {
            return trace_complain(trace, step->line, "the model is out of memory", NULL);
        }
    }
    for (uint32_t i = 0; i < trace->slots; i++) {
        if (live[i])
            release(model, live[i]);
        live[i] = NULL;
    }
    return 0;
}

int replay_pytorch(const trace_t *trace, const how_t *how, figures_t *figures)
{
    model_t model = {.memory = how->memory ? how->memory : SIZE_MAX, .next_address = MiB};
    block_t **live = calloc(trace->slots + 1, sizeof(block_t *));
    int status = 0;
    if (!live)
        return trace_complain(trace, 1, "out of host memory", NULL);
    for (unsigned i = 0; i < how->passes && status == 0; i++) {
        uint64_t calls = model.calls, hits = model.hits, begin = replay_now_ns();
        status = run_pass(&model, trace, live);
        figures->pass[i] = (pass_t){.live_peak = trace->live_peak,
                                    .upstream_peak = model.reserved_peak,
                                    .upstream_calls = model.calls - calls,
                                    .hits = model.hits - hits,
                                    .ns = replay_now_ns() - begin};
    }
    figures->counted = true;
    if (status == 0)
        give_back(&model); /* nothing is live: all of it */
    free(live);
    return status;
}
