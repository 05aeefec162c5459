/* The race check's map of bytes against a plain one: an array with an entry for every byte. Random
 * accesses by actors whose clocks are joined at random; both must find a race at the same ones. */
#include "driver/race.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPACE = 1 << 13, ACTORS = 5, OPERATIONS = 150000, READS = 24, SEEDS = 4 };

static struct byte {
    sim_origin_t write, read[READS];
    unsigned reads;
    bool written;
} plain[SPACE];

static uint64_t at[ACTORS + 1][ACTORS]; /* the last one is what all know */
static bool found;
static uint64_t state;

void sim_race_found(const sim_origin_t *now, bool write, uint64_t lo, uint64_t hi,
                    const sim_origin_t *before, bool before_write, uint64_t first)
{
    (void)now, (void)write, (void)lo, (void)hi, (void)before, (void)before_write, (void)first;
    found = true;
}

static unsigned below(unsigned n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % n;
}

static void join(unsigned to, unsigned from)
{
    for (int i = 0; i < ACTORS; i++) {
        at[to][i] = at[to][i] < at[from][i] ? at[from][i] : at[to][i];
    }
}

static bool unordered(const sim_origin_t *w, unsigned actor)
{
    return at[actor][w->actor] < w->step;
}

static bool plain_access(struct byte *b, bool write, const sim_origin_t *origin, unsigned actor)
{
    bool race = b->written && unordered(&b->write, actor);
    unsigned kept = 0;
    for (unsigned i = 0; i < b->reads; i++) {
        race |= write && unordered(&b->read[i], actor);
        if (b->read[i].actor !=
            origin->actor) { /* an actor's own later read stands for its earlier */
            b->read[kept++] = b->read[i];
        }
    }
    b->reads = write ? 0 : kept;
    if (write) {
        b->written = true;
        b->write = *origin;
    } else {
        b->read[b->reads++] = *origin;
    }
    return race;
}

static int differences(uint64_t seed, unsigned *races)
{
    int bad = 0;
    state = seed;
    memset(plain, 0, sizeof(plain));
    memset(at, 0, sizeof(at));
    sim_shadow_forget(0, SPACE + 1);
    for (int n = 0; n < OPERATIONS; n++) {
        unsigned actor = below(ACTORS), lo = below(SPACE - 1),
                 wide = below(400) ? 1 + below(6) : SPACE;
        unsigned hi = lo + 1 + below(wide), kind = below(16);
        hi = hi > SPACE ? SPACE : hi;
        if (kind < 3) { /* an event; now and then the host waits */
            join(n % 8 ? below(ACTORS) : ACTORS, actor);
            continue;
        }
        if (kind == 3) {
            memset(plain + lo, 0, (hi - lo) * sizeof(plain[0]));
            sim_shadow_forget(lo, hi);
            continue;
        }
        bool write = kind < 9, expected = false;
        join(actor, ACTORS);
        sim_origin_t origin = {.actor = actor, .step = ++at[actor][actor]};
        sim_clock_t clock = {at[actor], ACTORS, ACTORS},
                    known_by_all = {at[ACTORS], ACTORS, ACTORS};
        unsigned half = lo + 1 + (hi - lo) / 2, gap = below(2); /* two rows, touching or not */
        for (unsigned i = lo; i < hi; i++) {
            expected |= !(i == half && gap) && plain_access(&plain[i], write, &origin, actor);
        }
        found = false;
        sim_shadow_access(lo, half < hi ? half : hi, write, &origin, &clock);
        if (half + gap < hi) {
            sim_shadow_access(half + gap, hi, write, &origin, &clock);
        }
        sim_shadow_sweep(n % 3 ? &known_by_all : NULL);
        bad += found != expected;
        *races += found;
    }
    return bad;
}

int main(void)
{
    int bad = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        unsigned races = 0;
        int wrong = differences(seed * 0x9e3779b97f4a7c15u, &races);
        printf("%s seed %d: %d operations, %u races, %d differences\n", wrong ? "FAIL" : "ok  ",
               (int)seed, OPERATIONS, races, wrong);
        bad += wrong != 0;
    }
    printf("%d tests, %d failed, 0 skipped\n", (int)SEEDS, bad);
    return bad != 0;
}
