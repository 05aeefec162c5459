/* What a program of mixed sizes costs in fences. A record, a query or a wait may take microseconds,
 * so their number per free is bounded; and so is what pends for that, by what was ever live. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"
#include "pool/fence/epoch.h"

#define CACHED (64 * MIB) /* the default of `thread_cache` */
#define FREES 20000u
#define HELD 10000u
#define FENCES 10000u

static ca_arena_t *arena;
static held_t held[HELD];
static uint64_t lag;           /* allocations after its record that a fence passes */
static uint64_t allocations;   /* so far */
static uint64_t since[FENCES]; /* `allocations` when each fence was recorded */
static uint64_t noted;         /* of those */
static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1du >> 16;
}

/* 256 bytes to 1 MiB: as many in each power of two. */
static size_t random_size(void)
{
    size_t least = (size_t)256 << next_random() % 12;

    return least + next_random() % least;
}

static void note_fences(void)
{
    while (noted < fake.recorded) {
        assert_true(++noted < FENCES);
        since[noted] = allocations;
    }
}

static void replace(held_t *one)
{
    let_go(one);
    note_fences();
    allocations++;
    uint64_t passed = fake.passed;
    while (passed < noted && since[passed + 1] + lag <= allocations)
        passed++;
    fake_pass(passed);
    assert_int_equal(hold(arena, random_size(), one), 0);
    note_fences();
}

/* For each 100 frees. */
typedef struct cost {
    double records, queries, waits;
} cost_t;

/* Random ones of `live` blocks are replaced, first to warm up, then to count. */
static cost_t cost_of(unsigned live, uint64_t late, bool wait_passes, uint64_t settle)
{
    ca_arena_params_t params = fake_params;
    uint64_t before[FAKE_CALLS] = {0};

    params.thread_cache = CACHED;
    params.warmup = settle;
    fake_reset((size_t)80 << 30, 0);
    fake.wait_passes = wait_passes;
    random_state = 1;
    lag = late;
    allocations = noted = 0;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    for (unsigned i = 0; i < live; i++)
        replace(&held[i]);
    for (unsigned i = 0; i < 2 * FREES; i++) {
        if (i == FREES)
            memcpy(before, fake.calls, sizeof before);
        replace(&held[next_random() % live]);
    }
    cost_t cost = {(double)(fake.calls[FAKE_RECORD] - before[FAKE_RECORD]) * 100 / FREES,
                   (double)(fake.calls[FAKE_QUERY] - before[FAKE_QUERY]) * 100 / FREES,
                   (double)(fake.calls[FAKE_WAIT] - before[FAKE_WAIT]) * 100 / FREES};
    print_message("live %u, %" PRIu64 " late%s: records %.2f, queries %.2f, waits %.2f\n", live,
                  late, settle ? ", not settled" : "", cost.records, cost.queries, cost.waits);
    for (unsigned i = 0; i < live; i++)
        let_go(&held[i]);
    assert_null(ca_arena_check(arena));
    ca_arena_retire(arena);
    assert_int_equal(fake.errors, 0);
    return cost;
}

static const unsigned lives[] = {256, 1000, 10000};
#define LIVES (sizeof lives / sizeof *lives)

static void an_idle_device_is_asked_once_in_many_frees(void **state)
{
    (void)state;
    for (unsigned i = 0; i < LIVES; i++) {
        cost_t cost = cost_of(lives[i], 0, false, 0);
        assert_true(cost.records <= 0.6);
        assert_true(cost.queries <= 0.6);
        assert_true(cost.waits == 0);
    }
}

/* Where little is live an epoch is smaller then. */
static void nor_is_it_asked_much_more_until_the_pool_has_settled(void **state)
{
    (void)state;
    for (unsigned i = 0; i < LIVES; i++) {
        cost_t cost = cost_of(lives[i], 0, false, UINT32_MAX);
        double most = lives[i] < 1000 ? 1.2 : 0.6;
        assert_true(cost.records <= most);
        assert_true(cost.queries <= most);
        assert_true(cost.waits == 0);
    }
}

static void a_device_that_lags_behind_is_too(void **state)
{
    (void)state;
    static const uint64_t lags[] = {10, 100, 1000, 10000};
    for (unsigned i = 0; i < 4 * LIVES * sizeof lags / sizeof *lags; i++) {
        cost_t cost =
            cost_of(lives[i / 4 % LIVES], lags[i / 4 / LIVES], i % 2, i / 2 % 2 ? UINT32_MAX : 0);
        assert_true(cost.records <= 1);
        assert_true(cost.queries <= 2);
        assert_true(cost.waits <= 0.5);
    }
}

/* Where little is live fences are dearer, so that memory is not. */
static void few_live_blocks_are_not_outnumbered_by_pending_ones(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    ca_arena_stats_t stats;
    params.thread_cache = CACHED;
    fake_reset((size_t)80 << 30, 0);
    fake.auto_pass = true;
    random_state = 1;
    lag = UINT64_MAX / 2;
    allocations = noted = 0;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    for (unsigned i = 0; i < FREES; i++) {
        replace(&held[next_random() % 16]);
        ca_arena_stats(arena, &stats);
        /* Open in the heap and in the cache, and closed the same once. */
        assert_true(stats.pending_bytes <= 4 * ca_epoch_bytes(stats.live_peak) + MIB);
    }
    for (unsigned i = 0; i < 16; i++)
        let_go(&held[i]);
    ca_arena_retire(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_device_is_asked_once_in_many_frees),
        cmocka_unit_test(nor_is_it_asked_much_more_until_the_pool_has_settled),
        cmocka_unit_test(a_device_that_lags_behind_is_too),
        cmocka_unit_test(few_live_blocks_are_not_outnumbered_by_pending_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
