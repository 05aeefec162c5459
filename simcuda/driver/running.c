/* What kernels do in test programs: simcuda_body and the functions that a body calls; see
 * simcuda.h. A kernel that may overlap with the one before it begins in a thread of its own. */
#include "sim.h"
#include "module.h"
#include "../simcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local sim_op_t *now; /* what this thread runs for a stream */

void sim_run_body(sim_op_t *op, void (*fn)(void *), void *arg)
{
    sim_op_t *was = now;
    now = op;
    fn(arg);
    now = was;
}

SIM_API int simcuda_body(void *function, void (*body)(void *))
{
    sim_kernel_t *k = function;
    if (!k || k->magic != SIM_KERNEL_MAGIC) {
        return -1;
    }
    atomic_store(&k->body, body);
    return 0;
}

/* --- accesses ----------------------------------------------------------------------------------*/
static void *reach(uint64_t address, size_t bytes, bool write)
{
    if (!now) {
        fprintf(stderr, "simcuda: an access outside of kernels and host functions\n");
        return NULL;
    }
    if (now->deferred) {
        sim_lock();
        sim_deferred_access(now->deferred, now->stream, address, bytes, write);
        sim_unlock();
    }
    void *at = sim_access(now, address, bytes, write, false);
    if (!at) {
        sim_ctx_fail(now->stream->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return at;
}

SIM_API int simcuda_store(uint64_t address, const void *from, size_t bytes)
{
    void *at = reach(address, bytes, true);
    if (at) {
        memcpy(at, from, bytes);
    }
    return at ? 0 : -1;
}

SIM_API int simcuda_load(void *to, uint64_t address, size_t bytes)
{
    void *at = reach(address, bytes, false);
    if (at) {
        memcpy(to, at, bytes);
    }
    return at ? 0 : -1;
}

/* --- programmatic launches -----------------------------------------------------------------------
 * CUDA programming guide, "Programmatic Dependent Launch and Synchronization". */
static void *early_main(void *arg)
{
    sim_op_t *op = arg;
    CUstream s = op->stream;
    sim_thread()->worker = true;
    sim_run_body(op, op->u.kernel.body, op->u.kernel.arg);
    sim_lock();
    op->u.kernel.over = true;
    pthread_cond_broadcast(&s->done);
    sim_unlock();
    return NULL;
}

/* Nothing but the kernel before it holds it, and that one does no more. */
void sim_begin_early_locked(sim_op_t *op)
{
    pthread_t id;
    sim_points_prune(&op->after);
    if (op->kind != SIM_OP_KERNEL || !op->u.kernel.programmatic || !op->u.kernel.body ||
        op->u.kernel.begun || op->after.n || atomic_load(&op->stream->ctx->sticky)) {
        return;
    }
    op->u.kernel.begun = true;
    if (pthread_create(&id, NULL, early_main, op) != 0) {
        fprintf(stderr, "simcuda: no thread for a kernel\n");
        abort();
    }
    pthread_detach(id);
    if (sim_opt.triggers_early) {
        sim_trigger_locked(op);
    }
}

void sim_trigger_locked(sim_op_t *op)
{
    if (op->kind == SIM_OP_KERNEL) {
        op->u.kernel.triggered = true;
        if (op->next) {
            sim_begin_early_locked(op->next);
        }
    }
}

SIM_API void simcuda_trigger(void)
{
    if (now) {
        sim_lock();
        sim_trigger_locked(now);
        sim_unlock();
    }
}

SIM_API void simcuda_grid_sync(void)
{
    if (now) {
        sim_point_t before = {now->stream, now->seq - 1};
        sim_points_t v = {0};
        sim_lock();
        sim_points_add(&v, before.stream, before.seq);
        sim_wait_points_locked(&v);
        sim_deferred_synced(now->deferred);
        sim_unlock();
        sim_points_free(&v);
    }
}
