/* Events. An event is a list of points, so recording costs nothing when the stream is idle and
 * needs no thread; only an event that measures time, recorded on a busy stream, puts an operation
 * into it. Handles are recycled like those of streams. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x4556544d };

/* An event that ended with its context is used again as late as possible, so that a use of the old
 * handle is noticed. */
enum { PARKED = 1024 };

static CUevent free_events;
static CUevent parked, *parked_end = &parked;
static size_t parked_count;

static CUevent recycled_locked(void)
{
    CUevent e = free_events;
    if (e) {
        free_events = e->next_free;
    } else if (parked_count > PARKED) {
        e = parked;
        parked = e->next_free;
        parked_count--;
    }
    return e;
}

SIM_API CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CUcontext ctx;
    SIM_ENTER(cuEventCreate);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!phEvent ||
        (Flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) ||
        ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    CUevent e = recycled_locked();
    if (!e && !(e = calloc(1, sizeof(*e)))) {
        sim_unlock();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    e->magic = MAGIC;
    e->ctx = ctx;
    e->ctx_id = atomic_load(&ctx->id);
    e->flags = Flags;
    e->recorded = false;
    e->capture_id = 0;
    e->clock.n = 0;
    e->points.n = 0;
    e->gen++;
    e->prev = NULL;
    e->place = NULL;
    e->next = ctx->events;
    if (e->next) {
        e->next->prev = e;
    }
    ctx->events = e;
    /* cuda.h, cuEventRecord: before the first record it "represents an empty set of work". */
    atomic_store(&e->done, true);
    atomic_store(&e->alive, true);
    sim_unlock();
    *phEvent = e;
    return CUDA_SUCCESS;
}

void sim_event_end_locked(CUevent e, bool with_context)
{
    atomic_store(&e->alive, false);
    e->gen++;
    if (e->next) {
        e->next->prev = e->prev;
    }
    if (e->prev) {
        e->prev->next = e->next;
    } else {
        e->ctx->events = e->next;
    }
    if (with_context) {
        e->next_free = NULL;
        *parked_end = e;
        parked_end = &e->next_free;
        parked_count++;
    } else {
        e->next_free = free_events;
        free_events = e;
    }
}

CUresult sim_event_check(CUevent e)
{
    if (!e || e->magic != MAGIC) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!atomic_load_explicit(&e->alive, memory_order_acquire)) {
        sim_dangling("an event");
    }
    return CUDA_SUCCESS;
}

/* cuda.h, cuEventDestroy: may be called before the event completes; returns at once. */
SIM_API CUresult cuEventDestroy_v2(CUevent hEvent)
{
    SIM_ENTER(cuEventDestroy_v2);
    SIM_TRY(sim_event_check(hEvent));
    sim_lock();
    CUresult rc = sim_event_check(hEvent);
    if (rc == CUDA_SUCCESS) {
        sim_event_end_locked(hEvent, false);
    }
    sim_unlock();
    return rc;
}

bool sim_event_done_locked(CUevent e)
{
    if (sim_ipc_event_foreign(e)) {
        return sim_ipc_event_over(e);
    }
    if (!atomic_load_explicit(&e->done, memory_order_relaxed) && e->capture_id == 0) {
        sim_points_prune(&e->points);
        if (e->points.n == 0) {
            if (!(e->flags & CU_EVENT_DISABLE_TIMING) &&
                atomic_load_explicit(&e->time_ns, memory_order_relaxed) == 0) {
                atomic_store_explicit(&e->time_ns, sim_now_ns(), memory_order_relaxed);
            }
            atomic_store_explicit(&e->done, true, memory_order_release);
        }
    }
    return atomic_load_explicit(&e->done, memory_order_relaxed);
}

/* Locked: the event now stands for the points collected in e->points. */
static void recorded_locked(CUevent e)
{
    bool now = e->points.n == 0;
    e->recorded = true;
    e->capture_id = 0;
    atomic_store_explicit(&e->time_ns,
                          now && !(e->flags & CU_EVENT_DISABLE_TIMING) ? sim_now_ns() : 0,
                          memory_order_relaxed);
    atomic_store_explicit(&e->done, now, memory_order_release);
}

static void mark_locked(CUevent e, CUstream s)
{
    sim_op_t op = {.kind = SIM_OP_MARK, .u.mark = {.event = e, .gen = e->gen}};
    sim_op_t *queued = sim_enqueue_locked(s, &op);
    e->points.n = 0;
    sim_points_add(&e->points, s, queued->seq);
}

static CUresult record_locked(CUevent e, CUstream s)
{
    CUresult rc;
    if (sim_capture_takes_locked(s, &rc)) {
        if (rc == CUDA_SUCCESS) {
            e->gen++;
            e->recorded = true;
            e->capture_id = s->capture->id;
            e->frontier.n = 0;
            sim_frontier_join(&e->frontier, &s->frontier);
            atomic_store(&e->done, false);
        }
        return rc;
    }
    e->gen++;
    e->points.n = 0;
    if (sim_legacy_held(s)) {
        sim_op_t op = {.kind = SIM_OP_WAIT};
        sim_enqueue_locked(s, &op);
    }
    sim_points_of_stream(s, &e->points);
    sim_race_record(s, e);
    if (e->points.n && !(e->flags & CU_EVENT_DISABLE_TIMING)) {
        mark_locked(e, s);
    }
    if (e->place) {
        sim_ipc_event_recorded_locked(e, s);
    }
    recorded_locked(e);
    return CUDA_SUCCESS;
}

/* Records and waits that happen when the graph runs. */
static CUresult external_node(CUstream s)
{
    fprintf(stderr, "simcuda: an external event inside a graph is not modelled\n");
    sim_capture_block_stream_locked(s);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult record(CUevent e, CUstream h, bool pt, unsigned flags)
{
    CUstream s;
    SIM_TRY(sim_event_check(e));
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (flags & ~CU_EVENT_RECORD_EXTERNAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    /* cuda.h: "hEvent and hStream must be from the same context otherwise INVALID_HANDLE" */
    CUresult rc = sim_ctx_home(e->ctx) != sim_ctx_home(s->ctx) ? CUDA_ERROR_INVALID_HANDLE
                  : flags && s->capture                        ? external_node(s)
                                                               : record_locked(e, s);
    sim_unlock();
    return rc;
}

SIM_BOTH(cuEventRecord, cuEventRecord_ptsz, (CUevent hEvent, CUstream hStream),
         record(hEvent, hStream, pt, 0))
SIM_BOTH(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
         (CUevent hEvent, CUstream hStream, unsigned int flags), record(hEvent, hStream, pt, flags))

/* cuda.h, cuCtxRecordEvent: "Captures in hEvent all the activities of the context hCtx at the time
 * of this call": every stream, non-blocking and destroyed-but-busy ones too. Same context or
 * INVALID_HANDLE. "will return STREAM_CAPTURE_UNSUPPORTED if the ... context has a stream in the
 * capture mode ... the call will invalidate all the conflicting captures". */
CUresult sim_ctx_record(CUcontext hCtx, CUevent hEvent)
{
    SIM_TRY(sim_ctx_check(hCtx));
    SIM_TRY(sim_event_check(hEvent));
    if (sim_ctx_home(hEvent->ctx) != sim_ctx_home(hCtx)) { /* [hw] for green contexts' own */
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_lock();
    CUresult rc = sim_capture_block_context_locked(hCtx);
    if (rc == CUDA_SUCCESS) {
        hEvent->gen++;
        hEvent->points.n = 0;
        sim_points_of_context(hCtx, &hEvent->points);
        sim_race_context_record(hCtx, hEvent);
        recorded_locked(hEvent);
    }
    sim_unlock();
    return rc;
}

SIM_API CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
    SIM_ENTER(cuCtxRecordEvent);
    return sim_ctx_record(hCtx, hEvent);
}

/* cuda.h, cuCtxWaitEvent: "all future work submitted to context hCtx", so streams made later too.
 */
CUresult sim_ctx_wait(CUcontext hCtx, CUevent hEvent)
{
    SIM_TRY(sim_ctx_check(hCtx));
    SIM_TRY(sim_event_check(hEvent));
    sim_lock();
    CUresult rc = sim_capture_block_context_locked(hCtx);
    if (rc == CUDA_SUCCESS && sim_capture_spoil_locked(hEvent->capture_id)) {
        rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (rc == CUDA_SUCCESS) {
        sim_race_context_wait(hCtx, &hEvent->clock);
    }
    if (rc == CUDA_SUCCESS && !sim_event_done_locked(hEvent)) {
        sim_barrier_locked(hCtx, &hEvent->points, NULL);
    }
    sim_unlock();
    return rc;
}

SIM_API CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
    SIM_ENTER(cuCtxWaitEvent);
    return sim_ctx_wait(hCtx, hEvent);
}

static CUresult wait_captured_locked(CUstream s, CUevent e)
{
    sim_capture_t *c = e->capture_id ? sim_capture_by_id_locked(e->capture_id) : NULL;
    CUresult rc;
    if (c && !s->capture) {
        if (s->legacy || c->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            return s->legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                             : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        /* "a dependency on a captured event joins the capture" */
        sim_capture_join_locked(s, c, &e->frontier);
        return CUDA_SUCCESS;
    }
    if (s->capture && c == s->capture) {
        sim_capture_takes_locked(s, &rc);
        sim_frontier_join(&s->frontier, &e->frontier);
        return rc;
    }
    if (s->capture) {
        s->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        if (c) {
            c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        }
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    return CUDA_ERROR_CAPTURED_EVENT; /* its capture has ended */
}

static CUresult wait_event(CUstream h, bool pt, CUevent e, unsigned flags)
{
    CUstream s;
    SIM_TRY(sim_event_check(e));
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    sim_lock();
    CUresult rc = CUDA_SUCCESS;
    if (flags && !(flags == CU_EVENT_WAIT_EXTERNAL && s->capture)) {
        rc = CUDA_ERROR_INVALID_VALUE; /* "This flag is invalid outside of stream capture" */
    } else if (s->capture && flags == CU_EVENT_WAIT_EXTERNAL) {
        rc = external_node(s);
    } else if (s->capture || e->capture_id) {
        rc = wait_captured_locked(s, e);
    } else {
        sim_race_wait(s, &e->clock);
        if (sim_ipc_event_foreign(e)) {
            sim_ipc_event_wait_locked(e, s);
        } else if (!sim_event_done_locked(e) || sim_legacy_held(s)) {
            sim_op_t op = {.kind = SIM_OP_WAIT, .after = e->points};
            sim_enqueue_locked(s, &op);
        }
    }
    sim_unlock();
    return rc;
}

SIM_BOTH(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
         (CUstream hStream, CUevent hEvent, unsigned int Flags),
         wait_event(hStream, pt, hEvent, Flags))

/* Last recorded inside a capture: no query or wait can be answered, and the attempt invalidates
 * that capture in every mode (tests/gpu/results/h200-580.json, capture; there of the query alone).
 */
static CUresult not_captured(CUevent e)
{
    sim_lock();
    bool captured = e->capture_id != 0;
    sim_capture_spoil_locked(e->capture_id);
    sim_unlock();
    return captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

/* A query counts as a potentially unsafe call during a capture. NULL is refused before cuInit too
 * (h200-580.json, first_call/cuEventQuery). */
SIM_API CUresult cuEventQuery(CUevent hEvent)
{
    SIM_ENTER_IF(cuEventQuery, hEvent != NULL);
    SIM_TRY(sim_event_check(hEvent));
    bool over = atomic_load_explicit(&hEvent->done, memory_order_acquire) && !hEvent->place;
    if (!over) {
        SIM_TRY(not_captured(hEvent));
    }
    SIM_TRY(sim_capture_unsafe());
    if (sim_opt.racecheck || !over) {
        sim_lock();
        bool done = sim_event_done_locked(hEvent);
        if (done) {
            sim_race_learn(&hEvent->clock); /* cuEventQuery: "all captured work is complete" */
        }
        sim_unlock();
        if (!done) {
            return CUDA_ERROR_NOT_READY;
        }
    }
    return (CUresult)atomic_load_explicit(&hEvent->ctx->sticky, memory_order_relaxed);
}

SIM_API CUresult cuEventSynchronize(CUevent hEvent)
{
    SIM_ENTER(cuEventSynchronize);
    SIM_TRY(sim_event_check(hEvent));
    SIM_TRY(not_captured(hEvent));
    SIM_TRY(sim_capture_unsafe());
    if (sim_ipc_event_foreign(hEvent)) {
        sim_ipc_event_synchronize(hEvent);
    }
    sim_points_t v = {0};
    sim_lock();
    sim_clock_t past = {0};
    sim_clock_join(&past, &hEvent->clock);
    if (!sim_event_done_locked(hEvent)) {
        for (size_t i = 0; i < hEvent->points.n; i++) {
            sim_points_add(&v, hEvent->points.at[i].stream, hEvent->points.at[i].seq);
        }
        sim_wait_points_locked(&v); /* "all work currently captured": a later record adds nothing */
        sim_event_done_locked(hEvent);
    }
    sim_race_learn(&past);
    sim_clock_free(&past);
    sim_unlock();
    sim_points_free(&v);
    return (CUresult)atomic_load_explicit(&hEvent->ctx->sticky, memory_order_relaxed);
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    SIM_TRY(sim_event_check(start));
    SIM_TRY(sim_event_check(end));
    if (!ms) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult rc = CUDA_SUCCESS;
    sim_lock();
    if (!start->recorded || !end->recorded || start->ctx != end->ctx ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)) {
        rc = CUDA_ERROR_INVALID_HANDLE;
    } else if (!sim_event_done_locked(start) || !sim_event_done_locked(end)) {
        rc = CUDA_ERROR_NOT_READY;
    } else {
        int64_t ns = (int64_t)(atomic_load(&end->time_ns) - atomic_load(&start->time_ns));
        *ms = (float)ns / 1e6f;
        sim_race_learn(&start->clock);
        sim_race_learn(&end->clock);
    }
    sim_unlock();
    return rc;
}

SIM_API CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(cuEventElapsedTime);
    return elapsed(pMilliseconds, hStart, hEnd);
}

SIM_API CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(cuEventElapsedTime_v2);
    return elapsed(pMilliseconds, hStart, hEnd);
}
