/* What a thread's cache keeps of what it freed on streams: for that stream at once and without a
 * call, for all others behind a fence, and the heap's when it wants it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "pool/cache/cache_hit.h"
#include "pool/fence/stream.h"
#include "one_cache.h"
#include "one_thread.h"

#define STREAMS 6
#define BYTES (100 * KIB)

static ca_stream_t *streams[STREAMS];

/* The fake's own check of early reuse knows no streams: it is off (no space). */
static void start_with(size_t memory, ca_reuse_t reuse)
{
    ca_arena_params_t params = fake_params;
    held_t first;

    params.thread_cache = CACHED;
    params.reuse = reuse;
    fake_reset(memory, 0);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    for (uintptr_t i = 0; i < STREAMS; i++)
        streams[i] = ca_arena_stream(arena, (void *)(i + 1), false);
    hold(arena, 4 * MIB, &first); /* a segment */
    let_go(&first);
    fake_pass_all();
}

static int start_some(void **state)
{
    (void)state;
    start_with(1024 * MIB, CA_POOL_REUSE_AUTO);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    end();
    return 0;
}

static int get_on(ca_stream_t *stream, size_t bytes, held_t *held)
{
    int rc =
        ca_cached_alloc(arena, stream, bytes, false, &held->block, &held->address, &held->reused);
    held->bytes = bytes;
    if (rc != 0)
        held->block = NULL;
    else
        assert_true(ca_block_size(held->block) >= bytes);
    return rc;
}

static void put_on(ca_stream_t *stream, held_t *held)
{
    ca_block_t *block = held->block;

    held->block = NULL;
    if (stream)
        ca_cached_free_on(block, stream);
    else
        ca_cached_free(block);
}

static void sound(void)
{
    const char *broken = ca_arena_check(arena);
    if (broken)
        fail_msg("%s", broken);
    assert_int_equal(fake.errors, 0);
}

static void *pairs_under_the_lock(void *unused)
{
    held_t held[STREAMS], again;
    for (unsigned i = 0; i < STREAMS; i++)
        assert_int_equal(get_on(streams[i], BYTES, &held[i]), 0);
    for (unsigned i = 0; i < STREAMS; i++)
        put_on(streams[i], &held[i]);
    fake_log();
    ca_lock_take(&arena->lock);
    for (unsigned round = 0; round < 1000; round++)
        for (unsigned i = 0; i < STREAMS; i++) {
            assert_int_equal(get_on(streams[i], BYTES - round, &again), 0);
            assert_int_equal(again.address, held[i].address);
            put_on(streams[i], &again);
        }
    ca_lock_drop(&arena->lock);
    assert_string_equal(fake_log(), "");
    return unused;
}

/* Would not end otherwise: the lock is taken by this very thread. */
static void a_pair_on_a_stream_takes_no_lock_and_makes_no_call(void **state)
{
    (void)state;
    on_thread(pairs_under_the_lock, NULL);
    assert_int_equal(ca_caches_bytes(arena), 0);
    sound();
}

static bool meet(const held_t *a, uint64_t address, size_t bytes)
{
    return a->address < address + bytes && address < a->address + a->bytes;
}

static void no_other_stream_gets_it_before_its_fence(void **state)
{
    (void)state;
    held_t first, other, plain;
    assert_int_equal(get_on(streams[0], BYTES, &first), 0);
    uint64_t address = first.address;
    put_on(streams[0], &first);
    assert_int_equal(ca_caches_bytes(arena), class_bytes(BYTES));
    assert_int_equal(get_on(streams[1], BYTES, &other), 0);
    assert_false(meet(&other, address, BYTES));
    assert_int_equal(get_on(NULL, BYTES, &plain), 0);
    assert_false(meet(&plain, address, BYTES));
    put_on(streams[1], &other);
    put_on(NULL, &plain);
    sound();
}

/* Nor one that has the same place in the cache. */
static void a_place_is_of_one_stream_at_a_time(void **state)
{
    (void)state;
    ca_stream_t *other = NULL;
    held_t first, second;
    assert_int_equal(get_on(streams[0], BYTES, &first), 0);
    ca_cache_t *cache = ca_cache_own(arena);
    assert_non_null(cache);
    for (uintptr_t i = 0; i < 1000; i++) {
        other = ca_arena_stream(arena, (void *)(100 + i), false);
        if (ca_cache_ordered_at(cache, other, 0) == ca_cache_ordered_at(cache, streams[0], 0))
            break;
    }
    assert_ptr_equal(ca_cache_ordered_at(cache, other, 0),
                     ca_cache_ordered_at(cache, streams[0], 0));
    uint64_t address = first.address;
    put_on(streams[0], &first);
    assert_int_equal(get_on(other, BYTES, &second), 0);
    assert_false(meet(&second, address, BYTES));
    put_on(other, &second); /* the other one's goes to the heap */
    assert_int_equal(ca_caches_bytes(arena), class_bytes(BYTES));
    assert_int_equal(streams[0]->fences.open->count, 1);
    sound();
}

/* The latest is the one that the stream wants back: it is in the processor's caches. */
static void the_one_before_goes_to_the_heap(void **state)
{
    (void)state;
    held_t held[40], again;
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(get_on(streams[0], BYTES, &held[i]), 0);
    uint64_t last = held[39].address, recorded = fake.recorded;
    for (unsigned i = 0; i < 40; i++)
        put_on(streams[0], &held[i]);
    sound();
    assert_int_equal(ca_caches_bytes(arena), class_bytes(BYTES));
    assert_int_equal(fake.recorded, recorded + 1); /* of 39 on the stream 32 have one */
    assert_int_equal(get_on(streams[0], BYTES, &again), 0);
    assert_int_equal(again.address, last);
    put_on(streams[0], &again);
}

/* It is full of other blocks: then the heap's lock is taken as if there were no cache. */
static void a_full_stock_costs_no_second_lock(void **state)
{
    (void)state;
    held_t held;
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    ca_cache_t *cache = ca_cache_own(arena);
    cache->cached_most = 0;
    cache->allocs = 5; /* published by what takes the lock for the cache */
    put_on(streams[0], &held);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(cache->allocs, 5);
    sound();
}

/* All of it, if need be. */
static void what_is_kept_comes_before_an_out_of_memory(void **state)
{
    (void)state;
    held_t held[24], large;
    end();
    start_with(16 * MIB, CA_POOL_REUSE_GROW);
    for (unsigned i = 0; i < 24; i++)
        assert_int_equal(get_on(streams[i % STREAMS], (1 + i / 3) * 16 * KIB, &held[i]), 0);
    for (unsigned i = 0; i < 24; i++)
        put_on(streams[i % STREAMS], &held[i]);
    assert_true(ca_caches_bytes(arena) > MIB / 2);
    fake.auto_pass = true;
    fake_pass_all();
    assert_int_equal(get_on(NULL, 16 * MIB, &large), 0);
    assert_int_equal(ca_caches_bytes(arena), 0);
    put_on(NULL, &large);
    sound();
}

static void the_end_of_a_stream_takes_what_it_had(void **state)
{
    (void)state;
    held_t held[2], again;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(get_on(streams[i], BYTES, &held[i]), 0);
    uint64_t other = held[1].address;
    for (unsigned i = 0; i < 2; i++)
        put_on(streams[i], &held[i]);
    ca_stream_retire(streams[0]);
    sound(); /* nothing in stock is of a stream that is no more */
    assert_int_equal(ca_caches_bytes(arena), class_bytes(BYTES));
    assert_int_equal(get_on(streams[1], BYTES, &again), 0);
    assert_int_equal(again.address, other);
    put_on(streams[1], &again);
    sound();
}

static void *leave_on_a_stream(void *unused)
{
    held_t held;
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    assert_int_equal(ca_caches_bytes(arena), class_bytes(BYTES));
    return unused;
}

static void the_end_of_a_thread_leaves_it_to_the_stream(void **state)
{
    (void)state;
    on_thread(leave_on_a_stream, NULL);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(streams[0]->fences.open->count, 1);
    sound();
}

/* While requests join fences each free on a stream has its own. */
static void nothing_is_kept_while_streams_wait_for_each_other(void **state)
{
    (void)state;
    held_t held;
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    ca_lock_take(&arena->lock);
    assert_null(ca_stream_take_joined(streams[0], CA_BYTES_MOST));
    ca_lock_drop(&arena->lock);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    uint64_t recorded = fake.recorded;
    put_on(streams[0], &held);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(fake.recorded, recorded + 1);
    ca_lock_take(&arena->lock);
    arena->operations = arena->precise_until; /* nobody has for long */
    ca_lock_drop(&arena->lock);
    for (unsigned i = 0; i < 300 && !ca_caches_bytes(arena); i++) {
        assert_int_equal(get_on(streams[0], BYTES, &held), 0);
        put_on(streams[0], &held);
    }
    assert_true(ca_caches_bytes(arena) > 0);
    sound();
}

static void a_stream_may_always_wait_where_that_comes_first(void **state)
{
    (void)state;
    held_t held, other;
    end();
    start_with(1024 * MIB, CA_POOL_REUSE_WAIT);
    assert_int_equal(get_on(streams[0], 6 * MIB, &held), 0);
    put_on(streams[0], &held);
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(get_on(streams[1], 6 * MIB, &other), 0);
    put_on(streams[1], &other);
    sound();
}

static void a_second_stream_finds_nothing_kept_that_it_is_to_wait_for(void **state)
{
    (void)state;
    held_t held;
    end();
    start_with(1024 * MIB, CA_POOL_REUSE_WAIT);
    for (unsigned i = 1; i < STREAMS; i++)
        ca_stream_retire(streams[i]);
    for (unsigned i = 0; i < 300 && !ca_caches_bytes(arena); i++) {
        assert_int_equal(get_on(streams[0], BYTES, &held), 0);
        put_on(streams[0], &held);
    }
    assert_true(ca_caches_bytes(arena) > 0);
    streams[1] = ca_arena_stream(arena, (void *)9, false);
    assert_int_equal(ca_caches_bytes(arena), 0);
    sound();
}

static void in_pin_mode_nothing_is_kept(void **state)
{
    (void)state;
    held_t held;
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    ca_arena_pin(arena, true);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    assert_int_equal(ca_caches_bytes(arena), 0);
    ca_arena_pin(arena, false);
    sound();
}

static void a_retired_heap_takes_it_along(void **state)
{
    (void)state;
    held_t held;
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    ca_arena_retire(arena);
    assert_int_equal(ca_caches_bytes(arena), 0);
    assert_int_not_equal(get_on(streams[0], BYTES, &held), 0);
    start_with(1024 * MIB, CA_POOL_REUSE_AUTO);
    assert_int_equal(get_on(streams[0], BYTES, &held), 0);
    put_on(streams[0], &held);
    sound();
}

/* --- at random ---------------------------------------------------------------------------------
 */

#define SPACE (256 * MIB)
#define LIVE 200
#define ROUNDS 100000

/* Of few classes, so that many requests find what was kept. */
static size_t a_size(unsigned random)
{
    return (1 + random % 8) * 32 * KIB - random / 8 % 1000;
}

/* Of each granule: who freed it last, and which fence is the first behind that. */
static struct {
    ca_stream_t *stream;
    uint64_t recorded;
    bool live;
} granules[SPACE / CA_GRANULE];

static void expect_usable(const held_t *held, const ca_stream_t *stream)
{
    for (size_t i = 0; i < ca_block_size(held->block); i += CA_GRANULE) {
        size_t at = (held->address + i - FAKE_BASE) / CA_GRANULE;
        assert_true(at < SPACE / CA_GRANULE);
        assert_false(granules[at].live);
        if (!granules[at].stream || granules[at].stream != stream)
            assert_true(granules[at].recorded <= fake.passed);
        granules[at].live = true;
    }
}

static void note_free(const held_t *held, ca_stream_t *stream)
{
    for (size_t i = 0; i < ca_block_size(held->block); i += CA_GRANULE) {
        size_t at = (held->address + i - FAKE_BASE) / CA_GRANULE;
        granules[at].live = false;
        granules[at].stream = stream;
        granules[at].recorded = fake.recorded + 1;
    }
}

static void at_random(ca_reuse_t reuse, unsigned seed)
{
    held_t held[LIVE] = {0};
    end();
    start_with(SPACE, reuse);
    memset(granules, 0, sizeof granules);
    srand(seed);
    for (unsigned i = 0; i < ROUNDS; i++) {
        held_t *one = &held[(unsigned)rand() % LIVE];
        unsigned which = (unsigned)rand() % (STREAMS + 1);
        ca_stream_t *stream = which < STREAMS ? streams[which] : NULL;
        if (one->block) {
            note_free(one, stream);
            put_on(stream, one);
        } else if (get_on(stream, a_size((unsigned)rand()), one) == 0) {
            /* A fence may have been joined: the fake counts that stream's waits for nobody. */
            if (reuse == CA_POOL_REUSE_GROW)
                expect_usable(one, stream);
        }
        if (rand() % 50 == 0)
            fake_pass(fake.recorded - (fake.recorded ? (uint64_t)rand() % 2 : 0));
        if (rand() % 2000 == 0 && which < STREAMS) {
            ca_stream_retire(streams[which]);
            for (size_t k = 0; k < SPACE / CA_GRANULE; k++)
                if (granules[k].stream == streams[which])
                    granules[k].stream = NULL; /* the object may be another stream's next */
            streams[which] = ca_arena_stream(arena, (void *)(uintptr_t)(which + 1), false);
        }
        if (rand() % 500 == 0)
            sound();
    }
    for (unsigned i = 0; i < LIVE; i++)
        if (held[i].block)
            put_on(NULL, &held[i]);
    sound();
}

static void at_random_nothing_is_used_too_early(void **state)
{
    ONE_THREAD();
    (void)state;
    for (unsigned seed = 1; seed <= 4; seed++)
        at_random(CA_POOL_REUSE_GROW, seed);
}

static void at_random_all_stays_sound_where_streams_join(void **state)
{
    ONE_THREAD();
    (void)state;
    at_random(CA_POOL_REUSE_AUTO, 5);
    at_random(CA_POOL_REUSE_WAIT, 6);
}

#define THREADS 4

static void *pairs_at_random(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    held_t held[16] = {0};
    for (unsigned i = 0; i < 20000; i++) {
        held_t *one = &held[(unsigned)rand_r(&seed) % 16];
        unsigned which = (unsigned)rand_r(&seed) % (STREAMS + 1);
        ca_stream_t *stream = which < STREAMS ? streams[which] : NULL;
        if (one->block)
            put_on(stream, one);
        else
            get_on(stream, a_size((unsigned)rand_r(&seed)), one);
    }
    for (unsigned i = 0; i < 16; i++)
        if (held[i].block)
            put_on(streams[0], &held[i]);
    return NULL;
}

/* With all that takes from their caches meanwhile. */
static void threads_beside_each_other(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    fake.auto_pass = true;
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pairs_at_random, (void *)(i + 1)), 0);
    for (unsigned i = 0; i < 200; i++) {
        ca_stream_t *brief = ca_arena_stream(arena, (void *)99, false);
        held_t held;
        if (brief && get_on(brief, BYTES, &held) == 0)
            put_on(brief, &held);
        if (i % 8 == 0)
            ca_arena_trim(arena, 4 * MIB);
        if (i % 32 == 0) {
            ca_lock_take(&arena->lock);
            (void)ca_stream_take_joined(streams[0], CA_BYTES_MOST);
            arena->precise_until = arena->operations + 1000;
            ca_lock_drop(&arena->lock);
        }
        if (brief)
            ca_stream_retire(brief);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(fake.errors, 0);
    sound();
}

int main(void)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, start_some, end_all)
    const struct CMUnitTest tests[] = {
        TEST(a_pair_on_a_stream_takes_no_lock_and_makes_no_call),
        TEST(no_other_stream_gets_it_before_its_fence),
        TEST(a_place_is_of_one_stream_at_a_time),
        TEST(the_one_before_goes_to_the_heap),
        TEST(a_full_stock_costs_no_second_lock),
        TEST(what_is_kept_comes_before_an_out_of_memory),
        TEST(the_end_of_a_stream_takes_what_it_had),
        TEST(the_end_of_a_thread_leaves_it_to_the_stream),
        TEST(nothing_is_kept_while_streams_wait_for_each_other),
        TEST(a_stream_may_always_wait_where_that_comes_first),
        TEST(a_second_stream_finds_nothing_kept_that_it_is_to_wait_for),
        TEST(in_pin_mode_nothing_is_kept),
        TEST(a_retired_heap_takes_it_along),
        TEST(at_random_nothing_is_used_too_early),
        TEST(at_random_all_stays_sound_where_streams_join),
        TEST(threads_beside_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
