/* Until an arena has settled, memory comes before time; see pool/growth/warmup.h. The log of
 * upstream calls (see fake_upstream.h) shows what was asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <pthread.h>
#include "base/counters.h"
#include "one_arena.h"
#include "pool/growth/warmup.h"

#define SETTLE 1000u

static void start_in(size_t memory, uint64_t settle, size_t segment)
{
    ca_arena_params_t params = fake_params;

    params.warmup = settle;
    params.segment_first = segment;
    params.thread_cache = 8 * MIB;
    fake_reset(memory, memory);
    fake.auto_pass = true;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    assert_non_null(arena);
}

static void start(uint64_t settle, size_t segment)
{
    start_in(1024 * MIB, settle, segment);
}

static int set_up(void **state)
{
    (void)state;
    start(SETTLE, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sound();
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void churn(size_t bytes, unsigned pairs)
{
    for (unsigned i = 0; i < pairs; i++) {
        held_t held = get(bytes);
        put(&held);
    }
}

/* The same, checked once at its end: where very many blocks live, a check is a long walk. */
static void churn_among_many(size_t bytes, unsigned pairs)
{
    for (unsigned i = 0; i < pairs; i++) {
        held_t held;
        assert_int_equal(hold(arena, bytes, &held), 0);
        let_go(&held);
    }
    sound();
}

/* Whether the calling thread keeps what it frees. */
static bool keeps_stock(void)
{
    churn(512, 1);
    return ca_caches_bytes(arena) > 0;
}

static void the_first_segment_is_for_a_small_program(void **state)
{
    (void)state;
    held_t a = get(1);
    assert_int_equal(arena->reserved, CA_SEGMENT_FIRST);
    put(&a);
}

static void threads_keep_nothing_until_it_has_settled(void **state)
{
    (void)state;
    churn(CA_EPOCH_LARGE, 1); /* a fence was had */
    assert_false(keeps_stock());
    churn(512, SETTLE / 2 - 10);
    assert_false(keeps_stock());
    churn(512, 10);
    assert_true(keeps_stock());
}

static void each_growth_begins_it_anew(void **state)
{
    (void)state;
    churn(CA_EPOCH_LARGE, 1);
    churn(512, SETTLE / 2);
    assert_true(keeps_stock());
    held_t large = get(100 * MIB);
    assert_int_equal(ca_caches_bytes(arena), 0);
    churn(512, SETTLE / 4);
    held_t another = get(100 * MIB); /* before it has settled */
    churn(512, SETTLE / 4 + 10);
    assert_false(keeps_stock());
    churn(512, SETTLE / 4);
    assert_true(keeps_stock());
    put(&large), put(&another);
}

static void growth_by_little_counts_when_it_adds_up(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    start_in(16384 * MIB, SETTLE, 0);
    held_t small = get(512), large = get(8000 * MIB), segment[4];
    churn(512, SETTLE / 2 + 10);
    assert_true(keeps_stock());
    segment[0] = get(CA_SEGMENT_MOST);
    segment[1] = get(CA_SEGMENT_MOST);
    assert_true(keeps_stock());
    segment[2] = get(CA_SEGMENT_MOST);
    assert_true(3 * CA_SEGMENT_MOST > 8000 * MIB / CA_WARMUP_GROWN);
    assert_false(keeps_stock());
    /* Nor does a little put off what is under way. */
    churn(512, SETTLE / 4 + 10);
    segment[3] = get(CA_SEGMENT_MOST);
    assert_false(keeps_stock());
    churn(512, SETTLE / 4);
    assert_true(keeps_stock());
    for (unsigned i = 0; i < 4; i++)
        put(&segment[i]);
    put(&small), put(&large);
}

/* There one is had by chance every now and then, and to be careful is dearest. */
static void growth_by_some_counts_among_few_blocks_only(void **state)
{
    (void)state;
    for (unsigned many = 0; many < 2; many++) {
        unsigned blocks = many ? CA_WARMUP_MANY : 1000;
        held_t *small = calloc(blocks, sizeof *small);
        assert_non_null(small);
        ca_arena_retire(arena);
        start_in(16384 * MIB, SETTLE, 0);
        held_t large = get(2000 * MIB), segment;
        for (unsigned i = 0; i < blocks; i++)
            assert_int_equal(hold(arena, 512, &small[i]), 0);
        churn_among_many(512, SETTLE / 2 + 10);
        assert_true(keeps_stock());
        segment = get(2000 * MIB / CA_WARMUP_GROWN * 2);
        assert_int_equal(keeps_stock(), many);
        put(&segment);
        segment = get(2000 * MIB / CA_WARMUP_GROWN * 5);
        assert_false(keeps_stock());
        for (unsigned i = 0; i < blocks; i++)
            let_go(&small[i]);
        put(&large), put(&segment);
        free(small);
    }
}

static pthread_barrier_t barrier;

/* Has a cache of its own for as long as another one does its part. */
static void *another_thread(void *unused)
{
    (void)unused;
    held_t held;
    assert_int_equal(hold(arena, 512, &held), 0);
    let_go(&held);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* They need it for what each keeps. That the pool grows by as much does not show that it is used
 * otherwise than before, and a program of many threads would hardly ever settle. */
static void growth_counts_beyond_what_further_threads_may_keep(void **state)
{
    (void)state;
    for (unsigned further = 0; further < 3; further++) {
        pthread_t thread[2];
        held_t all = get(CA_SEGMENT_FIRST - MIB), more[3];
        pthread_barrier_init(&barrier, NULL, further + 1);
        churn(CA_EPOCH_LARGE / 8, 1);
        churn(512, SETTLE / 2 + 10);
        for (unsigned i = 0; i < further; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, another_thread, NULL), 0);
        pthread_barrier_wait(&barrier);
        assert_true(keeps_stock());
        assert_int_equal(arena->reserved, CA_SEGMENT_FIRST);
        more[0] = get(CA_SEGMENT_UNIT);
        assert_int_equal(keeps_stock(), further > 0);
        more[1] = get(CA_WARMUP_THREAD - CA_SEGMENT_UNIT);
        assert_int_equal(keeps_stock(), further > 0);
        more[2] = get(CA_SEGMENT_UNIT);
        assert_int_equal(keeps_stock(), further > 1);
        pthread_barrier_wait(&barrier);
        for (unsigned i = 0; i < further; i++)
            pthread_join(thread[i], NULL);
        pthread_barrier_destroy(&barrier);
        put(&all), put(&more[0]), put(&more[1]), put(&more[2]);
        ca_arena_retire(arena);
        start(SETTLE, 0);
    }
}

/* So many blocks of 64 KiB at once and back into its cache: all that the heap has ready. */
static void *take_all_for_itself(void *unused)
{
    (void)unused;
    enum { COUNT = CA_SEGMENT_FIRST / (64 * KIB) };
    held_t held[COUNT];
    unsigned count = 0;
    while (arena->ready >= 128 * KIB && count < COUNT)
        assert_int_equal(hold(arena, 64 * KIB, &held[count++]), 0);
    while (count > 0)
        let_go(&held[--count]);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* `part`, in a heap that has settled, while another thread keeps nearly all of it. */
static void beside_one_that_has_it_all(void (*part)(void))
{
    pthread_t thread;
    churn(CA_EPOCH_LARGE / 8, 1);
    churn(512, SETTLE / 2 + 10);
    assert_true(keeps_stock());
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, take_all_for_itself, NULL);
    pthread_barrier_wait(&barrier);
    part();
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
}

static void expect_a_segment(void)
{
    size_t reserved = arena->reserved;
    uint64_t before = fake.recorded, grown = fake.calls[FAKE_ALLOC];
    uint64_t misses = ca_counter_read(pool_misses);
    churn(64 * KIB, 1000);
    assert_in_range(arena->reserved, reserved + CA_SEGMENT_UNIT, reserved + CA_WARMUP_THREAD);
    assert_int_equal(ca_counter_read(pool_misses) - misses, fake.calls[FAKE_ALLOC] - grown);
    assert_true(fake.recorded - before < 1000 / 16);
    assert_true(keeps_stock());
}

/* And then once for all, not for every block: to ask about the few that it has costs a fence every
 * few pairs. */
static void who_comes_late_gets_memory_of_its_own(void **state)
{
    (void)state;
    beside_one_that_has_it_all(expect_a_segment);
}

static void expect_none_of_the_headroom(void)
{
    uint64_t grown = fake.calls[FAKE_ALLOC];
    arena->params.headroom = 1024 * MIB;
    churn(64 * KIB, 1000);
    assert_int_equal(fake.calls[FAKE_ALLOC], grown);
    assert_true(keeps_stock());
}

static void but_not_what_is_left_to_the_driver(void **state)
{
    (void)state;
    beside_one_that_has_it_all(expect_none_of_the_headroom);
}

static void a_growth_without_need_shows_that_it_settled_too_early(void **state)
{
    (void)state;
    held_t all = get(100 * MIB);
    put(&all);
    held_t parts[] = {get(25 * MIB), get(25 * MIB), get(25 * MIB), get(25 * MIB)};
    put(&parts[0]), put(&parts[2]);
    parts[0] = get(40 * MIB);
    churn(512, SETTLE / 2 + 10);
    assert_true(keeps_stock());
    put(&parts[0]);
    parts[0] = get(50 * MIB);
    churn(512, SETTLE / 2 + 10);
    assert_false(keeps_stock());
    churn(512, SETTLE / 2);
    assert_true(keeps_stock());
    parts[2] = get(150 * MIB);
    held_t more = get(150 * MIB);
    churn(512, SETTLE / 2 + 10);
    assert_true(keeps_stock());
    put(&parts[0]), put(&parts[1]), put(&parts[2]), put(&parts[3]), put(&more);
}

static void what_was_given_back_is_needed_again(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        held_t all = get(100 * MIB);
        put(&all);
        churn(512, SETTLE / 2 + 10);
        assert_true(keeps_stock());
        assert_true(ca_arena_trim(arena, SIZE_MAX) >= 100 * MIB);
    }
}

static void without_the_wish_it_is_settled_at_once(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    start(0, 0);
    churn(CA_EPOCH_LARGE, 1);
    assert_true(keeps_stock());
    fake_log();
    churn(MIB, 2);
    assert_string_equal(fake_log(), "");
}

/* Of 3 MiB, freed beside a ready rest that is larger. */
static held_t free_beside_a_larger_rest(void)
{
    held_t held = get(3 * MIB);
    put(&held);
    return held;
}

static void a_request_takes_what_was_freed_and_cuts_nothing_larger(void **state)
{
    (void)state;
    held_t freed = free_beside_a_larger_rest();
    assert_string_equal(fake_log(), "AR");
    held_t again = get(3 * MIB);
    assert_string_equal(fake_log(), "Q");
    assert_int_equal(again.address, freed.address);
    put(&again);
}

static void where_the_device_lags_behind_it_does_not_go_on_asking(void **state)
{
    (void)state;
    fake.auto_pass = false;
    held_t freed = free_beside_a_larger_rest();
    held_t a = get(2 * MIB), b = get(2 * MIB);
    assert_string_equal(fake_log(), "ARq");
    assert_int_not_equal(a.address, freed.address);
    assert_int_equal(fake.calls[FAKE_WAIT], 0);
    put(&a), put(&b);
    assert_string_equal(fake_log(), ""); /* nor has it a fence for each */
    fake.auto_pass = true;
    fake_pass_all();
}

static void small_blocks_are_not_worth_a_fence(void **state)
{
    (void)state;
    churn(CA_EPOCH_LARGE, 1);
    churn(512, 1); /* sees that it has passed */
    held_t live = get(100 * MIB), a = get(CA_WARMUP_CLOSES), b = get(CA_WARMUP_CLOSES + CA_PAGE);
    fake_log();
    put(&a);
    assert_string_equal(fake_log(), "");
    put(&b);
    assert_string_equal(fake_log(), "R");
    put(&live);
}

static void without_fences_no_free_waits_for_it(void **state)
{
    (void)state;
    fake.no_fences = true;
    churn(CA_EPOCH_LARGE * CA_SYNC_SCALE, 1); /* learns it */
    fake_log();
    churn(2 * MIB, 2);
    assert_int_equal(fake.calls[FAKE_SYNC], 1);
}

static void a_hit_that_may_call_nothing_leaves_the_asking_to_another(void **state)
{
    (void)state;
    held_t freed = free_beside_a_larger_rest(), again = {.bytes = 3 * MIB};
    fake_log();
    assert_int_equal(
        ca_arena_alloc_ready(arena, NULL, 3 * MIB, &again.block, &again.address, &again.reused),
        -EAGAIN);
    assert_string_equal(fake_log(), "");
    again = get(3 * MIB);
    assert_int_equal(again.address, freed.address);
    put(&again);
}

static void where_a_good_part_of_a_small_program_is_live_fences_come_sooner(void **state)
{
    (void)state;
    churn(MIB, 1);
    churn(CA_EPOCH_LARGE, 1);
    assert_int_equal(arena->reserved, CA_SEGMENT_FIRST);
    held_t a = get(CA_WARMUP_ASKS), b = get(CA_WARMUP_ASKS - CA_PAGE);
    held_t live = get(CA_SEGMENT_FIRST / CA_SMALL_LIVE - 8 * CA_WARMUP_ASKS);
    fake_log();
    put(&a);
    assert_string_equal(fake_log(), "");
    held_t more = get(8 * CA_WARMUP_ASKS), c = get(512);
    put(&c); /* all told an epoch's worth */
    assert_string_equal(fake_log(), "R");
    put(&b);
    assert_string_equal(fake_log(), "");
    put(&live), put(&more);
}

static void a_small_program_grows_by_little_after_it_has_settled(void **state)
{
    (void)state;
    churn(MIB, 1);
    churn(CA_EPOCH_LARGE, 1);
    churn(512, SETTLE / 2 + 10);
    assert_true(keeps_stock());
    held_t all = get(CA_SEGMENT_FIRST - MIB), more = get(MIB + CA_PAGE);
    assert_int_equal(arena->reserved, CA_SEGMENT_FIRST + CA_SEGMENT_UNIT);
    put(&all), put(&more);
}

static void one_that_is_not_grows_by_more_once_it_has_settled(void **state)
{
    (void)state;
    held_t much = get(CA_SMALL_RESERVED), held[16];
    unsigned count = 0;
    churn(CA_EPOCH_LARGE, 1);
    churn(512, SETTLE / 2 + 10);
    assert_true(keeps_stock());
    for (size_t before = arena->reserved; arena->reserved == before; count++)
        held[count] = get(MIB);
    assert_int_equal(arena->segments->bytes, CA_SEGMENT_FIRST);
    while (count > 0)
        put(&held[--count]);
    put(&much);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_first_segment_is_for_a_small_program),
        TEST(threads_keep_nothing_until_it_has_settled),
        TEST(each_growth_begins_it_anew),
        TEST(growth_by_little_counts_when_it_adds_up),
        TEST(growth_by_some_counts_among_few_blocks_only),
        TEST(growth_counts_beyond_what_further_threads_may_keep),
        TEST(who_comes_late_gets_memory_of_its_own),
        TEST(but_not_what_is_left_to_the_driver),
        TEST(a_growth_without_need_shows_that_it_settled_too_early),
        TEST(what_was_given_back_is_needed_again),
        TEST(without_the_wish_it_is_settled_at_once),
        TEST(a_request_takes_what_was_freed_and_cuts_nothing_larger),
        TEST(where_the_device_lags_behind_it_does_not_go_on_asking),
        TEST(small_blocks_are_not_worth_a_fence),
        TEST(without_fences_no_free_waits_for_it),
        TEST(a_hit_that_may_call_nothing_leaves_the_asking_to_another),
        TEST(where_a_good_part_of_a_small_program_is_live_fences_come_sooner),
        TEST(a_small_program_grows_by_little_after_it_has_settled),
        TEST(one_that_is_not_grows_by_more_once_it_has_settled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
