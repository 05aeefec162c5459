/* The race check: clocks and edges (race.c), which accesses each byte has seen (shadow.c), and
 * accesses to memory that is not live (dead.c).
 *
 * A clock says, for every actor, how many of its steps are known to be over. Streams are the only
 * actors with steps (one of a programmatic launch is two): what a host thread does to memory
 * through CUDA is an operation of a stream, and a host thread only carries knowledge from one call
 * to the next.
 *
 * Everything is decided when an operation is submitted, by what is known then, so a finding does
 * not depend on timing. All functions need the engine lock unless they say otherwise, and do
 * nothing unless sim_opt.racecheck is set. */
#ifndef SIMCUDA_RACE_H
#define SIMCUDA_RACE_H

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_clock {
    uint64_t *at; /* by an actor's number */
    uint32_t n, cap;
} sim_clock_t;

typedef struct sim_origin { /* one access, for as long as it may matter */
    uint64_t step;
    uint32_t actor, stream, ctx; /* ids, for the report */
    uint16_t call;               /* enum sim_id */
    bool legacy, host, alloc;
    bool wrote;     /* noted as a read, but was a write */
    uint64_t shift; /* of mapped memory: its address, less its place in the device's memory */
} sim_origin_t;

struct sim_op;
struct sim_device;

static inline bool sim_clock_has(const sim_clock_t *c, uint32_t actor, uint64_t step)
{
    return actor < c->n && c->at[actor] >= step;
}
void sim_clock_join(sim_clock_t *to, const sim_clock_t *from);
void sim_clock_free(sim_clock_t *c);
void sim_clock_set(sim_clock_t *c, uint32_t actor, uint64_t step);

void sim_race_context_made(CUcontext ctx);
void sim_race_stream_made(CUstream s);
void sim_race_stream_ended(CUstream s);
void sim_race_green_ended(CUcontext ctx);
/* A step of s: inherits what its submitter knows, what s did before and what s waits for
 * implicitly; its accesses are checked. */
void sim_race_op(CUstream s, const struct sim_op *op);
void sim_race_wait(CUstream s, const sim_clock_t *c);
void sim_race_record(CUstream s, CUevent e);
void sim_race_context_record(CUcontext ctx, CUevent e);
void sim_race_context_wait(CUcontext ctx, const sim_clock_t *c);
/* What a wait that begins now will have learnt when it is over; then the host thread learns it. */
void sim_race_of_stream(CUstream s, sim_clock_t *out);
void sim_race_of_context(CUcontext ctx, sim_clock_t *out);
void sim_race_learn(const sim_clock_t *c);
sim_clock_t *sim_race_before(CUstream s); /* what the latest operation of s knows */

/* --- race_alias.c: an access, at whatever addresses the bytes have; behind: NULL, or as of
 * sim_shadow_deferred */
void sim_race_access(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                     const sim_clock_t *clock, const sim_clock_t *behind);

/* --- race_deferred.c: accesses that are known when they happen; NULL: no race check */
typedef struct sim_deferred sim_deferred_t;
sim_deferred_t *sim_deferred_begin(CUstream s,
                                   const struct sim_op *op); /* just after sim_race_op of it */
void sim_deferred_end(sim_deferred_t *l);
void sim_deferred_synced(sim_deferred_t *l);
void sim_deferred_step(CUstream s, uint64_t step);
void sim_deferred_access(sim_deferred_t *l, CUstream s, uint64_t at, uint64_t bytes, bool write);
/* race.c, for it: the latest step of s; the actor is over at that step. */
sim_origin_t sim_race_origin(CUstream s);
void sim_race_retire(uint32_t actor, uint64_t step);

/* These take the lock. */
void sim_race_host_function(sim_clock_t *c); /* begins, on this thread; frees c */
void sim_race_async_alloc(CUstream s, uint64_t base, uint64_t bytes);
void sim_race_host_write(uint64_t base, uint64_t bytes); /* a free that waits for nothing */
void sim_race_forget(uint64_t base, uint64_t bytes);     /* new or freed: no history */

/* For a report: counts it, and says whether it is still to be printed; and the text for the origin
 * of an access. */
bool sim_race_count(void);
void sim_race_place(char *to, size_t size, const sim_origin_t *w);
uint64_t sim_race_total(void);
/* Last thing at exit: if there was a race, the total on stderr and the end with status 99. */
void sim_race_finish(void);

/* --- dead.c ------------------------------------------------------------------------------------*/
/* Device memory ends: with its context, or (ctx 0) by the call under way. Takes any lock. */
void sim_dead_note(uint64_t base, uint64_t bytes, uint64_t ctx);
/* Reports an access that is submitted and not wholly inside live memory; true: it is not.
 * by: the device that makes it; host_ok: any host memory will do. */
bool sim_dead_submitted(CUstream s, const struct sim_device *by, const sim_origin_t *origin,
                        uint64_t ptr, size_t bytes, bool write, bool host_ok);
/* The same for one that was live when it was submitted; no lock is held. */
void sim_dead_executed(const struct sim_op *op, uint64_t ptr, size_t bytes, bool write);

/* --- shadow.c ----------------------------------------------------------------------------------*/
void sim_shadow_access(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                       const sim_clock_t *clock);
/* For an access whose operation was submitted before others that may have been checked: an access
 * with a step from `behind` on (0: none) comes after it. */
void sim_shadow_deferred(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                         const sim_clock_t *clock, const sim_clock_t *behind);
/* Written down as a read, and not checked. */
void sim_shadow_note(uint64_t lo, uint64_t hi, const sim_origin_t *origin,
                     const sim_clock_t *clock);
void sim_shadow_forget(uint64_t lo, uint64_t hi);
/* Drops accesses that all threads know to be over (NULL: none) and joins equal neighbours, when the
 * map has doubled since the last time. */
void sim_shadow_sweep(const sim_clock_t *known_by_all);
/* race.c: access `now` is not ordered after `before`; both touch the byte at `at`. */
void sim_race_found(const sim_origin_t *now, bool write, uint64_t lo, uint64_t hi,
                    const sim_origin_t *before, bool before_write, uint64_t at);

#endif
