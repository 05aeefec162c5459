/* Seeded random programs against the fake upstream, which knows for every granule whether it is
 * live and behind which fence it may be used again: overlap, misalignment and early reuse cannot
 * hide. Fences pass late, captures come and go, memory runs out, calls fail.
 *
 * `test_pool_random SEED` runs that seed alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"
#include "pool/range/export.h"

#define OPERATIONS 200000
#define HELD 4096
#define CACHED (8 * MIB) /* for the runs with a thread cache */

static uint64_t state_of_random;
static uint64_t only_seed;

static uint64_t next_random(void)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return state_of_random * 0x2545f4914f6cdd1du >> 16;
}

static size_t below(size_t bound)
{
    return (size_t)(next_random() % bound);
}

typedef struct mix {
    const char *name;
    size_t limit;
    unsigned held;                  /* most blocks live at a time */
    unsigned least_bits, most_bits; /* sizes: 2^least to 2^most, log-uniform */
    unsigned same;                  /* percent of requests of one of four fixed sizes */
    size_t max_split;
    size_t small;
    unsigned pins; /* pin mode begins or ends once in this many operations */
    unsigned operations;
    unsigned failures; /* one call of this many fails */
    unsigned exports;  /* once in this many operations another process sees a block */
} mix_t;

static size_t random_size(const mix_t *mix)
{
    static const size_t fixed[] = {1000, 70 * KIB, 300 * KIB, 2 * MIB};
    size_t top = (size_t)1 << mix->most_bits;
    if (below(100) < mix->same)
        return fixed[below(4)];
    size_t bytes = (size_t)1 << (mix->least_bits + below(mix->most_bits - mix->least_bits));
    bytes += below(bytes);
    return bytes > top ? top : bytes;
}

static void sound(ca_arena_t *arena)
{
    const char *broken = ca_arena_check(arena);
    if (broken)
        fail_msg("%s", broken);
    assert_int_equal(fake.errors, 0);
}

/* The device goes on, a capture begins or ends, a call is about to fail. */
static void something_happens(const mix_t *mix)
{
    uint64_t lag = below(20);
    if (below(8) == 0 && fake.recorded > lag)
        fake_pass(fake.recorded - lag);
    if (below(5000) == 0)
        fake.capturing = !fake.capturing;
    if (mix->failures && below(mix->failures) == 0) {
        static const int codes[FAKE_CALLS] = {
            [FAKE_ALLOC] = -ENOMEM, [FAKE_RECORD] = -EAGAIN, [FAKE_QUERY] = -EAGAIN,
            [FAKE_WAIT] = -EAGAIN,  [FAKE_SYNC] = -EAGAIN,   [FAKE_JOIN] = -EAGAIN};
        fake_call_t call = (fake_call_t)below(FAKE_CALLS);
        if (call == FAKE_FREE)
            return; /* would lose memory for good, and the device is small */
        fake.fail_at[call] = 1 + below(3);
        fake.fail_rc[call] = codes[call];
    }
}

/* Freed, but for the fake it lives on, until it goes back: that it is handed out is noticed. */
static void let_go_exported(held_t *held)
{
    ca_block_t *block = held->block;
    fake_stay_seen(held->address, held->bytes);
    held->block = NULL;
    ca_cached_free(block);
}

static void run(const mix_t *mix, uint64_t seed, size_t thread_cache)
{
    bool pinned = false;
    static held_t held[HELD];
    static bool seen[HELD];
    ca_arena_params_t params = fake_params;
    params.max_split = mix->max_split;
    params.small = mix->small;
    params.thread_cache = thread_cache;
    params.reuse_wait_ns = 1000;
    fake_reset(mix->limit, 2 * mix->limit + 64 * MIB);
    memset(held, 0, sizeof held);
    memset(seen, 0, sizeof seen);
    state_of_random = seed * 0x9e3779b97f4a7c15u + 1;
    ca_arena_t *arena = ca_arena_create(&fake_upstream, NULL, &params);
    unsigned served = 0, refused = 0;

    for (unsigned n = 0; n < mix->operations; n++) {
        unsigned at = (unsigned)below(mix->held);
        held_t *one = &held[at];
        if (one->block && seen[at])
            let_go_exported(one);
        else if (one->block)
            let_go(one);
        else if (hold(arena, random_size(mix), one) == 0)
            served++;
        else
            refused++;
        seen[at] &= one->block != NULL;
        if (mix->exports && below(mix->exports) == 0 && one->block) {
            assert_int_not_equal(ca_pool_export(one->address + below(2) * below(one->bytes)),
                                 CA_EXPORT_NONE);
            seen[at] = true;
            ca_pool_dedicate(below(2));
        }
        for (unsigned i = 0; n % 1000 == 999 && !mix->exports && i < mix->held; i++)
            if (held[i].block)
                let_go_past_the_cache(&held[i]);
        something_happens(mix);
        if (mix->pins && below(mix->pins) == 0) {
            pinned = !pinned;
            ca_arena_pin(arena, pinned);
        }
        if (n % 500 == 0)
            sound(arena);
        if (below(20000) == 0)
            ca_arena_trim(arena, below(2) ? SIZE_MAX : below(mix->limit));
    }
    for (unsigned i = 0; i < mix->held; i++) {
        if (held[i].block && seen[i])
            let_go_exported(&held[i]);
        else
            let_go(&held[i]);
    }
    ca_pool_dedicate(false);
    sound(arena);

    /* Nothing leaks. */
    if (pinned)
        ca_arena_pin(arena, false);
    fake_calm_down();
    ca_arena_trim(arena, SIZE_MAX);
    sound(arena);
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    assert_int_equal(stats.reserved_bytes, stats.ready_bytes + stats.exported_bytes);
    assert_int_equal(stats.reserved_bytes + stats.blocks, 0);
    assert_int_equal(fake.used, stats.reserved_bytes);
    assert_int_equal(fake.fences, 0);
    assert_true(served > refused);
    ca_arena_retire(arena);
}

static void run_seeds(const mix_t *mix, unsigned seeds)
{
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        run(mix, only_seed ? only_seed : seed, 0);
        run(mix, only_seed ? only_seed : seed, CACHED);
    }
}

static void small_blocks(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 256 * MIB,
                       .held = 4096,
                       .least_bits = 0,
                       .most_bits = 15,
                       .max_split = SIZE_MAX,
                       .operations = OPERATIONS},
              1);
}

static void all_sizes(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 1024 * MIB,
                       .held = 1000,
                       .least_bits = 6,
                       .most_bits = 23,
                       .same = 30,
                       .max_split = SIZE_MAX,
                       .operations = OPERATIONS},
              1);
}

static void memory_runs_out(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 64 * MIB,
                       .held = 200,
                       .least_bits = 9,
                       .most_bits = 24,
                       .same = 20,
                       .max_split = SIZE_MAX,
                       .operations = OPERATIONS / 2},
              2);
}

static void oversize_blocks(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 256 * MIB,
                       .held = 100,
                       .least_bits = 9,
                       .most_bits = 25,
                       .max_split = MIB,
                       .operations = OPERATIONS / 4},
              2);
}

static void small_blocks_apart(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 64 * MIB,
                       .held = 200,
                       .least_bits = 9,
                       .most_bits = 24,
                       .same = 20,
                       .max_split = 8 * MIB,
                       .small = MIB,
                       .operations = OPERATIONS / 2},
              2);
}

static void pin_mode_comes_and_goes(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 80 * MIB,
                       .held = 200,
                       .least_bits = 9,
                       .most_bits = 23,
                       .same = 40,
                       .max_split = 8 * MIB,
                       .small = 64 * KIB,
                       .pins = 500,
                       .operations = OPERATIONS / 2},
              2);
}

static void calls_fail(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 128 * MIB,
                       .held = 300,
                       .least_bits = 9,
                       .most_bits = 23,
                       .same = 20,
                       .max_split = 4 * MIB,
                       .operations = OPERATIONS / 4,
                       .failures = 50},
              3);
}

static void other_processes_see_blocks(void **state)
{
    (void)state;
    run_seeds(&(mix_t){.limit = 4096 * MIB, /* is never short, or what is exported is used again */
                       .held = 100,
                       .least_bits = 9,
                       .most_bits = 22,
                       .same = 20,
                       .max_split = SIZE_MAX,
                       .pins = 5000,
                       .operations = OPERATIONS / 4,
                       .exports = 5000},
              3);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_blocks),       cmocka_unit_test(all_sizes),
        cmocka_unit_test(memory_runs_out),    cmocka_unit_test(oversize_blocks),
        cmocka_unit_test(small_blocks_apart), cmocka_unit_test(pin_mode_comes_and_goes),
        cmocka_unit_test(calls_fail),         cmocka_unit_test(other_processes_see_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
