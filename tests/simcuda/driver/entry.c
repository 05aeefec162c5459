/* The door: counts calls, adds latency, injects failures. One thread record per host thread holds
 * the counters, so counting is a plain increment; they are added up once, at exit. */
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const names[SIM_ID_COUNT] = {
#define SIM_FN(link, base, version, kind) #link,
#include "api.def"
#undef SIM_FN
};

typedef struct rule {
    uint64_t latency_ns;
    _Atomic uint64_t calls;
    bool without;
    struct {
        uint64_t nth;
        int error;
    } fail[16];
    int fails;
} rule_t;

static rule_t *rules[SIM_ID_COUNT]; /* set up by the constructor, then read only */
uint8_t sim_ruled[SIM_ID_COUNT];
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
    }
    sim_ruled[id] = rules[id] != NULL;
    return rules[id];
}

void sim_rule_latency(enum sim_id id, uint64_t ns)
{
    rule_t *r = rule_for(id);
    if (r) {
        r->latency_ns = ns;
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

/* An allocation fails for want of memory unless the key says otherwise. */
static int default_error(enum sim_id id)
{
    const char *n = names[id];
    bool alloc = strstr(n, "Alloc") || strstr(n, "MemCreate") || strstr(n, "ArrayCreate") ||
                 strstr(n, "HostRegister");
    return alloc ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

CUresult sim_enter_slow(enum sim_id id, bool needs_init)
{
    rule_t *r = rules[id];
    if (needs_init && atomic_load_explicit(&sim_state, memory_order_acquire) != 1) {
        return sim_state_error();
    }
    if (r->without) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (r->latency_ns) {
        sim_pause(r->latency_ns);
    }
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
                i ? "," : "", h->peak, h->used, h->peak_requested, h->requested);
        pthread_mutex_unlock(&h->mu);
    }
    fprintf(f, "]}\n");
    fclose(f);
}

/* One thread is left. A child of an initialised parent cannot use CUDA, and the file is the
 * parent's; a child of a parent that only forks may do both, and counts from zero. */
static void in_child(void)
{
    pthread_mutex_init(&threads_mu, NULL);
    if (atomic_load(&sim_state) != 0) {
        atomic_store(&sim_state, 2);
        sim_opt.stats[0] = 0;
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

__attribute__((constructor)) static void load(void)
{
    pthread_key_create(&thread_key, thread_end);
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        pthread_mutex_init(&sim_devices[i].heap.mu, NULL);
        pthread_mutex_init(&sim_devices[i].primary_mu, NULL);
        sim_devices[i].ordinal = i;
    }
    sim_options_init();
    pthread_atfork(NULL, NULL, in_child);
    stay_loaded();
}

__attribute__((destructor)) static void unload(void)
{
    atomic_store(&sim_state, 3);
    pthread_mutex_lock(&threads_mu);
    bool counted = anything_counted();
    pthread_mutex_unlock(&threads_mu);
    if (sim_opt.stats[0] && counted) {
        sim_stats_write(sim_opt.stats);
    }
}
