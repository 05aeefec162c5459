/* SIMCUDA=key:value,...  One table; an unknown key is named on stderr and ignored. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sim_options_t sim_opt = {
    .devices = 1,
    .memory = (size_t)24 << 30,
    .host_memory = SIZE_MAX,
    .driver = 13000,
    .free_waits = true,
    .kernel_ns = 0,
    .arch = 75,
    .reservation = SIZE_MAX,
    .mappings = SIZE_MAX,
};

static bool number(const char *s, uint64_t *out)
{
    char *end;
    uint64_t n = strtoull(s, &end, 10);
    if (end == s) {
        return false;
    }
    switch (*end) {
    case 'G':
    case 'g':
        n <<= 10; /* fall through */
    case 'M':
    case 'm':
        n <<= 10; /* fall through */
    case 'K':
    case 'k':
        n <<= 10;
        end++;
        break;
    default:
        break;
    }
    *out = n;
    return *end == 0;
}

static bool set_devices(char *v)
{
    uint64_t n;
    if (!number(v, &n) || n > SIM_MAX_DEVICES) {
        return false;
    }
    sim_opt.devices = (int)n;
    return true;
}

static bool set_arch(char *v)
{
    uint64_t n;
    if (!number(v, &n) || n < 10 || n > 999) {
        return false;
    }
    sim_opt.arch = (int)n;
    return true;
}

static bool set_memory(char *v)
{
    uint64_t n;
    if (!number(v, &n) || n < SIM_PAGE || n > (uint64_t)1 << 40) {
        return false;
    }
    sim_opt.memory = n / SIM_PAGE * SIM_PAGE;
    return true;
}

static bool set_addresses(char *v)
{
    uint64_t n;
    if (!number(v, &n) || n < SIM_PAGE || n > (uint64_t)1 << 42) {
        return false;
    }
    sim_opt.addresses = n / SIM_PAGE * SIM_PAGE;
    return true;
}

static bool set_host_memory(char *v)
{
    uint64_t n;
    if (!number(v, &n)) {
        return false;
    }
    sim_opt.host_memory = n;
    return true;
}

static bool set_driver(char *v)
{
    uint64_t n;
    if (!number(v, &n) || n > 99999) {
        return false;
    }
    sim_opt.driver = (int)n;
    return true;
}

static bool set_ends(char *v)
{
    sim_opt.ends_in_destructors = strcmp(v, "late") == 0;
    return sim_opt.ends_in_destructors || strcmp(v, "exit") == 0;
}

static bool set_sticky_reset(char *v)
{
    sim_opt.reset_heals = strcmp(v, "heals") == 0;
    return sim_opt.reset_heals || strcmp(v, "loses") == 0;
}

static bool set_free_waits(char *v)
{
    sim_opt.free_waits = strcmp(v, "0") != 0;
    return strcmp(v, "0") == 0 || strcmp(v, "1") == 0;
}

static bool set_busy_handles(char *v)
{
    sim_opt.busy_handles = strcmp(v, "1") == 0;
    return sim_opt.busy_handles || strcmp(v, "0") == 0;
}

static bool set_programmatic(char *v) /* trigger, early */
{
    sim_opt.triggers_early = strcmp(v, "early") == 0;
    return sim_opt.triggers_early || strcmp(v, "trigger") == 0;
}

static bool set_mempools(char *v)
{
    sim_opt.no_mempools = strcmp(v, "0") == 0;
    return sim_opt.no_mempools || strcmp(v, "1") == 0;
}

static bool set_pitch(char *v) /* plain, asker, height */
{
    sim_opt.pitch_by_asker = strcmp(v, "asker") == 0;
    sim_opt.pitch_by_height = strcmp(v, "height") == 0;
    return sim_opt.pitch_by_asker || sim_opt.pitch_by_height || strcmp(v, "plain") == 0;
}

static bool set_kernel_ns(char *v)
{
    return number(v, &sim_opt.kernel_ns);
}

static bool set_vmm(char *v) /* 0, 1, or one thing that it cannot do; may be repeated */
{
    static const char *const words[] = {"0", "nordma", "nomemory", "nofd", "captures"};
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(v, words[i]) == 0) {
            sim_opt.vmm |= 1u << i;
            return true;
        }
    }
    return strcmp(v, "1") == 0;
}

static bool set_reservation(char *v)
{
    uint64_t n;
    bool ok = number(v, &n);
    sim_opt.reservation = ok ? n : SIZE_MAX;
    return ok;
}

static bool set_mappings(char *v)
{
    uint64_t n;
    bool ok = number(v, &n);
    sim_opt.mappings = ok ? n : SIZE_MAX;
    return ok;
}

static bool set_set_ns(char *v)
{
    return number(v, &sim_opt.set_ns);
}

static bool set_module_bytes(char *v)
{
    uint64_t n;
    bool ok = number(v, &n);
    sim_opt.module_bytes = ok ? n : 0;
    return ok;
}

static bool set_context_bytes(char *v)
{
    uint64_t n;
    bool ok = number(v, &n);
    sim_opt.context_bytes = ok ? n : 0;
    return ok;
}

static bool set_shared(char *v)
{
    return sim_shared_open(v);
}

static bool set_stats(char *v)
{
    snprintf(sim_opt.stats, sizeof(sim_opt.stats), "%s", v);
    return strlen(v) < sizeof(sim_opt.stats);
}

/* latencies:h100, in ns. Pairs of allocations and frees, records and queries with kernels in flight
 * are those of an H100 and an H200 (tests/gpu/results: bench-*, call_cost, alloc_cost); submissions
 * are of the order that is known of launches, 2 to 3 us. Of virtual memory an A100's are published
 * (github.com/ovg-project/kvcached, benchmarks/bench_vmm, handles of 2 MiB). */
static const struct {
    const char *name;
    uint64_t ns;
} h100[] = {
    {"cuMemAlloc_v2", 60000},        {"cuMemFree_v2", 30000},
    {"cuMemAllocHost_v2", 474000},   {"cuMemHostAlloc", 474000},
    {"cuMemFreeHost", 206000},       {"cuMemAllocAsync", 510},
    {"cuMemAllocAsync_ptsz", 510},   {"cuMemFreeAsync", 660},
    {"cuMemFreeAsync_ptsz", 660},    {"cuMemGetInfo_v2", 24400},
    {"cuEventRecord", 250},          {"cuEventRecord_ptsz", 250},
    {"cuCtxRecordEvent", 460},       {"cuEventQuery", 1340},
    {"cuStreamWaitEvent", 350},      {"cuStreamWaitEvent_ptsz", 350},
    {"cuCtxWaitEvent", 350},         {"cuLaunchKernel", 2500},
    {"cuLaunchKernel_ptsz", 2500},   {"cuLaunchKernelEx", 2500},
    {"cuLaunchKernelEx_ptsz", 2500}, {"cuLaunchCooperativeKernel", 2500},
    {"cuMemcpyHtoDAsync_v2", 2500},  {"cuMemcpyHtoDAsync_v2_ptsz", 2500},
    {"cuMemcpyDtoHAsync_v2", 2500},  {"cuMemcpyDtoHAsync_v2_ptsz", 2500},
    {"cuMemcpyDtoDAsync_v2", 2500},  {"cuMemcpyDtoDAsync_v2_ptsz", 2500},
    {"cuMemcpyAsync", 2500},         {"cuMemcpyAsync_ptsz", 2500},
    {"cuMemsetD8Async", 2500},       {"cuMemsetD8Async_ptsz", 2500},
    {"cuMemsetD32Async", 2500},      {"cuMemsetD32Async_ptsz", 2500},
    {"cuGraphLaunch", 2500},         {"cuGraphLaunch_ptsz", 2500},
    {"cuMemCreate", 193000},         {"cuMemMap", 1450},
    {"cuMemSetAccess", 36000},       {"cuMemUnmap", 26000},
};

static bool set_latencies(char *v)
{
    bool known = strcmp(v, "h100") == 0;
    for (size_t i = 0; known && i < sizeof(h100) / sizeof(h100[0]); i++) {
        sim_rule_latency((enum sim_id)sim_id_of(h100[i].name), h100[i].ns, 1, false);
    }
    return known;
}

static int function_id(const char *name)
{
    int id = sim_id_of(name);
    if (id < 0) {
        fprintf(stderr, "simcuda: SIMCUDA names an unknown function: %s\n", name);
    }
    return id;
}

static bool delay(char *v, bool after) /* NAME=NS or NAME=NS/K */
{
    char *eq = strchr(v, '='), *slash = strchr(v, '/');
    uint64_t ns, each = 1;
    if (!eq || (slash && (!number(slash + 1, &each) || each == 0))) {
        return false;
    }
    if (slash) {
        *slash = 0;
    }
    if (!number(eq + 1, &ns)) {
        return false;
    }
    *eq = 0;
    int id = function_id(v);
    if (id >= 0) {
        sim_rule_latency((enum sim_id)id, ns, each, after);
    }
    return true;
}

static bool set_latency(char *v)
{
    return delay(v, false);
}

static bool set_after(char *v)
{
    return delay(v, true);
}

static bool set_fail(char *v) /* NAME@N or NAME@N=ERROR */
{
    char *at = strchr(v, '@'), *eq = strchr(v, '=');
    uint64_t nth;
    int error = -1;
    if (!at) {
        return false;
    }
    *at = 0;
    if (eq) {
        *eq = 0;
        error = sim_error_code(eq + 1);
        if (error < 0) {
            return false;
        }
    }
    if (!number(at + 1, &nth) || nth == 0) {
        return false;
    }
    int id = function_id(v);
    if (id >= 0) {
        sim_rule_fail((enum sim_id)id, nth, error);
    }
    return true;
}

static bool set_without(char *v)
{
    int id = function_id(v);
    if (id >= 0) {
        sim_rule_without((enum sim_id)id);
    }
    return true;
}

static bool set_runtime(char *v) /* the simulated runtime's key */
{
    (void)v;
    return true;
}

static bool set_racecheck(char *v) /* 0, 1, strict */
{
    bool strict = strcmp(v, "strict") == 0;
    sim_opt.race_strict |= strict;
    sim_opt.racecheck = strict || strcmp(v, "1") == 0;
    return sim_opt.racecheck || strcmp(v, "0") == 0;
}

static bool set_racecheck_threads(char *v) /* relaxed, strict */
{
    sim_opt.race_strict = strcmp(v, "strict") == 0;
    return sim_opt.race_strict || strcmp(v, "relaxed") == 0;
}

static const struct {
    const char *key;
    bool (*set)(char *value);
} keys[] = {
    {"devices", set_devices},
    {"memory", set_memory},
    {"addresses", set_addresses},
    {"host_memory", set_host_memory},
    {"arch", set_arch},
    {"driver", set_driver},
    {"ends", set_ends},
    {"sticky_reset", set_sticky_reset},
    {"free_waits", set_free_waits},
    {"mempools", set_mempools},
    {"vmm", set_vmm},
    {"reservation", set_reservation},
    {"mappings", set_mappings},
    {"programmatic", set_programmatic},
    {"busy_handles", set_busy_handles},
    {"pitch", set_pitch},
    {"module_bytes", set_module_bytes},
    {"context_bytes", set_context_bytes},
    {"shared", set_shared},
    {"stats", set_stats},
    {"kernel_ns", set_kernel_ns},
    {"set_ns", set_set_ns},
    {"latency", set_latency},
    {"latencies", set_latencies},
    {"after", set_after},
    {"fail", set_fail},
    {"without", set_without},
    {"racecheck", set_racecheck},
    {"runtime", set_runtime},
    {"racecheck_threads", set_racecheck_threads},
};

static void set_one(char *item)
{
    char *value = strchr(item, ':');
    if (value) {
        *value++ = 0;
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(keys[i].key, item) == 0) {
            if (!value || !keys[i].set(value)) {
                fprintf(stderr, "simcuda: SIMCUDA: bad value for %s, ignored\n", item);
            }
            return;
        }
    }
    fprintf(stderr, "simcuda: SIMCUDA: unknown key %s, ignored\n", item);
}

void sim_options_init(void)
{
    static bool done;
    const char *env = getenv("SIMCUDA");
    if (done || !env) {
        return;
    }
    done = true;
    char *copy = strdup(env), *save = NULL;
    for (char *item = copy ? strtok_r(copy, ",", &save) : NULL; item;
         item = strtok_r(NULL, ",", &save)) {
        set_one(item);
    }
    free(copy);
}
