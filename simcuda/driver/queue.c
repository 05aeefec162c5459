/* The engine: streams are queues, each with a thread of its own that is made when the first
 * operation has to wait. An operation waits for points: (stream, sequence number) pairs that were
 * submitted before it, so no cycle can be. Every ordering edge is a point list; they are made here
 * (legacy and blocking streams), in event.c (records and waits) and nowhere else; race.c has a
 * clock beside each. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t sim_engine_mu = PTHREAD_MUTEX_INITIALIZER;
CUcontext sim_ctx_all;
static sim_op_t *free_ops;

void sim_lock(void)
{
    pthread_mutex_lock(&sim_engine_mu);
}

/* The stream whose thread this one wakes after it has dropped the lock: woken earlier, that thread
 * would have to sleep again until it has it. */
static _Thread_local CUstream to_wake;

static void wake(void)
{
    CUstream s = to_wake;
    to_wake = NULL;
    if (s) {
        pthread_cond_signal(&s->work);
    }
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&sim_engine_mu);
    wake();
}

/* --- points ------------------------------------------------------------------------------------*/
bool sim_point_done(const sim_point_t *p)
{
    return atomic_load_explicit(&p->stream->completed, memory_order_acquire) >= p->seq;
}

void sim_points_add(sim_points_t *v, CUstream s, uint64_t seq)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 4;
        sim_point_t *at = realloc(v->at, cap * sizeof(*at));
        if (!at) {
            fprintf(stderr, "simcuda: no memory\n");
            abort();
        }
        v->at = at;
        v->cap = cap;
    }
    v->at[v->n].stream = s;
    v->at[v->n++].seq = seq;
}

void sim_points_prune(sim_points_t *v)
{
    size_t kept = 0;
    for (size_t i = 0; i < v->n; i++) {
        if (!sim_point_done(&v->at[i])) {
            v->at[kept++] = v->at[i];
        }
    }
    v->n = kept;
}

void sim_points_free(sim_points_t *v)
{
    free(v->at);
    memset(v, 0, sizeof(*v));
}

static bool busy(CUstream s)
{
    return atomic_load_explicit(&s->completed, memory_order_acquire) < s->submitted;
}

/* What the next operation on s waits for besides its own queue. cuda.h, CU_STREAM_LEGACY and
 * CU_STREAM_NON_BLOCKING ("Stream does not synchronize with stream 0"): the legacy stream waits
 * for every blocking stream of its context, and they for it. */
static void implicit_points(CUstream s, sim_points_t *v)
{
    if (atomic_load_explicit(&s->ctx->pending, memory_order_relaxed) == 0) {
        return;
    }
    if (s->legacy) {
        for (CUstream o = s->ctx->streams; o; o = o->next) {
            if (o != s && o->blocking && busy(o)) {
                sim_points_add(v, o, o->submitted);
            }
        }
    } else if (s->blocking && busy(s->ctx->legacy)) {
        sim_points_add(v, s->ctx->legacy, s->ctx->legacy->submitted);
    }
}

bool sim_legacy_held(CUstream s)
{
    sim_points_t v = {0};
    if (s->legacy) {
        implicit_points(s, &v);
    }
    bool held = v.n != 0;
    sim_points_free(&v);
    return held;
}

void sim_points_of_stream(CUstream s, sim_points_t *v)
{
    implicit_points(s, v);
    if (busy(s)) {
        sim_points_add(v, s, s->submitted);
    }
}

void sim_points_of_context(CUcontext ctx, sim_points_t *v)
{
    SIM_EACH_OF(c, ctx)
    {
        bool idle = atomic_load_explicit(&c->pending, memory_order_relaxed) == 0;
        for (CUstream s = idle ? NULL : c->streams; s; s = s->next) {
            if (busy(s)) {
                sim_points_add(v, s, s->submitted);
            }
        }
    }
}

/* Until an operation of s completes. Of that stream alone: a condition for all of them would wake
 * every thread for each operation. */
static void wait_done(CUstream s)
{
    wake();
    s->waiters++;
    pthread_cond_wait(&s->done, &sim_engine_mu);
    s->waiters--;
}

void sim_wait_points_locked(sim_points_t *v)
{
    for (sim_points_prune(v); v->n; sim_points_prune(v)) {
        wait_done(v->at[0].stream);
    }
}

void sim_wait_context(CUcontext ctx)
{
    sim_points_t v = {0};
    sim_clock_t past = {0};
    sim_lock();
    sim_points_of_context(ctx, &v);
    sim_race_of_context(ctx, &past);
    sim_wait_points_locked(&v);
    sim_race_learn(&past);
    sim_unlock();
    sim_points_free(&v);
    sim_clock_free(&past);
}

/* What shares the memory counts as one: a primary context and its green ones. */
void sim_wait_owner(CUcontext ctx)
{
    CUcontext home = sim_ctx_home(ctx);
    if (sim_opt.racecheck || atomic_load_explicit(&home->dev->pending, memory_order_acquire)) {
        sim_wait_context(home);
    }
}

void sim_wait_device_quietly(sim_device_t *d)
{
    sim_points_t v = {0};
    if (atomic_load_explicit(&d->pending, memory_order_acquire) == 0) {
        return;
    }
    sim_lock();
    for (CUcontext c = sim_ctx_all; c; c = c->next_all) {
        if (c->dev == d) {
            sim_points_of_context(c, &v);
        }
    }
    sim_wait_points_locked(&v);
    sim_unlock();
    sim_points_free(&v);
}

/* --- completion
 * -----------------------------------------------------------------------------------*/
static void complete_locked(CUstream s, uint64_t seq)
{
    CUcontext ctx = s->ctx;
    atomic_fetch_sub_explicit(&ctx->pending, 1, memory_order_release);
    atomic_fetch_sub_explicit(&ctx->dev->pending, 1, memory_order_release);
    atomic_store_explicit(&s->completed, seq, memory_order_release);
    if (s->waiters) {
        pthread_cond_broadcast(&s->done);
    }
    if (!s->alive && !busy(s)) {
        sim_stream_recycle_locked(s);
    }
    if (ctx->leaving && atomic_load(&ctx->pending) == 0) {
        sim_green_over_locked(ctx);
    }
}

static void op_release_locked(sim_op_t *op)
{
    op->after.n = 0; /* keeps its array for the next user */
    op->next = free_ops;
    free_ops = op;
}

/* A MARK stamps its event, if that was not recorded again since. */
static void stamp_locked(sim_op_t *op)
{
    CUevent e = op->u.mark.event;
    if (e->gen == op->u.mark.gen) {
        atomic_store_explicit(&e->time_ns, sim_now_ns(), memory_order_relaxed);
    }
}

static void *stream_main(void *arg)
{
    CUstream s = arg;
    sim_thread()->worker = true;
    sim_lock();
    for (;;) {
        while (!s->head) {
            wake();
            pthread_cond_wait(&s->work, &sim_engine_mu);
        }
        sim_op_t *op = s->head;
        for (sim_points_prune(&op->after);
             op->after.n ||
             atomic_load_explicit(&s->completed, memory_order_relaxed) != op->seq - 1;
             sim_points_prune(&op->after)) {
            wait_done(op->after.n ? op->after.at[0].stream : s);
        }
        if (sim_opt.triggers_early) {
            sim_trigger_locked(op);
        }
        bool begun = op->kind == SIM_OP_KERNEL && op->u.kernel.begun;
        while (begun && !op->u.kernel.over) {
            wait_done(s);
        }
        if (!begun) {
            sim_unlock();
            sim_execute(op);
            sim_lock();
        }
        sim_deferred_end(op->deferred);
        if (op->kind == SIM_OP_MARK) {
            stamp_locked(op);
        }
        s->head = op->next;
        if (!s->head) {
            s->tail = NULL;
        }
        uint64_t seq = op->seq;
        op_release_locked(op);
        complete_locked(s, seq);
    }
    return NULL;
}

static bool thread_locked(CUstream s)
{
    if (!s->has_thread) {
        pthread_t id;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        s->has_thread = pthread_create(&id, &attr, stream_main, s) == 0;
        pthread_attr_destroy(&attr);
    }
    return s->has_thread;
}

static uint64_t count_locked(CUstream s)
{
    atomic_fetch_add_explicit(&s->ctx->pending, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->ctx->dev->pending, 1, memory_order_relaxed);
    return ++s->submitted;
}

/* --- submission
 * -------------------------------------------------------------------------------------*/
sim_op_t *sim_enqueue_locked(CUstream s, const sim_op_t *from)
{
    sim_op_t *op = free_ops;
    sim_points_t kept = {0};
    if (op) {
        free_ops = op->next;
        kept = op->after;
    } else {
        op = malloc(sizeof(*op));
    }
    if (!op || !thread_locked(s)) {
        fprintf(stderr, "simcuda: no memory or no thread for a stream\n");
        abort();
    }
    *op = *from;
    op->after = kept;
    op->next = NULL;
    op->stream = s;
    bool host = op->kind == SIM_OP_HOST || op->kind == SIM_OP_CALLBACK;
    op->clock = host && sim_opt.racecheck ? sim_race_before(s) : NULL;
    bool acts = host || (op->kind == SIM_OP_KERNEL && op->u.kernel.body);
    op->deferred = acts ? sim_deferred_begin(s, op) : NULL;
    for (size_t i = 0; i < from->after.n; i++) {
        sim_points_add(&op->after, from->after.at[i].stream, from->after.at[i].seq);
    }
    implicit_points(s, &op->after);
    op->seq = count_locked(s);
    if (s->tail) {
        s->tail->next = op;
        if (s->tail->kind == SIM_OP_KERNEL && s->tail->u.kernel.triggered) {
            sim_begin_early_locked(op);
        }
    } else {
        s->head = op;
        wake();
        to_wake = s;
    }
    s->tail = op;
    return op;
}

void sim_barrier_locked(CUcontext ctx, const sim_points_t *v, CUstream except)
{
    sim_op_t op = {.kind = SIM_OP_WAIT, .after = *v};
    SIM_EACH_OF(c, ctx)
    {
        for (CUstream s = c->streams; s; s = s->next) {
            if (s->alive && s != except) {
                sim_enqueue_locked(s, &op);
            }
        }
        sim_points_prune(&c->barrier);
        for (size_t i = 0; i < v->n; i++) {
            sim_points_add(&c->barrier, v->at[i].stream, v->at[i].seq);
        }
    }
}

void sim_wait_for_context(CUstream s, CUcontext ctx)
{
    sim_op_t op = {.kind = SIM_OP_WAIT};
    sim_clock_t past = {0};
    sim_lock();
    if (!atomic_load(&ctx->capturing) && !s->capture) {
        sim_points_of_context(ctx, &op.after);
        sim_race_of_context(ctx, &past);
        sim_race_wait(s, &past);
        if (op.after.n) {
            sim_enqueue_locked(s, &op);
        }
    }
    sim_unlock();
    sim_points_free(&op.after);
    sim_clock_free(&past);
}

void sim_context_waits_for(CUcontext ctx, CUstream s)
{
    sim_points_t v = {0};
    sim_lock();
    if (!atomic_load(&ctx->capturing) && !s->capture) {
        sim_race_context_wait(ctx, &s->clock);
        if (busy(s)) {
            sim_points_add(&v, s, s->submitted);
            sim_barrier_locked(ctx, &v, s);
        }
    }
    sim_unlock();
    sim_points_free(&v);
}

void sim_stream_waits_for(CUstream h, CUstream other)
{
    sim_op_t op = {.kind = SIM_OP_WAIT};
    sim_clock_t past = {0};
    CUstream s, o;
    if (sim_stream_resolve(h, false, &s) || sim_stream_resolve(other, false, &o)) {
        return;
    }
    sim_lock();
    sim_points_of_stream(o, &op.after);
    sim_race_of_stream(o, &past);
    sim_race_wait(s, &past);
    if (op.after.n) {
        sim_enqueue_locked(s, &op);
    }
    sim_unlock();
    sim_points_free(&op.after);
    sim_clock_free(&past);
}

/* Nothing stands before an operation on s. */
static bool clear_locked(CUstream s)
{
    if (busy(s)) {
        return false;
    }
    sim_points_t v = {0};
    implicit_points(s, &v);
    bool clear = v.n == 0;
    sim_points_free(&v);
    return clear;
}

/* The caller's thread does the work itself: no thread is made for a program that is synchronous.
 * The stream's own thread waits until its sequence number is next. */
static void run_here(CUstream s, const sim_op_t *from)
{
    sim_op_t op = *from;
    op.stream = s;
    op.seq = count_locked(s);
    sim_unlock();
    sim_execute(&op);
    sim_lock();
    complete_locked(s, op.seq);
}

CUresult sim_submit(CUstream s, const sim_op_t *op, bool sync)
{
    CUresult rc;
    CUcontext ctx = s->ctx;
    sim_lock();
    if ((s->capture || atomic_load_explicit(&ctx->capturing, memory_order_relaxed)) &&
        sim_capture_takes_locked(s, &rc)) {
        if (s->capture && rc == CUDA_SUCCESS) {
            rc = sync ? sim_capture_block_stream_locked(s) : sim_capture_node_locked(s, op);
        }
        sim_unlock();
        return rc;
    }
    sim_clock_t past = {0};
    if (sync && op->learn == SIM_LEARN_BEFORE) {
        sim_race_of_stream(s, &past);
    }
    sim_race_op(s, op);
    if (sync && op->learn == SIM_LEARN_ALL) {
        sim_race_of_stream(s, &past);
    }
    bool instant = op->kind == SIM_OP_FREE || op->kind == SIM_OP_PREFETCH ||
                   (op->kind == SIM_OP_KERNEL && op->u.kernel.ns == 0 && !op->u.kernel.body);
    if ((sync || instant) && clear_locked(s)) {
        run_here(s, op);
    } else {
        sim_op_t *queued = sim_enqueue_locked(s, op);
        sim_points_t v = {0};
        if (sync) {
            sim_points_add(&v, s, queued->seq);
            sim_wait_points_locked(&v);
            sim_points_free(&v);
        }
    }
    sim_race_learn(&past);
    sim_clock_free(&past);
    rc = sync ? (CUresult)atomic_load_explicit(&ctx->sticky, memory_order_relaxed) : CUDA_SUCCESS;
    sim_unlock();
    return rc;
}
