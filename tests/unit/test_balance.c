/* Segments that change heaps with all that is in them. Every step checks every invariant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>
#include "fake_upstream.h"
#include "pool/balance.h"
#include "pool/cache/cache.h"
#include "pool/range/export.h"
#include "pool/growth/warmup.h"
#include "pool/arena_set.h"
#include "pool/state.h"

#define HEAPS 2u

static ca_arena_set_t *set;
static ca_arena_t *heaps[HEAPS];

static void find_heaps(void)
{
    for (unsigned i = 0; i < HEAPS; i++)
        heaps[i] = ca_arena_set_at(set, i);
}

static void make_some(unsigned count, ca_arena_params_t params)
{
    fake_reset(1024 * MIB, 1024 * MIB);
    set = ca_arena_set_create(&fake_upstream, NULL, &params, count, HEAPS);
    assert_non_null(set);
    find_heaps();
}

static void make(ca_arena_params_t params)
{
    make_some(HEAPS, params);
}

static ca_arena_stats_t stats_of(unsigned heap)
{
    ca_arena_stats_t stats = {0};
    if (heaps[heap])
        ca_arena_stats(heaps[heap], &stats);
    return stats;
}

static void sound(void)
{
    find_heaps();
    for (unsigned i = 0; i < ca_arena_set_count(set); i++) {
        const char *broken = ca_arena_check(heaps[i]);
        if (broken)
            fail_msg("heap %u: %s", i, broken);
    }
    assert_int_equal(stats_of(0).reserved_bytes + stats_of(1).reserved_bytes, fake.used);
    assert_int_equal(ca_arena_set_reserved(set), fake.used);
    assert_int_equal(fake.errors, 0);
}

static held_t get(unsigned heap, size_t bytes)
{
    held_t held;
    assert_int_equal(hold(heaps[heap], bytes, &held), 0);
    sound();
    return held;
}

static void put(held_t *held)
{
    let_go(held);
    sound();
}

static size_t move(unsigned from, unsigned to, size_t bytes)
{
    size_t moved = ca_balance(heaps[from], heaps[to], bytes);
    sound();
    return moved;
}

static void retire(void)
{
    for (unsigned i = 0; i < ca_arena_set_count(set); i++)
        ca_arena_retire(heaps[i]);
}

static int tear_down(void **state)
{
    (void)state;
    ca_pool_dedicate(false);
    retire();
    return 0;
}

/* All memory comes back once it is freed. */
static void nothing_stays(void)
{
    fake_calm_down();
    for (unsigned i = 0; i < HEAPS; i++)
        ca_arena_trim(heaps[i], SIZE_MAX);
    sound();
    assert_int_equal(fake.used, 0);
    assert_int_equal(fake.fences, 0);
}

static void a_segment_takes_along_what_is_live_pending_and_ready(void **state)
{
    (void)state;
    make(fake_params);
    held_t live = get(0, 3 * MIB), pending = get(0, MIB), keeps = get(0, 4096), none;
    uint64_t freed = pending.address;
    put(&pending);
    ca_arena_stats_t before = stats_of(0);
    assert_int_equal(before.segments, 1);
    assert_int_equal(move(0, 1, SIZE_MAX), before.reserved_bytes);
    ca_arena_stats_t after = stats_of(1), left = stats_of(0);
    assert_int_equal(after.reserved_bytes, before.reserved_bytes);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_int_equal(after.pending_bytes, before.pending_bytes);
    assert_int_equal(after.ready_bytes, before.ready_bytes);
    assert_int_equal(left.reserved_bytes + left.live_bytes + left.pending_bytes + left.ready_bytes,
                     0);
    assert_ptr_equal(ca_block_arena(live.block), heaps[1]);
    assert_int_equal(ca_block_bytes(live.block), 3 * MIB);
    assert_int_equal(ca_pool_block_at(live.address + 1), live.address);
    /* Its own fence is not the other heap's: it waits for the next one. */
    size_t rest = after.largest_ready;
    held_t all = get(1, rest);
    assert_int_equal(ca_arena_alloc_ready(heaps[1], MIB, &none.block, &none.address, NULL),
                     -EAGAIN);
    fake.auto_pass = true;
    pending = get(1, MIB);
    assert_int_equal(pending.address, freed);
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
    put(&pending), put(&live), put(&all), put(&keeps);
    nothing_stays();
}

static void as_many_segments_move_as_were_asked_for(void **state)
{
    (void)state;
    make(fake_params);
    held_t held[] = {get(0, 40 * MIB), get(0, 30 * MIB), get(0, 20 * MIB)};
    assert_int_equal(stats_of(0).segments, 3);
    assert_int_equal(move(0, 1, 2 * MIB), 0);
    assert_int_equal(move(0, 1, 60 * MIB), 50 * MIB); /* 20 and 30, not 40 */
    assert_ptr_equal(ca_block_arena(held[0].block), heaps[0]);
    assert_ptr_equal(ca_block_arena(held[1].block), heaps[1]);
    assert_int_equal(move(1, 0, SIZE_MAX), 50 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_equal(ca_block_arena(held[i].block), heaps[0]);
        put(&held[i]);
    }
    nothing_stays();
}

/* Both heaps are locked meanwhile. */
static void of_many_blocks_one_call_moves_a_few_thousand(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    held_t *held = calloc(MANY, sizeof *held);
    size_t before = 0, calls = 0;
    make(fake_params);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(hold(heaps[0], 512, &held[i]), 0);
    size_t largest = heaps[0]->segments->bytes / 512; /* the newest segment */
    for (; move(0, 1, SIZE_MAX) != 0; calls++) {
        assert_in_range(heaps[1]->blocks.live - before, 1, CA_BALANCE_BLOCKS + largest);
        before = heaps[1]->blocks.live;
    }
    assert_true(calls >= 3);
    assert_int_equal(heaps[0]->segment_count, 0);
    for (unsigned i = 0; i < MANY; i++)
        let_go(&held[i]);
    free(held);
    nothing_stays();
}

static void what_a_cache_holds_moves_too_and_hits_go_on(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 8 * MIB;
    params.warmup = 0;
    make(params);
    fake.auto_pass = true;
    held_t first = get(0, 4 * MIB), kept, hit;
    put(&first); /* caches open with the first fence */
    kept = get(0, 64 * KIB), hit = get(0, 64 * KIB);
    let_go(&hit);
    size_t stock = ca_caches_bytes(heaps[0]);
    assert_true(stock > 0);
    assert_int_equal(move(0, 1, MIB), 0); /* no segment is so small: the caches are left alone */
    assert_int_equal(ca_caches_bytes(heaps[0]), stock);
    assert_true(move(0, 1, SIZE_MAX) > 0);
    assert_int_equal(ca_caches_bytes(heaps[0]), 0);
    assert_int_equal(stats_of(1).live_bytes, 64 * KIB);
    held_t late = kept; /* its free looked too early */
    fake_unuse(late.address, late.bytes);
    ca_cached_free_to(heaps[0], late.block);
    sound();
    assert_int_equal(stats_of(1).live_bytes, 0);
    hit = get(1, 64 * KIB);
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
    put(&hit);
    nothing_stays();
}

static void what_a_free_on_a_stream_made_late_is_late_there_too(void **state)
{
    (void)state;
    make(fake_params);
    ca_stream_t *stream = ca_arena_stream(heaps[1], (void *)1, false);
    held_t mine = get(0, 9 * MIB), none;
    fake_unuse(mine.address, mine.bytes);
    fake.capturing = true; /* or its epoch would be closed at once */
    ca_arena_free_on(mine.block, stream);
    assert_true(stats_of(0).pending_bytes > 0);
    assert_true(move(0, 1, SIZE_MAX) > 0);
    fake.limit = fake.used;
    assert_int_equal(hold(heaps[1], 9 * MIB, &none), -ENOMEM);
    assert_int_equal(fake.waiting_frees, 0); /* no plain free would have waited for it */
    nothing_stays();
}

static void what_is_freed_before_a_move_is_late_until_a_free_after_its_fence(void **state)
{
    (void)state;
    make(fake_params);
    held_t mine = get(0, 9 * MIB), other = get(1, 512);
    put(&mine);
    fake.capturing = true; /* or the climb would close the epoch */
    assert_true(move(0, 1, SIZE_MAX) > 0);
    assert_true(ca_epoch_overdue(heaps[1], heaps[1]->whole.open));
    fake.capturing = false;
    ca_arena_trim(heaps[1], 0); /* closes it */
    ca_epoch_t *epoch = heaps[1]->whole.closed.tail;
    assert_true(ca_epoch_overdue(heaps[1], epoch));
    put(&other);
    assert_false(ca_epoch_overdue(heaps[1], epoch));
    nothing_stays();
}

static void what_was_given_away_was_not_settled_too_early(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.warmup = 100;
    make(params);
    held_t small = get(0, 512), live = get(0, 100 * MIB), given = get(0, 100 * MIB);
    for (unsigned i = 0; i < 100; i++) {
        held_t held = get(0, 512);
        put(&held);
    }
    assert_false(heaps[0]->prefers_memory);
    heaps[0]->warmup_peak = heaps[0]->live_peak; /* as if it had grown since */
    assert_in_range(move(0, 1, 110 * MIB), 100 * MIB, 110 * MIB);
    held_t more = get(0, 60 * MIB); /* without more live than before, and by more than a little */
    assert_true(heaps[0]->prefers_memory);
    assert_int_equal(heaps[0]->warmup, params.warmup);
    put(&small), put(&live), put(&given), put(&more);
    nothing_stays();
}

static void a_program_is_small_by_all_its_heaps(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.warmup = 1000;
    params.segment_first = 10 * MIB;
    make(params);
    held_t one = get(0, 4 * MIB);
    assert_true(ca_warmup_small(heaps[0]));
    assert_int_equal(ca_warmup_epoch_bytes(heaps[0]), CA_WARMUP_ASKS);
    held_t other = get(1, 10 * MIB);
    assert_false(ca_warmup_small(heaps[0]));
    assert_int_equal(ca_warmup_epoch_bytes(heaps[0]), CA_EPOCH_BYTES);
    put(&one), put(&other);
    nothing_stays();
}

static void what_is_pending_stays_where_the_device_has_little_left(void **state)
{
    (void)state;
    make(fake_params);
    fake.limit = 24 * MIB;
    held_t held = get(0, 3 * MIB), kept = get(0, MIB);
    put(&held);
    assert_true(stats_of(0).pending_bytes > 0);
    assert_int_equal(move(0, 1, SIZE_MAX), 0);
    fake_calm_down();
    ca_arena_trim(heaps[0], MIB); /* looks at what has passed */
    assert_int_equal(stats_of(0).pending_bytes, 0);
    assert_true(move(0, 1, SIZE_MAX) > 0);
    put(&kept);
    nothing_stays();
}

static void some_segments_stay(void **state)
{
    (void)state;
    make(fake_params);
    held_t seen = get(0, 8 * MIB), other = get(0, 30 * MIB);
    assert_int_equal(ca_pool_export(seen.address), CA_EXPORT_BASE);
    assert_int_equal(move(0, 1, SIZE_MAX), 30 * MIB);
    assert_ptr_equal(ca_block_arena(seen.block), heaps[0]);
    for (unsigned i = 0; i < HEAPS; i++) {
        ca_arena_pin(heaps[i], true);
        assert_int_equal(move(1, 0, SIZE_MAX), 0);
        ca_arena_pin(heaps[i], false);
    }
    atomic_store(&heaps[0]->lock.word, CA_LOCK_HELD); /* as if by another thread */
    assert_int_equal(ca_balance(heaps[1], heaps[0], SIZE_MAX), 0);
    atomic_store(&heaps[0]->lock.word, CA_LOCK_FREE);
    assert_non_null(ca_arena_stream(heaps[1], (void *)1, false));
    assert_int_equal(move(1, 0, SIZE_MAX), 0);
    put(&seen), put(&other);
    fake_calm_down();
    ca_arena_trim(heaps[1], SIZE_MAX);
}

/* The block's object is the first heap's; its memory is the second one's. */
static void a_block_outlives_the_heap_that_made_it(void **state)
{
    (void)state;
    make(fake_params);
    held_t held = get(0, 3 * MIB), late = get(0, MIB), next;
    assert_true(move(0, 1, SIZE_MAX) > 0);
    ca_arena_retire(heaps[0]);
    assert_false(ca_arena_revive(heaps[0])); /* not before all are gone */
    assert_int_equal(ca_block_bytes(held.block), 3 * MIB);
    let_go(&held);
    assert_null(ca_arena_check(heaps[1]));
    ca_arena_retire(heaps[1]);
    assert_null(ca_block_arena(late.block));
    ca_arena_free(late.block);
    assert_int_equal(fake.errors, 0);
    fake_reset(1024 * MIB, 1024 * MIB);
    for (unsigned i = 0; i < HEAPS; i++)
        assert_true(ca_arena_revive(heaps[i]));
    next = get(0, 3 * MIB);
    assert_true(move(0, 1, SIZE_MAX) > 0);
    put(&next);
    nothing_stays();
}

static void *get_there(void *argument)
{
    held_t *held = argument;
    size_t size = held->bytes;
    if (ca_arena_set_alloc(set, NULL, size, false, &held->block, &held->address, &held->reused) ==
        0)
        fake_use(held->address, size);
    return NULL;
}

static unsigned heap_of(const held_t *held)
{
    return ca_block_arena(held->block) == heaps[1];
}

static held_t get_by_thread(size_t bytes)
{
    pthread_t thread;
    held_t held = {.bytes = bytes};
    pthread_create(&thread, NULL, get_there, &held);
    pthread_join(thread, NULL);
    assert_non_null(held.block);
    sound();
    return held;
}

/* As many calls as are looked at, of which `waited` had to wait for the lock. */
static void wait_for_each_other(unsigned waited)
{
    heaps[0]->takes = CA_ARENA_SET_JUDGED - 1;
    heaps[0]->waits = waited;
    held_t held = get(0, 2 * MIB);
    put(&held);
}

static void
threads_that_wait_for_each_other_get_a_second_heap_with_a_part_of_the_memory(void **state)
{
    (void)state;
    enum { COUNT = 8 };
    held_t held[COUNT], small;
    bool eager = CA_ARENA_SET_WAITED > CA_ARENA_SET_JUDGED; /* a debug build */
    make_some(1, fake_params);
    small = get_by_thread(8 * MIB);
    if (!eager)
        wait_for_each_other(CA_ARENA_SET_JUDGED); /* too little memory for two */
    assert_int_equal(ca_arena_set_open(set), 1);
    for (unsigned i = 0; i < COUNT; i++)
        held[i] = get(0, 24 * MIB);
    if (!eager)
        wait_for_each_other(CA_ARENA_SET_JUDGED / CA_ARENA_SET_WAITED - 1);
    assert_int_equal(ca_arena_set_open(set), 1);
    assert_int_equal(ca_arena_set_count(set), 1);
    wait_for_each_other(CA_ARENA_SET_JUDGED / CA_ARENA_SET_WAITED);
    assert_int_equal(ca_arena_set_open(set), 2);
    assert_int_equal(stats_of(1).reserved_bytes, 0);
    held_t theirs[4];
    size_t grown = fake.used;
    fake.auto_pass = true;
    put(&held[0]), put(&held[COUNT - 1]);
    for (unsigned i = 0; i < 4; i++) /* two of them have the second for their home */
        theirs[i] = get_by_thread(2 * MIB);
    assert_int_equal(fake.used, grown); /* nothing was obtained for it */
    assert_true(stats_of(1).reserved_bytes > grown / 4);
    assert_true(stats_of(1).reserved_bytes < grown * 3 / 4);
    wait_for_each_other(CA_ARENA_SET_JUDGED); /* there are to be no more */
    assert_int_equal(ca_arena_set_count(set), 2);
    for (unsigned i = 0; i < COUNT; i++)
        put(&held[i]);
    for (unsigned i = 0; i < 4; i++)
        put(&theirs[i]);
    put(&small);
    nothing_stays();
    retire();
    for (unsigned i = 0; i < HEAPS; i++)
        assert_true(ca_arena_revive(heaps[i]));
    assert_int_equal(ca_arena_set_open(set), 1); /* another context: as at first */
    fake_reset(1024 * MIB, 1024 * MIB);
    small = get_by_thread(160 * MIB);
    assert_int_equal(heap_of(&small), 0);
    wait_for_each_other(CA_ARENA_SET_JUDGED);
    assert_int_equal(ca_arena_set_open(set), 2);
    put(&small);
}

static void where_nothing_is_given_away_no_heap_comes_into_use(void **state)
{
    (void)state;
    make_some(1, fake_params);
    held_t held = get_by_thread(160 * MIB);
    ca_arena_pin(heaps[0], true);
    wait_for_each_other(CA_ARENA_SET_JUDGED);
    assert_int_equal(ca_arena_set_open(set), 1);
    ca_arena_pin(heaps[0], false);
    assert_non_null(ca_arena_stream(heaps[0], (void *)1, false));
    wait_for_each_other(CA_ARENA_SET_JUDGED);
    assert_int_equal(ca_arena_set_open(set), 1);
    put(&held);
}

static void what_pin_mode_left_unmerged_is_merged_before_it_goes(void **state)
{
    (void)state;
    make(fake_params);
    held_t one = get(0, MIB), two = get(0, MIB), kept = get(0, MIB);
    ca_arena_pin(heaps[0], true);
    assert_int_equal(move(0, 1, SIZE_MAX), 0);
    put(&one), put(&two);
    fake_calm_down();
    ca_arena_trim(heaps[0], 0); /* looks at what has passed */
    ca_arena_pin(heaps[0], false);
    assert_true(heaps[0]->unmerged);
    assert_true(move(0, 1, SIZE_MAX) > 0);
    one = get(1, 2 * MIB);
    assert_int_equal(one.address + 2 * MIB, kept.address);
    put(&one), put(&kept);
    nothing_stays();
}

/* --- threads ---------------------------------------------------------------------------------- */

#define WORKERS 4
#define SLOTS 64
#define OPERATIONS 20000

static _Atomic(held_t *) slots[SLOTS]; /* blocks on their way to another thread */
static atomic_bool stop;
static atomic_uint moves;

static void *work(void *seed)
{
    uint64_t random = (uint64_t)(uintptr_t)seed;
    for (unsigned n = 0; n < OPERATIONS; n++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t bits = 9 + (random >> 33) % 12;
        held_t *mine = calloc(1, sizeof *mine);
        hold(heaps[(random >> 45) % HEAPS],
             ((size_t)1 << bits) + (random >> 40) % ((size_t)1 << bits), mine);
        held_t *theirs = atomic_exchange(&slots[(random >> 24) % SLOTS], mine);
        if (theirs && theirs->block && random >> 63 && ca_block_bytes(theirs->block) == 0)
            fake_error("a live block has no bytes");
        if (theirs && theirs->block) {
            if (random >> 50 & 1)
                let_go(theirs);
            else
                let_go_past_the_cache(theirs);
        }
        free(theirs);
    }
    return NULL;
}

static void *move_all_the_time(void *unused)
{
    (void)unused;
    for (unsigned n = 0; !atomic_load(&stop); n++) {
        pthread_mutex_lock(&fake.mutex);
        fake_pass(fake.recorded > 2 ? fake.recorded - 2 : 0);
        pthread_mutex_unlock(&fake.mutex);
        if (ca_balance(heaps[n % HEAPS], heaps[(n + 1) % HEAPS], n % 3 ? SIZE_MAX : 16 * MIB))
            atomic_fetch_add(&moves, 1);
        usleep(200);
    }
    return NULL;
}

static void move_under_threads(size_t thread_cache)
{
    pthread_t workers[WORKERS], mover;
    ca_arena_params_t params = fake_params;
    params.reuse_wait_ns = 1000;
    params.thread_cache = thread_cache;
    params.warmup = 0;
    make(params);
    atomic_store(&stop, false);
    atomic_store(&moves, 0);
    pthread_create(&mover, NULL, move_all_the_time, NULL);
    for (uintptr_t i = 0; i < WORKERS; i++)
        pthread_create(&workers[i], NULL, work, (void *)(i + 1));
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&stop, true);
    pthread_join(mover, NULL);
    assert_true(atomic_load(&moves) > 0);
    for (unsigned i = 0; i < SLOTS; i++) {
        held_t *left = atomic_exchange(&slots[i], NULL);
        if (left)
            let_go(left);
        free(left);
    }
    nothing_stays();
}

static void threads_meet_every_block_where_it_is(void **state)
{
    (void)state;
    move_under_threads(0);
    retire();
    move_under_threads(4 * MIB);
}

static void *meet(void *argument)
{
    const held_t *held = argument;
    const ca_arena_t *first = ca_arena_set_at(set, 0), *now;

    while ((now = ca_block_arena(held->block)) == first)
        sched_yield();
    return (void *)(uintptr_t)now->upstream;
}

/* The thread sanitizer is what fails here. */
static void who_meets_a_new_heap_by_its_block_sees_it_whole(void **state)
{
    (void)state;
    pthread_t thread;
    void *met;

    make_some(1, fake_params);
    held_t held = get(0, 160 * MIB);
    pthread_create(&thread, NULL, meet, &held);
    wait_for_each_other(CA_ARENA_SET_JUDGED);
    assert_int_equal(ca_arena_set_count(set), 2);
    assert_true(move(0, 1, SIZE_MAX) > 0);
    pthread_join(thread, &met);
    assert_ptr_equal(met, &fake_upstream);
    put(&held);
    nothing_stays();
}

#define TEST(name) cmocka_unit_test_teardown(name, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_segment_takes_along_what_is_live_pending_and_ready),
        TEST(as_many_segments_move_as_were_asked_for),
        TEST(of_many_blocks_one_call_moves_a_few_thousand),
        TEST(what_a_cache_holds_moves_too_and_hits_go_on),
        TEST(what_a_free_on_a_stream_made_late_is_late_there_too),
        TEST(what_is_freed_before_a_move_is_late_until_a_free_after_its_fence),
        TEST(what_was_given_away_was_not_settled_too_early),
        TEST(a_program_is_small_by_all_its_heaps),
        TEST(what_is_pending_stays_where_the_device_has_little_left),
        TEST(some_segments_stay),
        TEST(a_block_outlives_the_heap_that_made_it),
        TEST(threads_that_wait_for_each_other_get_a_second_heap_with_a_part_of_the_memory),
        TEST(where_nothing_is_given_away_no_heap_comes_into_use),
        TEST(what_pin_mode_left_unmerged_is_merged_before_it_goes),
        TEST(threads_meet_every_block_where_it_is),
        TEST(who_meets_a_new_heap_by_its_block_sees_it_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
