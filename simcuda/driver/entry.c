/* The door: counts calls, adds latency, injects failures. One thread record per host thread holds
 * the counters, so counting is a plain increment; they are added up once, at exit. */
#include "sim.h"
#include "../simcuda.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const names[SIM_ID_COUNT] = {
#define SIM_FN(link, base, version, kind) #link,
#include "api.def"
#undef SIM_FN
};

typedef struct delay {
    uint64_t ns, each; /* of every so many calls the last one */
    _Atomic uint64_t calls;
} delay_t;

typedef struct rule {
    delay_t before, after;
    _Atomic uint64_t calls;
    bool without;
    struct {
        uint64_t nth;
        int error;
    } fail[16];
    int fails;
    /* simcuda_fail, under the rule's own lock */
    pthread_mutex_t mu;
    bool watched;
    uintptr_t from, to; /* the callers that count */
    uint64_t seen, fail_at;
    int fail_error;
} rule_t;

/* Set up by the constructor and by simcuda_fail; what is there stays. */
static rule_t *rules[SIM_ID_COUNT];
static const int versions[SIM_ID_COUNT] = {
#define SIM_FN(link, base, version, kind) version,
#include "api.def"
#undef SIM_FN
};
_Atomic uint8_t sim_ruled[SIM_ID_COUNT];
_Atomic int sim_state;
__thread sim_thread_t *sim_tls __attribute__((tls_model("initial-exec")));

static pthread_mutex_t threads_mu = PTHREAD_MUTEX_INITIALIZER;
static sim_thread_t *threads_all, *threads_free;
static uint64_t next_serial;
static pthread_key_t thread_key;

static void thread_end(void *arg)
{
    sim_thread_t *t = arg;
    sim_tls = NULL;
    if (atomic_load(&sim_state) == 1) {
        sim_thread_drop_streams(t);
    }
    pthread_mutex_lock(&threads_mu);
    t->depth = 0;
    t->known.n = 0;
    t->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    t->next_free = threads_free;
    threads_free = t;
    pthread_mutex_unlock(&threads_mu);
}

sim_thread_t *sim_thread_attach(void)
{
    pthread_mutex_lock(&threads_mu);
    sim_thread_t *t = threads_free;
    if (t) {
        threads_free = t->next_free;
    } else {
        t = calloc(1, sizeof(*t));
        if (!t) {
            fprintf(stderr, "simcuda: no memory for a thread record\n");
            abort();
        }
        t->next_all = threads_all;
        threads_all = t;
    }
    t->serial = ++next_serial;
    pthread_mutex_unlock(&threads_mu);
    sim_tls = t;
    pthread_setspecific(thread_key, t);
    return t;
}

CUresult sim_state_error(void)
{
    /* cuda.h, CUDA_ERROR_NOT_INITIALIZED: "not been initialized with cuInit() or that
     * initialization has failed"; CUDA_ERROR_DEINITIALIZED: "in the process of shutting down". A
     * forked child sees the former. */
    return atomic_load(&sim_state) == 3 ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

static rule_t *rule_for(enum sim_id id)
{
    if (!rules[id]) {
        rules[id] = calloc(1, sizeof(rule_t));
        if (rules[id]) {
            pthread_mutex_init(&rules[id]->mu, NULL);
        }
    }
    atomic_store_explicit(&sim_ruled[id], rules[id] != NULL, memory_order_release);
    return rules[id];
}

void sim_rule_latency(enum sim_id id, uint64_t ns, uint64_t each, bool after)
{
    rule_t *r = rule_for(id);
    if (r) {
        delay_t *d = after ? &r->after : &r->before;
        d->ns = ns;
        d->each = each;
    }
}

static void wait_out(delay_t *d)
{
    if (d->ns &&
        (atomic_fetch_add_explicit(&d->calls, 1, memory_order_relaxed) + 1) % d->each == 0) {
        sim_pause(d->ns);
    }
}

void sim_leave_slow(enum sim_id id)
{
    wait_out(&rules[id]->after);
}

void sim_rule_times(enum sim_id id, size_t more)
{
    rule_t *r = rules[id];
    if (more && atomic_load_explicit(&sim_ruled[id], memory_order_acquire) && r->before.each == 1) {
        sim_pause(more * r->before.ns);
    }
}

void sim_rule_fail(enum sim_id id, uint64_t nth, int error)
{
    rule_t *r = rule_for(id);
    if (r && r->fails < 16) {
        r->fail[r->fails].nth = nth;
        r->fail[r->fails++].error = error;
    }
}

void sim_rule_without(enum sim_id id)
{
    rule_t *r = rule_for(id);
    if (r) {
        r->without = true;
    }
}

bool sim_without(enum sim_id id)
{
    return rules[id] && rules[id]->without;
}

uint64_t sim_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void sim_pause(uint64_t ns)
{
    if (ns > 50000) {
        struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        while (nanosleep(&ts, &ts) != 0) {
        }
        return;
    }
    for (uint64_t end = sim_now_ns() + ns; sim_now_ns() < end;) {
    }
}

/* Undefined, as the CUDA Runtime API says of cudaEventDestroy and cudaStreamDestroy: hardware may
 * use another object, or crash, as cuEventQuery did for an event whose context had been reset
 * (tests/gpu/results/h200-580.md, after_reset/same-thread). */
void sim_dangling(const char *what)
{
    fprintf(stderr, "simcuda: %s is given %s that was destroyed\n", names[sim_thread()->current],
            what);
    abort();
}

/* An allocation fails for want of memory unless the key says otherwise. */
static int default_error(enum sim_id id)
{
    const char *n = names[id];
    bool alloc = strstr(n, "Alloc") || strstr(n, "MemCreate") || strstr(n, "ArrayCreate") ||
                 strstr(n, "HostRegister") || strcmp(n, "cuMemAddressReserve") == 0 ||
                 strcmp(n, "cuMemMap") == 0 || strcmp(n, "cuMemSetAccess") == 0;
    return alloc ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

/* The program's own wish: counted before anything else, so that N means the same in every state. */
static CUresult watched(rule_t *r, const void *caller)
{
    CUresult rc = CUDA_SUCCESS;
    uintptr_t at = (uintptr_t)caller;
    pthread_mutex_lock(&r->mu);
    if (r->watched && at >= r->from && at < r->to && ++r->seen == r->fail_at) {
        rc = (CUresult)r->fail_error;
    }
    pthread_mutex_unlock(&r->mu);
    return rc;
}

CUresult sim_enter_slow(enum sim_id id, bool needs_init, const void *caller)
{
    rule_t *r = rules[id];
    SIM_TRY(watched(r, caller));
    if (needs_init && atomic_load_explicit(&sim_state, memory_order_acquire) != 1) {
        return sim_state_error();
    }
    if (r->without) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    wait_out(&r->before);
    uint64_t nth = atomic_fetch_add_explicit(&r->calls, 1, memory_order_relaxed) + 1;
    for (int i = 0; i < r->fails; i++) {
        if (r->fail[i].nth == nth) {
            return (CUresult)(r->fail[i].error >= 0 ? r->fail[i].error : default_error(id));
        }
    }
    return CUDA_SUCCESS;
}

const char *sim_name(enum sim_id id)
{
    return names[id];
}

int sim_id_of(const char *link_name)
{
    for (int i = 0; i < SIM_ID_COUNT; i++) {
        if (strcmp(names[i], link_name) == 0) {
            return i;
        }
    }
    return -1;
}

typedef struct module {
    const char *name;
    uintptr_t from, to;
} module_t;

static int find_module(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    module_t *m = arg;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (strcmp(slash ? slash + 1 : info->dlpi_name, m->name) != 0) {
        return 0;
    }
    m->from = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD) {
            m->from = at < m->from ? at : m->from;
            m->to = at + p->p_memsz > m->to ? at + p->p_memsz : m->to;
        }
    }
    return 1;
}

SIM_API int simcuda_fail(const char *link_name, const char *caller, uint64_t nth, int error)
{
    module_t m = {caller, 0, caller ? 0 : UINTPTR_MAX};
    int id = sim_id_of(link_name);
    if (id < 0 || (caller && !dl_iterate_phdr(find_module, &m))) {
        return -1;
    }
    pthread_mutex_lock(&threads_mu);
    rule_t *r = rule_for((enum sim_id)id);
    pthread_mutex_unlock(&threads_mu);
    if (!r) {
        return -1;
    }
    pthread_mutex_lock(&r->mu);
    r->watched = true;
    r->from = m.from;
    r->to = m.to;
    r->seen = 0;
    r->fail_at = nth;
    r->fail_error = error;
    pthread_mutex_unlock(&r->mu);
    return 0;
}

SIM_API uint64_t simcuda_calls(const char *link_name)
{
    int id = sim_id_of(link_name);
    uint64_t seen = 0;
    if (id >= 0 && atomic_load_explicit(&sim_ruled[id], memory_order_acquire)) {
        pthread_mutex_lock(&rules[id]->mu);
        seen = rules[id]->seen;
        pthread_mutex_unlock(&rules[id]->mu);
    }
    return seen;
}

static void write_vmm(FILE *f)
{
    simcuda_vmm_t v;
    simcuda_vmm(&v);
    fprintf(f,
            ",\n\"vmm\":{\"handles\":%llu,\"mappings\":%llu,\"peak_mappings\":%llu,"
            "\"bytes\":%llu,\"mapped_bytes\":%llu,\"reservations\":%llu,"
            "\"reserved_bytes\":%llu}",
            (unsigned long long)v.handles, (unsigned long long)v.mappings,
            (unsigned long long)v.peak_mappings, (unsigned long long)v.bytes,
            (unsigned long long)v.mapped_bytes, (unsigned long long)v.reservations,
            (unsigned long long)v.reserved_bytes);
}

void sim_stats_write(const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        fprintf(stderr, "simcuda: stats: cannot write %s\n", path);
        return;
    }
    fprintf(f, "{\"calls\":{");
    const char *comma = "";
    pthread_mutex_lock(&threads_mu);
    for (int i = 0; i < SIM_ID_COUNT; i++) {
        uint64_t n = 0;
        for (sim_thread_t *t = threads_all; t; t = t->next_all) {
            n += atomic_load_explicit(&t->calls[i], memory_order_relaxed);
        }
        if (n) {
            fprintf(f, "%s\n\"%s\":%llu", comma, names[i], (unsigned long long)n);
            comma = ",";
        }
    }
    pthread_mutex_unlock(&threads_mu);
    fprintf(f, "},\n\"devices\":[");
    for (int i = 0; i < sim_opt.devices; i++) {
        sim_heap_t *h = &sim_devices[i].heap;
        pthread_mutex_lock(&h->mu);
        fprintf(f,
                "%s\n{\"peak_bytes\":%zu,\"live_bytes\":%zu,\"peak_requested_bytes\":%zu,"
                "\"live_requested_bytes\":%zu}",
                i ? "," : "", h->peak, h->used - h->kept, h->peak_requested, h->requested);
        pthread_mutex_unlock(&h->mu);
    }
    fprintf(f, "]");
    write_vmm(f);
    if (sim_opt.racecheck) {
        fprintf(f, ",\n\"races\":%llu", (unsigned long long)sim_race_total());
    }
    fprintf(f, "}\n");
    fclose(f);
}

/* The process that these locks belong to. A child made by a bare system call runs no handler of
 * pthread_atfork, and has the lock that a thread of its parent held. */
static pid_t owner;

/* One thread is left. A child of an initialised parent cannot use CUDA, and the file is the
 * parent's; a child of a parent that only forks may do both, and counts from zero. */
static void in_child(void)
{
    owner = getpid();
    pthread_mutex_init(&threads_mu, NULL);
    if (atomic_load(&sim_state) != 0) {
        atomic_store(&sim_state, 2);
        sim_opt.stats[0] = 0;
        sim_opt.racecheck = false;
        return;
    }
    for (sim_thread_t *t = threads_all; t; t = t->next_all) {
        for (int i = 0; i < SIM_ID_COUNT; i++) {
            atomic_store_explicit(&t->calls[i], 0, memory_order_relaxed);
        }
    }
}

/* Threads of ours and the threads' key outlive a dlclose: never unmap this library. */
static void stay_loaded(void)
{
    Dl_info me;
    if (dladdr((void *)&sim_state, &me)) {
        dlopen(me.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

static bool anything_counted(void)
{
    for (sim_thread_t *t = threads_all; t; t = t->next_all) {
        for (int i = 0; i < SIM_ID_COUNT; i++) {
            if (atomic_load_explicit(&t->calls[i], memory_order_relaxed)) {
                return true;
            }
        }
    }
    return false;
}

/* cuGetProcAddress does not find what is newer than the driver; a symbol of this library cannot be
 * hidden from dlsym, so there it fails. */
static void older_driver(void)
{
    for (int i = 0; i < SIM_ID_COUNT; i++) {
        if (versions[i] > sim_opt.driver) {
            sim_rule_without((enum sim_id)i);
        }
    }
}

__attribute__((constructor)) static void load(void)
{
    pthread_key_create(&thread_key, thread_end);
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        pthread_mutex_init(&sim_devices[i].heap.mu, NULL);
        pthread_mutex_init(&sim_devices[i].primary_mu, NULL);
        sim_devices[i].ordinal = i;
    }
    sim_options_init();
    older_driver();
    owner = getpid();
    pthread_atfork(NULL, NULL, in_child);
    stay_loaded();
}

__attribute__((destructor)) static void unload(void)
{
    if (owner != getpid()) {
        return;
    }
    atomic_store(&sim_state, 3);
    pthread_mutex_lock(&threads_mu);
    bool counted = anything_counted();
    pthread_mutex_unlock(&threads_mu);
    if (sim_opt.stats[0] && counted) {
        sim_stats_write(sim_opt.stats);
    }
    sim_race_finish();
    sim_shared_close();
}
