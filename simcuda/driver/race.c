/* The race check's clocks: which operation is ordered before which. Sources, by name below:
 *   [sync]    CUDA Driver API, "API synchronization behavior"
 *   [streams] CUDA Driver API, "Stream synchronization behavior"
 *   [api]     the function's own page in the CUDA Driver API
 * Where they promise less than this driver does, racecheck:strict takes the promise, racecheck:1
 * what really happens here. */
#include "race.h"
#include "sim.h"
#include "../simcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINES = 20, STATUS = 99 };

static sim_clock_t host_clock; /* what the host knows, where all threads share one clock */
static uint32_t actors;
static _Atomic uint64_t races;

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "simcuda: no memory for the race check\n");
        abort();
    }
    return p;
}

/* --- clocks ------------------------------------------------------------------------------------*/
static void reach(sim_clock_t *c, uint32_t n)
{
    if (n > c->cap) {
        c->cap = n < 16 ? 16 : n * 2;
        c->at = must(realloc(c->at, c->cap * sizeof(*c->at)));
    }
    if (n > c->n) {
        memset(c->at + c->n, 0, (n - c->n) * sizeof(*c->at));
        c->n = n;
    }
}

void sim_clock_join(sim_clock_t *to, const sim_clock_t *from)
{
    reach(to, from->n);
    for (uint32_t i = 0; i < from->n; i++) {
        if (to->at[i] < from->at[i]) {
            to->at[i] = from->at[i];
        }
    }
}

void sim_clock_set(sim_clock_t *c, uint32_t actor, uint64_t step)
{
    reach(c, actor + 1);
    c->at[actor] = step;
}

void sim_clock_free(sim_clock_t *c)
{
    free(c->at);
    *c = (sim_clock_t){0};
}

static sim_clock_t *thread_clock(void)
{
    return sim_opt.race_strict ? &sim_thread()->known : &host_clock;
}

static uint64_t steps(CUstream s)
{
    return s->actor < s->clock.n ? s->clock.at[s->actor] : 0;
}

/* Every change of a stream's clock is a step of its own, so whatever knows the step knows the
 * clock. */
static void join_stream(sim_clock_t *to, CUstream s)
{
    if (!sim_clock_has(to, s->actor, steps(s))) {
        sim_clock_join(to, &s->clock);
    }
}

/* --- streams -----------------------------------------------------------------------------------*/
/* The number of an actor may become another stream's when all threads know all its steps: only with
 * the shared clock is that certain, because a new thread knows nothing. */
typedef struct retired {
    uint32_t actor;
    uint64_t steps;
} retired_t;
static retired_t *retired;
static size_t retired_n, retired_cap, retired_at;

static uint32_t new_actor(void)
{
    for (size_t tries = 0; !sim_opt.race_strict && tries < 64 && tries < retired_n; tries++) {
        size_t i = retired_at++ % retired_n;
        if (sim_clock_has(&host_clock, retired[i].actor, retired[i].steps)) {
            uint32_t actor = retired[i].actor;
            retired[i] = retired[--retired_n];
            return actor;
        }
    }
    return actors++;
}

void sim_race_retire(uint32_t actor, uint64_t step)
{
    if (retired_n == retired_cap) {
        retired_cap = retired_cap ? retired_cap * 2 : 64;
        retired = must(realloc(retired, retired_cap * sizeof(*retired)));
    }
    retired[retired_n++] = (retired_t){actor, step};
}

void sim_race_context_made(CUcontext ctx)
{
    ctx->ended.n = ctx->ended_blocking.n = ctx->barrier_clock.n = 0;
}

void sim_race_stream_made(CUstream s)
{
    if (!sim_opt.racecheck) {
        return;
    }
    s->actor = new_actor();
    s->clock.n = s->kernel_base.n = 0;
    s->kernel_last = false;
    sim_clock_join(&s->clock, &s->ctx->barrier_clock);
}

/* [api] cuStreamDestroy: the work goes on, so context-wide waits and the legacy stream still wait
 * for it. */
void sim_race_stream_ended(CUstream s)
{
    if (!sim_opt.racecheck) {
        return;
    }
    sim_clock_join(&s->ctx->ended, &s->clock);
    if (s->blocking) {
        sim_clock_join(&s->ctx->ended_blocking, &s->clock);
    }
    sim_race_retire(s->actor, steps(s));
}

/* Its work goes on too, and what waits for the primary context waits for it. */
void sim_race_green_ended(CUcontext ctx)
{
    if (sim_opt.racecheck) {
        join_stream(&ctx->ended, ctx->legacy);
        sim_clock_join(&ctx->home->ended, &ctx->ended);
    }
}

/* [streams] the legacy stream waits for all blocking streams of its context, and they for it; the
 * per-thread streams are blocking ones; non-blocking ones have no part in it. */
static void implicit(CUstream s, sim_clock_t *to)
{
    CUcontext ctx = s->ctx;
    if (s->legacy) {
        for (CUstream o = ctx->streams; o; o = o->next) {
            if (o != s && o->alive && o->blocking) {
                join_stream(to, o);
            }
        }
        sim_clock_join(to, &ctx->ended_blocking);
    } else if (s->blocking && ctx->legacy) {
        join_stream(to, ctx->legacy);
    }
}

static uint64_t step(CUstream s)
{
    sim_clock_join(&s->clock, thread_clock());
    implicit(s, &s->clock);
    reach(&s->clock, s->actor + 1);
    uint64_t at = ++s->clock.at[s->actor];
    sim_deferred_step(s, at);
    return at;
}

/* What a programmatic launch on s is behind until its grid sync: of a kernel that follows a kernel,
 * what that one is behind. Waits in between put it behind what they wait for. Records, allocations
 * and frees do not end that, as nothing says that they do [hw]; other operations do. */
static void before_kernel(CUstream s, const sim_op_t *op)
{
    if (op->kind != SIM_OP_KERNEL) {
        s->kernel_last = s->kernel_last && op->kind == SIM_OP_FREE;
        return;
    }
    if (!op->u.kernel.programmatic || !s->kernel_last) {
        s->kernel_base.n = 0;
        sim_clock_join(&s->kernel_base, &s->clock);
    }
    sim_clock_join(&s->kernel_base, thread_clock());
    implicit(s, &s->kernel_base);
    s->kernel_last = true;
    if (op->u.kernel.programmatic && op->u.kernel.body) {
        s->early_actor = new_actor();
        s->early_step = 1 + (s->early_actor < host_clock.n ? host_clock.at[s->early_actor] : 0);
        sim_clock_set(&s->clock, s->early_actor, s->early_step);
    }
}

/* --- accesses ----------------------------------------------------------------------------------*/
static sim_origin_t origin_of(CUstream s, uint64_t at)
{
    return (sim_origin_t){.step = at,
                          .actor = s->actor,
                          .stream = (uint32_t)s->id,
                          .ctx = (uint32_t)s->ctx_id,
                          .call = (uint16_t)sim_thread()->current,
                          .legacy = s->legacy};
}

sim_origin_t sim_race_origin(CUstream s)
{
    return origin_of(s, steps(s));
}

/* Device memory and host memory that the driver knows. What a program does to pageable memory, and
 * when its address comes to mean something else, cannot be seen. */
static bool watched(uint64_t at)
{
    sim_host_t h;
    return sim_is_device(at) || sim_host_find((void *)(uintptr_t)at, &h);
}

static void rows(CUstream s, const sim_device_t *by, const sim_origin_t *origin, uint64_t at,
                 size_t pitch, size_t slice, size_t width, size_t n, size_t depth, bool write,
                 bool host_ok)
{
    if (host_ok && !watched(at)) {
        return;
    }
    if (n > 1 && pitch == width) {
        width *= n;
        n = 1;
    }
    for (size_t z = 0; z < depth; z++) {
        for (size_t y = 0; y < n; y++) {
            uint64_t lo = at + z * slice + y * pitch;
            if (sim_dead_submitted(s, by, origin, lo, width, write, host_ok)) {
                return;
            }
            sim_race_access(lo, lo + width, write, origin, &s->clock, NULL);
        }
    }
}

/* --- edges by name: tokens of host threads, values in memory -----------------------------------*/
typedef struct token {
    const void *name;
    sim_clock_t clock;
    struct token *next;
} token_t;
static token_t *tokens[1024];

static token_t *token_of(const void *name)
{
    token_t **at = &tokens[((uintptr_t)name * 0x9e3779b97f4a7c15u) >> 54], *t = *at;
    while (t && t->name != name) {
        t = t->next;
    }
    if (!t) {
        t = must(calloc(1, sizeof(*t)));
        t->name = name;
        t->next = *at;
        *at = t;
    }
    return t;
}

static const void *place(uint64_t address)
{
    return (const void *)(uintptr_t)address;
}

void sim_race_op(CUstream s, const sim_op_t *op)
{
    if (!sim_opt.racecheck) {
        return;
    }
    before_kernel(s, op);
    if (op->kind == SIM_OP_WAIT_VALUE) { /* behind the writes to it that were submitted before */
        sim_clock_join(&s->clock, &token_of(place(op->u.value.addr))->clock);
    }
    sim_origin_t origin = origin_of(s, step(s));
    sim_device_t *d;
    sim_alloc_t a;
    switch (op->kind) {
    case SIM_OP_COPY:
        rows(s, sim_op_by(op, s, false), &origin, op->u.copy.src, op->u.copy.src_pitch,
             op->u.copy.src_slice, op->u.copy.width, op->u.copy.rows, op->u.copy.depth, false,
             !op->u.copy.src_device);
        rows(s, sim_op_by(op, s, true), &origin, op->u.copy.dst, op->u.copy.dst_pitch,
             op->u.copy.dst_slice, op->u.copy.width, op->u.copy.rows, op->u.copy.depth, true,
             !op->u.copy.dst_device);
        break;
    case SIM_OP_SET:
        rows(s, s->ctx->dev, &origin, op->u.set.dst, op->u.set.pitch, 0,
             op->u.set.width * op->u.set.elem, op->u.set.rows, 1, true, false);
        break;
    case SIM_OP_VALUE:
        rows(s, s->ctx->dev, &origin, op->u.value.addr, 0, 0, op->u.value.bytes, 1, 1, true, false);
        sim_clock_join(&token_of(place(op->u.value.addr))->clock, &s->clock);
        break;
    case SIM_OP_DISCARD: /* "any reads, writes or prefetches ... simultaneously ... undefined" */
        rows(s, s->ctx->dev, &origin, op->u.alloc.at, 0, 0, op->u.alloc.bytes, 1, 1, true, false);
        break;
    case SIM_OP_FREE: /* [api] cuMemFreeAsync: an operation of the stream, on all the bytes */
        d = sim_device_of(op->u.free_ptr);
        if (d && sim_heap_find(d, op->u.free_ptr, &a)) {
            rows(s, s->ctx->dev, &origin, a.base, 0, 0, a.size, 1, 1, true, false);
        }
        break;
    case SIM_OP_ALLOC: /* the guide: accesses "are ordered after the allocation node" */
        origin.alloc = true;
        rows(s, s->ctx->dev, &origin, op->u.alloc.at, 0, 0, op->u.alloc.bytes, 1, 1, true, false);
        break;
    default:
        break;
    }
    sim_shadow_sweep(sim_opt.race_strict ? NULL : &host_clock);
}

/* [api] cuMemAllocAsync: the memory may be used by work that is ordered after the allocation in
 * its stream: so the allocation is a write of all of it. */
void sim_race_async_alloc(CUstream s, uint64_t base, uint64_t bytes)
{
    if (sim_opt.racecheck) {
        sim_lock();
        sim_origin_t origin = origin_of(s, step(s));
        origin.alloc = true;
        sim_shadow_forget(base, base + bytes);
        rows(s, s->ctx->dev, &origin, base, 0, 0, bytes, 1, 1, true, false);
        sim_unlock();
    }
}

void sim_race_host_write(uint64_t base, uint64_t bytes)
{
    if (sim_opt.racecheck) {
        sim_lock();
        sim_origin_t origin = {.call = (uint16_t)sim_thread()->current, .host = true};
        sim_shadow_access(base, base + bytes, true, &origin, thread_clock());
        sim_shadow_forget(base, base + bytes);
        sim_unlock();
    }
}

void sim_race_forget(uint64_t base, uint64_t bytes)
{
    if (sim_opt.racecheck) {
        sim_lock();
        sim_shadow_forget(base, base + bytes);
        sim_unlock();
    }
}

/* --- events ------------------------------------------------------------------------------------*/
/* [api] cuEventRecord "captures the contents of the stream at the time of this call"; on the legacy
 * stream it is a command like any other. */
void sim_race_record(CUstream s, CUevent e)
{
    if (sim_opt.racecheck) {
        step(s);
        e->clock.n = 0;
        sim_clock_join(&e->clock, &s->clock);
    }
}

/* [api] cuStreamWaitEvent: the event's most recent record at the time of this call. */
void sim_race_wait(CUstream s, const sim_clock_t *c)
{
    if (sim_opt.racecheck) {
        sim_clock_join(&s->clock, c);
        sim_clock_join(&s->kernel_base, c);
        step(s);
    }
}

/* [api] cuCtxRecordEvent: "all the activities of the context at the time of this call". */
void sim_race_context_record(CUcontext ctx, CUevent e)
{
    if (sim_opt.racecheck) {
        e->clock.n = 0;
        sim_race_of_context(ctx, &e->clock);
        sim_clock_join(&e->clock, thread_clock());
    }
}

/* [api] cuCtxWaitEvent: "all future work submitted to context": streams made later too. */
void sim_race_context_wait(CUcontext ctx, const sim_clock_t *c)
{
    if (sim_opt.racecheck) {
        SIM_EACH_OF(of, ctx)
        {
            for (CUstream s = of->streams; s; s = s->next) {
                if (s->alive && &s->clock != c) {
                    sim_race_wait(s, c);
                }
            }
            sim_clock_join(&of->barrier_clock, c);
        }
    }
}

/* --- host threads ------------------------------------------------------------------------------*/
void sim_race_of_stream(CUstream s, sim_clock_t *out)
{
    if (sim_opt.racecheck) {
        implicit(s, out);
        join_stream(out, s);
    }
}

void sim_race_of_context(CUcontext ctx, sim_clock_t *out)
{
    if (sim_opt.racecheck) {
        SIM_EACH_OF(c, ctx)
        {
            for (CUstream s = c->streams; s; s = s->next) {
                if (s->alive) {
                    join_stream(out, s);
                }
            }
            sim_clock_join(out, &c->ended);
        }
    }
}

void sim_race_learn(const sim_clock_t *c)
{
    if (sim_opt.racecheck) {
        sim_clock_join(thread_clock(), c);
    }
}

/* All but its own step, which is not over while it runs. */
sim_clock_t *sim_race_before(CUstream s)
{
    sim_clock_t *copy = must(calloc(1, sizeof(*copy)));
    sim_clock_join(copy, &s->clock);
    if (s->actor < copy->n && copy->at[s->actor]) {
        copy->at[s->actor]--;
    }
    return copy;
}

/* [api] cuLaunchHostFunc: a host function runs after what its stream did before it. Other threads
 * learn from it by their shared clock, or by tokens. What it learns does not reach the operations
 * behind it: they may have been checked before it ran. */
void sim_race_host_function(sim_clock_t *c)
{
    if (c) {
        sim_lock();
        if (sim_opt.race_strict) {
            sim_thread()->known.n = 0;
        }
        sim_clock_join(thread_clock(), c);
        sim_unlock();
        sim_clock_free(c);
        free(c);
    }
}

SIM_API void simcuda_release(const void *token)
{
    if (sim_opt.racecheck && sim_opt.race_strict) {
        sim_lock();
        sim_clock_join(&token_of(token)->clock, thread_clock());
        sim_unlock();
    }
}

SIM_API void simcuda_acquire(const void *token)
{
    if (sim_opt.racecheck && sim_opt.race_strict) {
        sim_lock();
        sim_clock_join(thread_clock(), &token_of(token)->clock);
        sim_unlock();
    }
}

/* --- findings ----------------------------------------------------------------------------------*/
void sim_race_place(char *to, size_t size, const sim_origin_t *w)
{
    if (w->host) {
        snprintf(to, size, "%s on a host thread", sim_name((enum sim_id)w->call));
    } else {
        snprintf(to, size, "%s on %sstream %u of context %u", sim_name((enum sim_id)w->call),
                 w->legacy ? "legacy " : "", w->stream, w->ctx);
    }
}

/* One line for a pair of operations, however many rows and segments they share. */
void sim_race_found(const sim_origin_t *now, bool write, uint64_t lo, uint64_t hi,
                    const sim_origin_t *before, bool before_write, uint64_t at)
{
    static sim_origin_t last_now, last_before;
    if (now->host && before->alloc) { /* freed by the host before any use */
        return;
    }
    if (now->step == last_now.step && now->actor == last_now.actor && !now->host &&
        before->step == last_before.step && before->actor == last_before.actor) {
        return;
    }
    last_now = *now;
    last_before = *before;
    if (!sim_race_count()) {
        return;
    }
    char a[160], b[160], there[48] = "";
    sim_race_place(a, sizeof(a), now);
    sim_race_place(b, sizeof(b), before);
    at = at > lo ? at : lo;
    if (now->shift != before->shift) {
        snprintf(there, sizeof(there), ", there 0x%llx", (unsigned long long)(at + before->shift));
    }
    before_write |= before->wrote;
    fprintf(stderr,
            "simcuda: race: %s of [0x%llx,+%llu) by %s is not ordered after %s by %s"
            " (first common byte 0x%llx%s)\n",
            write ? "write" : "read", (unsigned long long)(lo + now->shift),
            (unsigned long long)(hi - lo), a, before_write ? "write" : "read", b,
            (unsigned long long)(at + now->shift), there);
}

bool sim_race_count(void)
{
    return atomic_fetch_add(&races, 1) < LINES;
}

uint64_t sim_race_total(void)
{
    return atomic_load(&races);
}

/* Not through _exit: an interposer may have made that its own. */
void sim_race_finish(void)
{
    unsigned long long n = atomic_load(&races);
    if (n && sim_opt.racecheck) {
        fprintf(stderr, "simcuda: %llu race%s\n", n, n == 1 ? "" : "s");
        fflush(NULL);
        syscall(SYS_exit_group, STATUS);
    }
}
