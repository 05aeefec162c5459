#include "shim/life/report_collect.h"
#include <string.h>
#include "include/cachealloc.h"
#include "config/options.h"
#include "registry/report/suppress.h"
#include "shim/upstream/pool_stats.h"

static ca_rules_t rules;

void ca_report_collect_configure(void)
{
    if (strcmp(ca_options.suppressions, "off") != 0)
        ca_suppress_read(&rules, ca_options.suppressions);
    if (ca_options.suppressions_builtin)
        ca_suppress_add_builtin(&rules);
}

static void fill_pool(ca_model_pool_t *said)
{
    ca_arena_stats_t pool, pinned;
    size_t contexts;
    bool complete = ca_pool_stats(&pool, &contexts);
    complete &= ca_pool_stats_pinned(&pinned);
    said->live_blocks = pool.live_bytes;
    said->pending = pool.pending_bytes;
    said->ready = pool.ready_bytes;
    said->reserved = pool.reserved_bytes;
    said->reserved_peak = pool.reserved_peak;
    said->pinned_reserved = pinned.reserved_bytes;
    said->incomplete = !complete;
}

bool ca_report_even_empty(void)
{
    return ca_options.peak == CA_PEAK_ALWAYS || strcmp(ca_options.leak_report, "stderr") != 0;
}

static ca_model_options_t options_of(const char *cause)
{
    return (ca_model_options_t){
        .cause = cause,
        .version = cachealloc_version(),
        .leak_min = ca_options.leak_min,
        .leak_max = ca_options.leak_max,
        .leak_depth = ca_options.leak_depth,
        .stack_depth = ca_options.stack_depth,
        .sampled = ca_options.stacks.bytes,
        .rules = &rules,
        .fold = ca_options.fold,
        .peak = ca_options.peak != CA_PEAK_OFF,
        .print_rules = ca_options.suppressions_print,
        .even_empty = cause || ca_report_even_empty(),
    };
}

ca_model_t *ca_report_collect(const char *cause, const char *rank, bool quick)
{
    ca_model_options_t options = options_of(cause);
    options.rank = rank;
    options.quick = quick;
    ca_model_t *model = ca_model_make(&options);
    if (model)
        fill_pool(&model->pool);
    return model;
}

ca_model_t *ca_report_collect_of(const ca_origin_t *origin)
{
    ca_model_options_t options = options_of("journal");
    options.origin = origin;
    return ca_model_make(&options);
}
