/* The race check and accesses that nobody knows of when their operation is submitted: those of a
 * kernel's body or a host function that learns an address while it runs (running.c). They are
 * checked when they happen, with what the operation knew when it was submitted.
 *
 * Others may have been submitted since. Of those an access is ordered, too, that comes after this
 * operation: so while one runs, every stream's first step that knows it is written down.
 *
 * A launch with programmatic stream serialization has two halves. Until its grid sync it is ordered
 * behind what the kernel before it is ordered behind, and not behind that kernel: it has a slot of
 * its own there, because that kernel's late accesses are not ordered before it either. What comes
 * behind the launch knows both halves. */
#include "race.h"
#include "sim.h"

#include <stdlib.h>

struct sim_late {
    sim_who_t who, early_who;
    sim_clock_t clock, early, behind; /* behind: by slot the first step that knows it, or 0 */
    bool halves, synced;
    struct sim_late *next;
};

static sim_late_t *running;

sim_late_t *sim_late_begin(CUstream s, const sim_op_t *op)
{
    if (!sim_opt.racecheck) {
        return NULL;
    }
    sim_late_t *l = calloc(1, sizeof(*l));
    if (!l) {
        abort();
    }
    l->who = l->early_who = sim_race_who(s);
    sim_clock_join(&l->clock, &s->clock);
    if (op->kind == SIM_OP_KERNEL && op->u.kernel.programmatic) {
        l->halves = true;
        l->early_who.slot = s->early_slot;
        l->early_who.step = s->early_step;
        sim_clock_join(&l->early, &s->kernel_base);
    }
    l->next = running;
    running = l;
    return l;
}

void sim_late_end(sim_late_t *l)
{
    if (!l) {
        return;
    }
    for (sim_late_t **at = &running; *at; at = &(*at)->next) {
        if (*at == l) {
            *at = l->next;
            break;
        }
    }
    if (l->halves) {
        sim_race_retire(l->early_who.slot, l->early_who.step);
    }
    sim_clock_free(&l->clock);
    sim_clock_free(&l->early);
    sim_clock_free(&l->behind);
    free(l);
}

void sim_late_synced(sim_late_t *l)
{
    if (l) {
        l->synced = true;
    }
}

void sim_late_step(CUstream s, uint64_t step)
{
    for (sim_late_t *l = running; l; l = l->next) {
        bool told = s->slot < l->behind.n && l->behind.at[s->slot];
        bool itself = s->slot == l->who.slot && step <= l->who.step;
        if (!told && !itself && sim_clock_has(&s->clock, l->who.slot, l->who.step)) {
            sim_clock_set(&l->behind, s->slot, step);
        }
    }
}

void sim_late_access(sim_late_t *l, CUstream s, uint64_t at, uint64_t bytes, bool write)
{
    bool early = l->halves && !l->synced;
    const sim_who_t *who = early ? &l->early_who : &l->who;
    if (!sim_dead_submitted(s, s->ctx->dev, who, at, bytes, write, false)) {
        sim_race_access(at, at + bytes, write, who, early ? &l->early : &l->clock, &l->behind);
    }
}
