/* The race check and mapped memory: one byte may have several addresses (cuMemMap). Its history is
 * kept by its place in the device's memory, so that accesses by different addresses meet, and stays
 * when it is mapped elsewhere. Beside that it is written down which addresses were accessed: with
 * those cuMemUnmap conflicts, and not with work at the same memory by other addresses. */
#include "race.h"
#include "sim.h"

static void one(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                const sim_clock_t *clock, const sim_clock_t *behind)
{
    if (behind) {
        sim_shadow_deferred(lo, hi, write, origin, clock, behind);
    } else {
        sim_shadow_access(lo, hi, write, origin, clock);
    }
}

void sim_race_access(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                     const sim_clock_t *clock, const sim_clock_t *behind)
{
    if (!sim_vmm_reserved(lo)) {
        one(lo, hi, write, origin, clock, behind);
        return;
    }
    sim_origin_t piece = *origin;
    uint64_t physical;
    for (uint64_t at = lo, n; at < hi && (n = sim_vmm_piece(at, &physical)); at += n) {
        n = n < hi - at ? n : hi - at;
        piece.shift = at - physical;
        one(physical, physical + n, write, &piece, clock, behind);
    }
    piece.shift = 0;
    piece.wrote = write;
    sim_shadow_note(lo, hi, &piece, clock);
}
