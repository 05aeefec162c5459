#include "shim/alloc/oom_report.h"
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>
#include "config/options.h"
#include "pool/blocks/pieces.h"
#include "pool/range/range.h"
#include "registry/report/formats.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/upstream/arenas.h"
#include "shim/upstream/pool_stats.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"

/* What the options take, see config/options.def. */
#define SMALL_MOST ((size_t)16 << 20)
#define MAX_SPLIT_LEAST ((size_t)1 << 20)
#define UNIT ((size_t)2 << 20) /* the pool grows by such */

typedef struct shortage {
    size_t asked;
    bool host;        /* pinned memory, of which the driver says nothing */
    bool known;       /* by the driver: */
    size_t free, all; /* bytes of the device */
    size_t graphs;    /* of this process */
    size_t limit;     /* SIZE_MAX for none */
    size_t reserved;  /* in the context whose limit that is */
    bool complete;
    ca_arena_stats_t pool; /* all contexts on the device */
    ca_pieces_t pieces;
    size_t unpooled; /* bytes that the driver serves, held here, */
    size_t pooled;   /* and that the pool serves, without rounding */
} shortage_t;

/* The driver's own numbers, not those that count what we cache as free. */
static void ask_driver(shortage_t *now, ca_context_t *context)
{
    __typeof__(cuMemGetInfo_v2) *ask = ca_driver()->cuMemGetInfo_v2;
    ca_entered_t entered;
    if (now->host || !ask || !context || ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return;
    now->known = ask(&now->free, &now->all) == CUDA_SUCCESS;
    ca_upstream_leave(&entered);
}

/* Memory of allocation nodes, which no record of ours has. */
static void ask_graphs(shortage_t *now, unsigned device)
{
    __typeof__(cuDeviceGetGraphMemAttribute) *ask = ca_driver()->cuDeviceGetGraphMemAttribute;
    cuuint64_t bytes = 0;
    if (now->known && ask &&
        ask((CUdevice)device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS)
        now->graphs = (size_t)bytes;
}

static void read_shortage(shortage_t *now, unsigned device)
{
    ca_context_t *context = ca_context_known();
    if (!context || context->device != device)
        context = ca_context_on(device);
    now->limit = SIZE_MAX;
    if (context && context->arena && !now->host) {
        size_t idle;
        now->limit = context->limit;
        now->reserved = ca_context_reserved(context, &idle);
    }
    ask_driver(now, context);
    ask_graphs(now, device);
    now->complete =
        now->host ? ca_pool_stats_pinned(&now->pool) : ca_pool_stats_on(device, &now->pool);
    if (!now->host)
        (void)ca_pool_stats_pieces(device, &now->pieces); /* what is left out makes for no hint */
}

/* Of the device: what neither the pool nor the driver's other allocations here account for. */
static size_t elsewhere(const shortage_t *now)
{
    size_t known = now->free + now->pool.reserved_bytes + now->unpooled + now->graphs;
    return now->known && known < now->all ? now->all - known : 0;
}

#define BYTES(value) ((unsigned long long)(value))

static void write_shortage(ca_out_t *out, const shortage_t *now)
{
    const ca_arena_stats_t *pool = &now->pool;
    size_t cached = pool->ready_bytes;
    unsigned pieces = pool->largest_ready < cached
                          ? (unsigned)((cached - pool->largest_ready) * 100 / cached)
                          : 0;
    if (now->known)
        ca_out_printf(out, "driver: %llu bytes free of %llu\n", BYTES(now->free), BYTES(now->all));
    if (now->limit != SIZE_MAX)
        ca_out_printf(out, "limit: %llu bytes in each context\n", BYTES(now->limit));
    ca_out_printf(out,
                  "pool: %llu bytes reserved: %llu live, %llu pending, %llu cached in blocks of up "
                  "to %llu (%u%% fragmented), %llu kept for other processes%s\n",
                  BYTES(pool->reserved_bytes), BYTES(pool->live_bytes), BYTES(pool->pending_bytes),
                  BYTES(cached), BYTES(pool->largest_ready), pieces, BYTES(pool->exported_bytes),
                  now->complete ? "" : " (incomplete: a heap was in use)");
    if (now->unpooled)
        ca_out_printf(out, "not pooled: %llu bytes\n", BYTES(now->unpooled));
    if (now->graphs)
        ca_out_printf(out, "graphs: %llu bytes held by CUDA graphs of this process\n",
                      BYTES(now->graphs));
    if (elsewhere(now))
        ca_out_printf(out, "others: %llu bytes held by other processes and by the driver itself\n",
                      BYTES(elsewhere(now)));
}

static size_t round_up(size_t bytes, size_t unit)
{
    return bytes > SIZE_MAX - unit ? SIZE_MAX : (bytes + unit - 1) / unit * unit;
}

/* Bytes of one of their pages, see pool/range/range.h. */
static size_t expandable_page(const shortage_t *now)
{
    size_t page = now->pool.reserved_bytes / CA_RANGE_SHARE;
    if (page < now->all / CA_RANGE_DEVICE_SHARE)
        page = now->all / CA_RANGE_DEVICE_SHARE;
    page = round_up(page ? page : 1, UNIT);
    return page < CA_RANGE_PAGE_MOST ? page : CA_RANGE_PAGE_MOST;
}

/* What blocks that have whole pages may take more. */
static size_t in_pages(size_t bytes)
{
    return bytes + bytes / 8;
}

/* Pages would have sufficed so far, and suffice now. */
static bool expandable_helps(const shortage_t *now, size_t lacks)
{
    const ca_arena_stats_t *pool = &now->pool;
    size_t page = expandable_page(now), available = pool->reserved_bytes + now->free;
    if (in_pages(pool->live_peak) > available ||
        in_pages(pool->live_bytes + now->asked) > available)
        return false;
    return ca_options.expandable_segments != CA_EXPANDABLE_TRUE && ca_driver()->cuMemCreate &&
           ca_driver()->cuMemMap && pool->reserved_bytes + now->asked >= CA_RANGE_FROM &&
           ca_pieces_pages(&now->pieces, page) >= round_up(lacks, page);
}

/* Options that would have left enough to the driver, with a value; nothing where none would. */
static void write_pieces(ca_out_t *out, const shortage_t *now)
{
    size_t lacks = now->asked - now->free;
    size_t small = ca_pieces_small(&now->pieces, lacks, SMALL_MOST);
    size_t split = small ? 0 : ca_pieces_max_split(&now->pieces, lacks, MAX_SPLIT_LEAST);
    if (expandable_helps(now, lacks))
        ca_out_printf(out,
                      "hint: %llu bytes are cached in pieces, between buffers that live: "
                      "`expandable_segments:true` makes one of their pages\n",
                      BYTES(now->pool.ready_bytes));
    if (small || split)
        ca_out_printf(
            out,
            "hint: %llu bytes are cached in pieces, between buffers that live: `%s:%lluK` "
            "gives those segments of their own\n",
            BYTES(now->pool.ready_bytes), small ? "x_small" : "max_split",
            BYTES((small ? small : split) >> 10));
}

/* The least limit under which the call would not have met it. */
static void write_limit(ca_out_t *out, const shortage_t *now)
{
    size_t needs = round_up(now->reserved + round_up(now->asked, UNIT), UNIT);
    if (now->free >= round_up(now->asked, UNIT))
        ca_out_printf(out,
                      "hint: `limit` is in the way: the device itself has room, and `limit:%lluM` "
                      "lets the call have it\n",
                      BYTES(needs >> 20));
    else
        ca_out_printf(out, "hint: `limit` is in the way, and the device has less than that free\n");
}

static bool is_rounded(void)
{
    return ca_options.size_classes.count != 0 || ca_options.roundup != 0;
}

/* What sizes are rounded up by. */
static void write_rounding(ca_out_t *out, const shortage_t *now)
{
    size_t live = now->pool.live_bytes, more = live > now->pooled ? live - now->pooled : 0;
    if (is_rounded() && now->free < now->asked && now->free + more >= now->asked)
        ca_out_printf(out,
                      "hint: %llu bytes of what lives are rounding: `%s` asks for no more than "
                      "the program does\n",
                      BYTES(more),
                      ca_options.size_classes.count ? "size_classes:none" : "roundup:0");
}

/* What would have helped. Several may; none where the program holds it all. */
static void write_hints(ca_out_t *out, const shortage_t *now)
{
    const ca_arena_stats_t *pool = &now->pool;
    size_t asked = now->asked, all_free = now->free + pool->ready_bytes + pool->pending_bytes;
    bool over =
        now->limit != SIZE_MAX && (asked > now->limit || now->reserved > now->limit - asked);
    if (now->known && asked > now->all)
        ca_out_printf(out, "hint: the device has less than that in all\n");
    if (over)
        write_limit(out, now);
    else if (now->known)
        write_rounding(out, now);
    if (now->known && !over && now->free < asked && pool->largest_ready < asked &&
        now->free + pool->ready_bytes >= asked)
        write_pieces(out, now);
    if (pool->pending_bytes != 0 && all_free >= asked)
        ca_out_printf(out,
                      "hint: %llu bytes were freed and wait for work on the device: with a "
                      "synchronisation before the call they can be had\n",
                      BYTES(pool->pending_bytes));
    if (pool->exported_bytes)
        ca_out_printf(
            out,
            "hint: %llu bytes were freed after an IPC handle was made of them: they go "
            "back once nothing lives beside them; `ipc:dedicated` keeps large ones apart\n",
            BYTES(pool->exported_bytes));
    if (ca_graph_memory_bytes())
        ca_out_printf(
            out,
            "hint: %llu bytes are kept for graphs (`capture:keep`): cachealloc_trim() gives "
            "back those of graphs that are destroyed\n",
            BYTES(ca_graph_memory_bytes()));
    if (now->known && asked <= now->all && elsewhere(now) + all_free >= asked && all_free < asked)
        ca_out_printf(out, "hint: without what others hold there would be enough: nvidia-smi "
                           "names them; what another process under this library leaves idle it "
                           "gives back with `decay`, set there\n");
    if (now->host)
        ca_out_printf(out, "hint: pinned memory takes the host's memory: see `ulimit -l` and "
                           "what is free there\n");
}

void ca_oom_report_write(ca_out_t *out, ca_kind_t kind, size_t bytes, unsigned device)
{
    static shortage_t now; /* not on a small stack */
    ca_model_held_t held = {
        .device = device,
        .host = kind == CA_KIND_PINNED || kind == CA_KIND_REGISTERED,
        .stack = ca_track_runtime_stack ? ca_track_runtime_stack : ca_track_stack(),
    };
    ca_model_options_t options = {.cause = "oom",
                                  .leak_depth = ca_options.leak_depth,
                                  .fold = ca_options.fold,
                                  .quick = true,
                                  .held = &held};
    ca_model_t *model = ca_model_make(&options);
    now = (shortage_t){.asked = bytes, .host = held.host};
    if (model) {
        now.unpooled = (size_t)model->unpooled;
        now.pooled = (size_t)(model->sections[CA_SECTION_LEAKED].bytes - model->unpooled);
    }
    read_shortage(&now, device);
    ca_out_printf(out, "cachealloc[%d]: warning: out of memory: %llu bytes, device %u, %s memory\n",
                  (int)getpid(), BYTES(bytes), device, ca_kind_name(kind));
    if (model)
        ca_format_asked(out, model);
    write_shortage(out, &now);
    write_hints(out, &now);
    if (model)
        ca_format_held(out, model);
    ca_model_free(model);
}
