/* What every byte has seen: its last write and the reads since then that are not ordered before one
 * another. Byte ranges with the same history are one segment; segments are kept in a skip list by
 * address. Allocations are not known here: an allocator under test hands out parts of them. */
#include "race.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 20 };

typedef struct seg {
    uint64_t lo, hi;
    sim_origin_t write;
    sim_origin_t *reads;
    uint32_t reads_n, reads_cap;
    bool written;
    uint8_t height;
    struct seg *next[];
} seg_t;

static union {
    seg_t seg;
    char bytes[sizeof(seg_t) + LEVELS * sizeof(seg_t *)];
} head;
static seg_t *const first = &head.seg; /* before all others, at every level */
static size_t count, swept;

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "simcuda: no memory for the race check\n");
        abort();
    }
    return p;
}

/* The first segment that ends behind `at`; before[] are the last ones of each level that do not. */
static seg_t *find(uint64_t at, seg_t **before)
{
    seg_t *s = first;
    for (int i = LEVELS - 1; i >= 0; i--) {
        while (s->next[i] && s->next[i]->hi <= at) {
            s = s->next[i];
        }
        before[i] = s;
    }
    return s->next[0];
}

static uint8_t random_height(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    int zeros = __builtin_ctzll(state | (uint64_t)1 << 38) / 2; /* a quarter goes one level up */
    return (uint8_t)(zeros + 1 < LEVELS ? zeros + 1 : LEVELS);
}

static seg_t *insert(uint64_t lo, uint64_t hi, seg_t **before)
{
    uint8_t height = random_height();
    seg_t *s = must(calloc(1, sizeof(*s) + height * sizeof(s->next[0])));
    s->lo = lo;
    s->hi = hi;
    s->height = height;
    int i = 0;
    do {
        s->next[i] = before[i]->next[i];
        before[i]->next[i] = s;
    } while (++i < height);
    count++;
    return s;
}

static void remove_after(seg_t **before, seg_t *s)
{
    int i = 0;
    do {
        before[i]->next[i] = s->next[i];
    } while (++i < s->height);
    free(s->reads);
    free(s);
    count--;
}

/* No segment reaches over `at` afterwards. */
static void split(uint64_t at)
{
    seg_t *before[LEVELS], *s = find(at, before);
    if (!s || s->lo >= at) {
        return;
    }
    uint64_t hi = s->hi;
    s->hi = at;
    for (int i = 0; i < s->height; i++) {
        before[i] = s;
    }
    seg_t *right = insert(at, hi, before);
    right->written = s->written;
    right->write = s->write;
    right->reads_n = right->reads_cap = s->reads_n;
    if (s->reads_n) {
        right->reads = must(malloc(s->reads_n * sizeof(*s->reads)));
        memcpy(right->reads, s->reads, s->reads_n * sizeof(*s->reads));
    }
}

static void add_read(seg_t *s, const sim_origin_t *origin, const sim_clock_t *clock)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->reads_n; i++) {
        if (!sim_clock_has(clock, s->reads[i].actor, s->reads[i].step)) {
            s->reads[kept++] = s->reads[i];
        }
    }
    if (kept == s->reads_cap) {
        s->reads_cap = kept ? kept * 2 : 1;
        s->reads = must(realloc(s->reads, s->reads_cap * sizeof(*s->reads)));
    }
    s->reads[kept++] = *origin;
    s->reads_n = kept;
}

static void write_range(uint64_t lo, uint64_t hi, const sim_origin_t *origin)
{
    seg_t *before[LEVELS], *s = find(lo, before);
    if (!s || s->lo >= hi) {
        s = insert(lo, hi, before);
    } else {
        for (int i = 0; i < s->height; i++) {
            before[i] = s;
        }
        while (s->next[0] && s->next[0]->lo < hi) {
            remove_after(before, s->next[0]);
        }
        s->lo = lo;
        s->hi = hi;
    }
    s->written = true;
    s->write = *origin;
    s->reads_n = 0;
}

static void read_range(uint64_t lo, uint64_t hi, const sim_origin_t *origin,
                       const sim_clock_t *clock)
{
    seg_t *before[LEVELS];
    while (lo < hi) {
        seg_t *s = find(lo, before);
        if (!s || s->lo > lo) {
            s = insert(lo, s && s->lo < hi ? s->lo : hi, before);
        }
        add_read(s, origin, clock);
        lo = s->hi;
    }
}

static bool is_behind(const sim_clock_t *behind, const sim_origin_t *w)
{
    return behind && w->actor < behind->n && behind->at[w->actor] &&
           w->step >= behind->at[w->actor];
}

static bool ordered(const sim_clock_t *clock, const sim_clock_t *behind, const sim_origin_t *w)
{
    return sim_clock_has(clock, w->actor, w->step) || is_behind(behind, w);
}

static void check(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                  const sim_clock_t *clock, const sim_clock_t *behind)
{
    seg_t *before[LEVELS];
    split(lo);
    split(hi);
    for (seg_t *s = find(lo, before); s && s->lo < hi; s = s->next[0]) {
        if (s->written && !ordered(clock, behind, &s->write)) {
            sim_race_found(origin, write, lo, hi, &s->write, true, s->lo);
        }
        for (uint32_t i = 0; write && i < s->reads_n; i++) {
            if (!ordered(clock, behind, &s->reads[i])) {
                sim_race_found(origin, write, lo, hi, &s->reads[i], false, s->lo);
            }
        }
    }
}

/* What comes after this write stays in the history. */
static void write_under(uint64_t lo, uint64_t hi, const sim_origin_t *origin,
                        const sim_clock_t *behind)
{
    seg_t *before[LEVELS];
    while (lo < hi) {
        seg_t *s = find(lo, before);
        if (!s || s->lo > lo) {
            s = insert(lo, s && s->lo < hi ? s->lo : hi, before);
        }
        lo = s->hi;
        if (s->written && is_behind(behind, &s->write)) {
            continue;
        }
        uint32_t kept = 0;
        for (uint32_t i = 0; i < s->reads_n; i++) {
            if (is_behind(behind, &s->reads[i])) {
                s->reads[kept++] = s->reads[i];
            }
        }
        s->reads_n = kept;
        s->written = true;
        s->write = *origin;
    }
}

void sim_shadow_deferred(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                         const sim_clock_t *clock, const sim_clock_t *behind)
{
    check(lo, hi, write, origin, clock, behind);
    if (write) {
        write_under(lo, hi, origin, behind);
    } else {
        read_range(lo, hi, origin, clock);
    }
}

void sim_shadow_access(uint64_t lo, uint64_t hi, bool write, const sim_origin_t *origin,
                       const sim_clock_t *clock)
{
    check(lo, hi, write, origin, clock, NULL);
    if (write) {
        write_range(lo, hi, origin);
    } else {
        read_range(lo, hi, origin, clock);
    }
}

void sim_shadow_note(uint64_t lo, uint64_t hi, const sim_origin_t *origin, const sim_clock_t *clock)
{
    split(lo); /* what is known of a neighbour stays as it is */
    split(hi);
    read_range(lo, hi, origin, clock);
}

void sim_shadow_forget(uint64_t lo, uint64_t hi)
{
    seg_t *before[LEVELS], *s = find(lo, before);
    if (!s || s->lo >= hi) {
        return;
    }
    split(lo);
    split(hi);
    for (s = find(lo, before); s && s->lo < hi; s = before[0]->next[0]) {
        remove_after(before, s);
    }
}

static void drop_known(seg_t *s, const sim_clock_t *known_by_all)
{
    uint32_t kept = 0;
    s->written = s->written && !sim_clock_has(known_by_all, s->write.actor, s->write.step);
    for (uint32_t i = 0; i < s->reads_n; i++) {
        if (!sim_clock_has(known_by_all, s->reads[i].actor, s->reads[i].step)) {
            s->reads[kept++] = s->reads[i];
        }
    }
    s->reads_n = kept;
}

static bool same(const sim_origin_t *a, const sim_origin_t *b)
{
    return a->actor == b->actor && a->step == b->step && a->call == b->call;
}

static bool equal(const seg_t *a, const seg_t *b)
{
    if (a->written != b->written || a->reads_n != b->reads_n ||
        (a->written && !same(&a->write, &b->write))) {
        return false;
    }
    for (uint32_t i = 0; i < a->reads_n; i++) {
        if (!same(&a->reads[i], &b->reads[i])) {
            return false;
        }
    }
    return true;
}

void sim_shadow_sweep(const sim_clock_t *known_by_all)
{
    enum { FLOOR = 1024 };
    swept = count < swept ? count : swept;
    if (count < FLOOR || count < 2 * swept) {
        return;
    }
    seg_t *before[LEVELS];
    for (int i = 0; i < LEVELS; i++) {
        before[i] = first;
    }
    for (seg_t *s = first->next[0], *next; s; s = next) {
        next = s->next[0];
        if (known_by_all) {
            drop_known(s, known_by_all);
        }
        seg_t *left = before[0];
        bool joins = left != first && left->hi == s->lo && equal(left, s);
        if (joins) {
            left->hi = s->hi;
        }
        if (joins || (!s->written && !s->reads_n)) {
            remove_after(before, s);
            continue;
        }
        for (int i = 0; i < s->height; i++) {
            before[i] = s;
        }
    }
    swept = count;
}
