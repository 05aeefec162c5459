#include "shim/life/prometheus.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "include/cachealloc.h"
#include "base/counters.h"
#include "base/mem.h"
#include "registry/table/registry.h"
#include "registry/stack/stack.h"
#include "registry/table/timeline.h"
#include "shim/cuda/contexts.h"
#include "shim/upstream/pool_stats.h"

/* Of the pool on each device: name, member of ca_arena_stats_t, help. */
#define POOL_METRICS(X)                                                                            \
    X(reserved_bytes, reserved_bytes, "device memory that the pool holds from the driver")         \
    X(live_bytes, live_bytes, "in live blocks, rounding included")                                 \
    X(pending_bytes, pending_bytes, "freed, not yet known to be done with")                        \
    X(ready_bytes, ready_bytes, "free for reuse")                                                  \
    X(largest_ready_bytes, largest_ready, "the largest ready block")                               \
    X(idle_bytes, idle_bytes, "in segments without a live block, that may go back")                \
    X(exported_bytes, exported_bytes, "freed, and kept for other processes")                       \
    X(segments, segments, "segments")                                                              \
    X(blocks, blocks, "blocks: live, pending, ready and exported")

#define COUNT_TRIES 3

typedef unsigned long long number_t;

/* One thread writes. A device and a kind that had live memory once are written from then on: a
 * metric that vanishes is another thing than one that is 0. */
static ca_registry_total_t live[CA_REGISTRY_DEVICES][CA_KIND_COUNT];
static bool seen[CA_REGISTRY_DEVICES][CA_KIND_COUNT];
static ca_arena_stats_t pools[CA_REGISTRY_DEVICES];
static bool served[CA_REGISTRY_DEVICES]; /* has a context, or had one */

static void begin(ca_out_t *out, const char *name, const char *type, const char *help)
{
    ca_out_printf(out, "# HELP cachealloc_%s %s\n# TYPE cachealloc_%s %s\n", name, help, name,
                  type);
}

static void one(ca_out_t *out, const char *labels, const char *name, const char *type,
                const char *help, uint64_t value)
{
    begin(out, name, type, help);
    ca_out_printf(out, "cachealloc_%s{%s} %llu\n", name, labels, (number_t)value);
}

static void write_counters(ca_out_t *out, const char *labels)
{
    ca_registry_total_t lost = ca_registry_lost();
#define CA_COUNTER(name, label)                                                                    \
    one(out, labels, #name "_total", "counter", label, ca_counter_read(name));
#include "base/counters.def"
#undef CA_COUNTER
    one(out, labels, "lost_allocations_total", "counter",
        "allocations that were alive when their context was destroyed", lost.count);
    one(out, labels, "lost_bytes_total", "counter", "bytes of those", lost.bytes);
}

static void write_live(ca_out_t *out, const char *labels, bool bytes)
{
    const char *name = bytes ? "live_bytes" : "live_allocations";
    begin(out, name, "gauge",
          bytes ? "live bytes as the program asked for them" : "live allocations");
    for (unsigned device = 0; device < CA_REGISTRY_DEVICES; device++)
        for (unsigned kind = 0; kind < CA_KIND_COUNT; kind++)
            if (seen[device][kind])
                ca_out_printf(
                    out, "cachealloc_%s{%s,device=\"%u\",kind=\"%s\"} %llu\n", name, labels, device,
                    ca_kind_name((ca_kind_t)kind),
                    (number_t)(bytes ? live[device][kind].bytes : live[device][kind].count));
}

/* What is in use now is not for long. */
static bool count_live(void)
{
    bool whole = false;
    for (unsigned tries = 0; !whole && tries < COUNT_TRIES; tries++) {
        memset(live, 0, sizeof live);
        whole = ca_registry_count(live);
    }
    return whole;
}

static void write_registry(ca_out_t *out, const char *labels)
{
    if (count_live()) {
        for (unsigned device = 0; device < CA_REGISTRY_DEVICES; device++)
            for (unsigned kind = 0; kind < CA_KIND_COUNT; kind++)
                seen[device][kind] |= live[device][kind].count != 0;
        write_live(out, labels, false);
        write_live(out, labels, true);
    }
    one(out, labels, "live_peak_bytes", "gauge", "upper bound of the most live bytes at a time",
        ca_registry_peak_bytes());
}

static bool read_pools(void)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count;
    bool complete = ca_contexts_try_living(living, &count);
    for (size_t i = 0; i < count; i++)
        served[living[i]->device] = true;
    for (unsigned device = 0; device < CA_REGISTRY_DEVICES && complete; device++)
        if (served[device])
            complete = ca_pool_stats_on(device, &pools[device]);
    return complete;
}

static void write_pool_line(ca_out_t *out, const char *labels, const char *name, unsigned device,
                            size_t value)
{
    ca_out_printf(out, "cachealloc_pool_%s{%s,device=\"%u\"} %zu\n", name, labels, device, value);
}

static void write_pools(ca_out_t *out, const char *labels)
{
    if (!read_pools())
        return;
#define METRIC(name, member, help)                                                                 \
    begin(out, "pool_" #name, "gauge", help);                                                      \
    for (unsigned device = 0; device < CA_REGISTRY_DEVICES; device++)                              \
        if (served[device])                                                                        \
            write_pool_line(out, labels, #name, device, pools[device].member);
    POOL_METRICS(METRIC)
#undef METRIC
}

static void write_process(ca_out_t *out, const char *labels)
{
    ca_arena_stats_t all, pinned;
    size_t contexts;
    if (ca_pool_stats(&all, &contexts) && ca_pool_stats_pinned(&pinned)) {
        one(out, labels, "pool_reserved_peak_bytes", "gauge",
            "the most device memory that the pool held", all.reserved_peak);
        one(out, labels, "pinned_pool_live_bytes", "gauge", "pinned memory in live blocks",
            pinned.live_bytes);
        one(out, labels, "pinned_pool_reserved_bytes", "gauge",
            "pinned memory that the pool holds from the driver", pinned.reserved_bytes);
        one(out, labels, "pinned_pool_reserved_peak_bytes", "gauge",
            "the most pinned memory that the pool held", pinned.reserved_peak);
        one(out, labels, "contexts", "gauge", "contexts", contexts);
    }
    one(out, labels, "call_stacks", "gauge", "different call stacks kept", ca_stack_count());
    one(out, labels, "host_bytes", "gauge", "host memory of the library's own", ca_mem_mapped());
    one(out, labels, "start_time_seconds", "gauge", "when the library first served, since 1970",
        ca_timeline_start_s());
    begin(out, "info", "gauge", "the version of the library");
    ca_out_printf(out, "cachealloc_info{%s,version=\"%s\"} 1\n", labels, cachealloc_version());
}

void ca_prometheus_write(ca_out_t *out, const char *labels)
{
    write_registry(out, labels);
    write_pools(out, labels);
    write_process(out, labels);
    write_counters(out, labels);
}

void ca_prometheus_reset_after_fork(void)
{
    memset(seen, 0, sizeof seen);
    memset(served, 0, sizeof served);
}
