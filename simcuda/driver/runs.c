/* Units handed out in runs: best fit, constant time. Free runs sit in a bin of their exact length
 * (the last bin takes all longer ones); a bitmap finds the first bin that fits; neighbours are
 * found through lengths written at both ends of every run. The caller locks. Knows nothing of
 * devices or bytes. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FREE_BIT 0x80000000u

void *sim_map_lazy(size_t bytes, bool readable)
{
    int prot = readable ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    madvise(p, bytes, MADV_DONTDUMP);
    madvise(p, bytes, MADV_NOHUGEPAGE); /* 4 bytes touched must not cost 2 MiB */
    return p;
}

bool sim_runs_init(sim_runs_t *r, uint32_t units, uint32_t region)
{
    r->units = units;
    r->region = region;
    r->len = sim_map_lazy((size_t)units * sizeof(uint32_t), true);
    r->next = sim_map_lazy((size_t)units * sizeof(uint32_t), true);
    r->prev = sim_map_lazy((size_t)units * sizeof(uint32_t), true);
    r->live = sim_map_lazy(((size_t)units / 64 + 1) * sizeof(uint64_t), true);
    memset(r->head, 0xff, sizeof(r->head));
    memset(r->map, 0, sizeof(r->map));
    memset(r->top, 0, sizeof(r->top));
    return r->len && r->next && r->prev && r->live;
}

static uint32_t bin_of(uint32_t n)
{
    return n < SIM_BINS ? n : SIM_BINS - 1;
}

static void bin_push(sim_runs_t *r, uint32_t first, uint32_t n)
{
    uint32_t b = bin_of(n);
    r->len[first] = n | FREE_BIT;
    r->len[first + n - 1] = n | FREE_BIT;
    r->prev[first] = SIM_NIL;
    r->next[first] = r->head[b];
    if (r->head[b] != SIM_NIL) {
        r->prev[r->head[b]] = first;
    }
    r->head[b] = first;
    r->map[b / 64] |= (uint64_t)1 << (b % 64);
    r->top[b / 4096] |= (uint64_t)1 << (b / 64 % 64);
}

static uint32_t bin_pull(sim_runs_t *r, uint32_t first)
{
    uint32_t n = r->len[first] & ~FREE_BIT, b = bin_of(n);
    uint32_t next = r->next[first], prev = r->prev[first];
    if (next != SIM_NIL) {
        r->prev[next] = prev;
    }
    if (prev != SIM_NIL) {
        r->next[prev] = next;
    } else {
        r->head[b] = next;
        if (next == SIM_NIL) {
            r->map[b / 64] &= ~((uint64_t)1 << (b % 64));
            if (r->map[b / 64] == 0) {
                r->top[b / 4096] &= ~((uint64_t)1 << (b / 64 % 64));
            }
        }
    }
    return n;
}

void sim_runs_give(sim_runs_t *r, uint32_t first, uint32_t n)
{
    bin_push(r, first, n);
}

void sim_runs_remove(sim_runs_t *r, uint32_t first)
{
    bin_pull(r, first);
}

/* The smallest free run of at least n units; in the last bin lengths differ, so that one is
 * searched. */
static uint32_t find_fit(const sim_runs_t *r, uint32_t n)
{
    uint32_t b = bin_of(n), w = b / 64;
    uint64_t word = r->map[w] & (~(uint64_t)0 << (b % 64));
    if (!word) {
        uint64_t top = w < 63 ? r->top[0] & (~(uint64_t)1 << w) : 0;
        if (!top && !(w < 64 && r->top[1])) {
            return SIM_NIL;
        }
        w = top ? (uint32_t)__builtin_ctzll(top) : 64;
        word = r->map[w];
    }
    b = w * 64 + (uint32_t)__builtin_ctzll(word);
    if (b < SIM_BINS - 1) {
        return r->head[b];
    }
    uint32_t best = SIM_NIL, best_len = 0;
    for (uint32_t i = r->head[b]; i != SIM_NIL; i = r->next[i]) {
        uint32_t len = r->len[i] & ~FREE_BIT;
        if (len >= n && (best == SIM_NIL || len < best_len)) {
            best = i;
            best_len = len;
        }
    }
    return best;
}

uint32_t sim_runs_take(sim_runs_t *r, uint32_t n)
{
    uint32_t first = find_fit(r, n);
    if (first == SIM_NIL) {
        return SIM_NIL;
    }
    uint32_t have = bin_pull(r, first);
    if (have > n) {
        bin_push(r, first + n, have - n);
    }
    r->len[first] = n;
    r->len[first + n - 1] = n;
    r->live[first / 64] |= (uint64_t)1 << (first % 64);
    return first;
}

void sim_runs_free(sim_runs_t *r, uint32_t first, uint32_t *run_first, uint32_t *run_len)
{
    uint32_t n = r->len[first], end = first + n;
    r->live[first / 64] &= ~((uint64_t)1 << (first % 64));
    if (end < r->units && (!r->region || end % r->region) && (r->len[end] & FREE_BIT)) {
        n += bin_pull(r, end);
    }
    if (first > 0 && (!r->region || first % r->region) && (r->len[first - 1] & FREE_BIT)) {
        uint32_t left = first - (r->len[first - 1] & ~FREE_BIT);
        n += bin_pull(r, left);
        first = left;
    }
    bin_push(r, first, n);
    *run_first = first;
    *run_len = n;
}

uint32_t sim_runs_find(const sim_runs_t *r, uint32_t unit, uint32_t floor)
{
    uint32_t w = unit / 64;
    uint64_t word = r->live[w] & (~(uint64_t)0 >> (63 - unit % 64));
    while (!word) {
        if (w == 0 || w * 64 <= floor) {
            return SIM_NIL;
        }
        word = r->live[--w];
    }
    uint32_t first = w * 64 + 63 - (uint32_t)__builtin_clzll(word);
    return first >= floor && unit - first < r->len[first] ? first : SIM_NIL;
}
