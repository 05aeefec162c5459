/* The race check and accesses that are not known when their operation is submitted: those of a
 * kernel's body or a host function that learns an address while it runs (running.c). They are
 * checked when they happen, with what the operation knew when it was submitted.
 *
 * Other operations may have been submitted since. An access of one that comes after this operation
 * is ordered, too: so while one runs, every stream's first step that knows it is written down.
 *
 * A launch with programmatic stream serialization has two halves. Until its grid sync it is ordered
 * behind what the kernel before it is ordered behind, and not behind that kernel: it is an actor of
 * its own there, because that kernel's accesses while it runs are not ordered before it either. An
 * operation behind the launch knows both halves. */
#include "race.h"
#include "sim.h"

#include <stdlib.h>

struct sim_deferred {
    sim_origin_t origin, early_origin;
    sim_clock_t clock, early, behind; /* behind: by actor the first step that knows it, or 0 */
    bool halves, synced;
    struct sim_deferred *next;
};

static sim_deferred_t *running;

sim_deferred_t *sim_deferred_begin(CUstream s, const sim_op_t *op)
{
    if (!sim_opt.racecheck) {
        return NULL;
    }
    sim_deferred_t *l = calloc(1, sizeof(*l));
    if (!l) {
        abort();
    }
    l->origin = l->early_origin = sim_race_origin(s);
    sim_clock_join(&l->clock, &s->clock);
    if (op->kind == SIM_OP_KERNEL && op->u.kernel.programmatic) {
        l->halves = true;
        l->early_origin.actor = s->early_actor;
        l->early_origin.step = s->early_step;
        sim_clock_join(&l->early, &s->kernel_base);
    }
    l->next = running;
    running = l;
    return l;
}

void sim_deferred_end(sim_deferred_t *l)
{
    if (!l) {
        return;
    }
    for (sim_deferred_t **at = &running; *at; at = &(*at)->next) {
        if (*at == l) {
            *at = l->next;
            break;
        }
    }
    if (l->halves) {
        sim_race_retire(l->early_origin.actor, l->early_origin.step);
    }
    sim_clock_free(&l->clock);
    sim_clock_free(&l->early);
    sim_clock_free(&l->behind);
    free(l);
}

void sim_deferred_synced(sim_deferred_t *l)
{
    if (l) {
        l->synced = true;
    }
}

void sim_deferred_step(CUstream s, uint64_t step)
{
    for (sim_deferred_t *l = running; l; l = l->next) {
        bool known = s->actor < l->behind.n && l->behind.at[s->actor];
        bool itself = s->actor == l->origin.actor && step <= l->origin.step;
        if (!known && !itself && sim_clock_has(&s->clock, l->origin.actor, l->origin.step)) {
            sim_clock_set(&l->behind, s->actor, step);
        }
    }
}

void sim_deferred_access(sim_deferred_t *l, CUstream s, uint64_t at, uint64_t bytes, bool write)
{
    bool early = l->halves && !l->synced;
    const sim_origin_t *origin = early ? &l->early_origin : &l->origin;
    if (!sim_dead_submitted(s, s->ctx->dev, origin, at, bytes, write, false)) {
        sim_race_access(at, at + bytes, write, origin, early ? &l->early : &l->clock, &l->behind);
    }
}
