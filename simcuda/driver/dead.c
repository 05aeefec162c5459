/* The race check and memory that is not live: an access that is not wholly inside live memory is
 * reported with what became of the place. It is checked when the operation is submitted, so that
 * the report does not depend on timing, and once more when it runs: then it is the error 700, which
 * no correct program gets. */
#include "race.h"
#include "sim.h"

#include <stdio.h>

/* The latest ends of device memory; a heap's lock may be held, this one nests inside. */
enum { DEATHS = 4096 };
static struct {
    uint64_t lo, hi;
    uint64_t ctx; /* that took it along; 0: it was freed by `call` */
    uint16_t call;
    bool stream; /* freed in the order of a stream */
} deaths[DEATHS];
static size_t death_count;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

void sim_dead_note(uint64_t base, uint64_t bytes, uint64_t ctx)
{
    if (!sim_opt.racecheck) {
        return;
    }
    sim_thread_t *t = sim_thread();
    pthread_mutex_lock(&mu);
    size_t at = death_count++ % DEATHS;
    deaths[at].lo = base;
    deaths[at].hi = base + bytes;
    deaths[at].ctx = ctx;
    deaths[at].call = (uint16_t)t->current;
    deaths[at].stream = t->worker;
    pthread_mutex_unlock(&mu);
}

/* Whether the bytes are not where sim_access would find them. */
static bool is_dead(const sim_device_t *by, uint64_t ptr, size_t bytes, bool write, bool host_ok)
{
    sim_alloc_t a;
    sim_host_t h;
    sim_device_t *d = sim_device_of(ptr);
    if (d) {
        return !sim_heap_find(d, ptr, &a) || bytes > a.size - (ptr - a.base);
    }
    if (sim_vmm_reserved(ptr)) {
        return !sim_vmm_access(by, ptr, bytes, write);
    }
    if (host_ok) {
        return false;
    }
    return !sim_host_find((void *)(uintptr_t)ptr, &h) ||
           bytes > h.size - (size_t)((char *)(uintptr_t)ptr - h.base);
}

static void describe_end(char *to, size_t size, uint64_t lo, uint64_t hi)
{
    pthread_mutex_lock(&mu);
    for (size_t i = 1; i <= death_count && i <= DEATHS; i++) {
        size_t at = (death_count - i) % DEATHS;
        if (deaths[at].lo >= hi || deaths[at].hi <= lo) {
            continue;
        }
        if (deaths[at].ctx) {
            snprintf(to, size, "it died with context %llu", (unsigned long long)deaths[at].ctx);
        } else if (deaths[at].stream) {
            snprintf(to, size, "it was freed in the order of a stream");
        } else {
            snprintf(to, size, "it was freed by %s", sim_name((enum sim_id)deaths[at].call));
        }
        break;
    }
    pthread_mutex_unlock(&mu);
}

static void describe(char *to, size_t size, uint64_t lo, uint64_t hi)
{
    sim_alloc_t a;
    sim_vmm_t m;
    sim_device_t *d = sim_device_of(lo);
    bool mapped = !d && sim_vmm_reserved(lo);
    snprintf(to, size, d || mapped ? "nothing was there" : "the driver does not know it");
    if (d && sim_heap_find(d, lo, &a)) {
        snprintf(to, size, "only %llu bytes are left of the allocation there",
                 (unsigned long long)(a.size - (lo - a.base)));
    } else if (mapped && sim_vmm_find(lo, &m)) {
        snprintf(to, size, "what is mapped there may not be accessed, or ends before");
    } else if (d || mapped) {
        describe_end(to, size, lo, hi);
    }
}

static void report(const char *by, uint64_t ptr, size_t bytes, bool write)
{
    char what[120];
    if (!sim_race_count()) {
        return;
    }
    describe(what, sizeof(what), ptr, ptr + bytes);
    fprintf(stderr, "simcuda: race: %s of [0x%llx,+%llu) by %s is not inside live memory: %s\n",
            write ? "write" : "read", (unsigned long long)ptr, (unsigned long long)bytes, by, what);
}

bool sim_dead_submitted(CUstream s, const sim_device_t *device, const sim_origin_t *origin,
                        uint64_t ptr, size_t bytes, bool write, bool host_ok)
{
    char by[160];
    /* After a sticky error no operation does anything. */
    if (bytes == 0 || atomic_load(&s->ctx->sticky) ||
        !is_dead(device, ptr, bytes, write, host_ok)) {
        return false;
    }
    atomic_store(&s->ctx->reported_dead, true);
    sim_race_place(by, sizeof(by), origin);
    report(by, ptr, bytes, write);
    return true;
}

void sim_dead_executed(const sim_op_t *op, uint64_t ptr, size_t bytes, bool write)
{
    char by[160];
    CUstream s = op->stream;
    if (!sim_opt.racecheck || atomic_exchange(&s->ctx->reported_dead, true)) {
        return;
    }
    snprintf(by, sizeof(by), "work on %sstream %llu of context %llu", s->legacy ? "legacy " : "",
             (unsigned long long)s->id, (unsigned long long)s->ctx_id);
    report(by, ptr, bytes, write);
}
