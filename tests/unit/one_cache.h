/* For unit tests of the thread caches in front of one arena on the fake upstream. Include cmocka
 * first. Header-only, because every unit program is linked alone. */
#ifndef ONE_CACHE_H
#define ONE_CACHE_H

#include "fake_upstream.h"
#include "pool/cache/cache_hit.h"
#include "pool/state.h"

#define CACHED (8 * MIB)

static ca_arena_t *arena;

/* The arena gets its first fence: before that caches are shut. */
static inline void settle_in(void)
{
    held_t first;

    hold(arena, 4 * MIB, &first);
    let_go(&first);
    fake_pass_all();
    assert_int_equal(fake.recorded, 1);
}

static inline void start(size_t memory, size_t thread_cache)
{
    ca_arena_params_t params = fake_params;

    params.thread_cache = thread_cache;
    fake_reset(memory, 2 * memory);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    settle_in();
}

static inline void end(void)
{
    assert_null(ca_arena_check(arena));
    fake.auto_pass = true;
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX);
    ca_arena_stats_t stats;
    ca_arena_stats(arena, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(fake.used, 0);
    assert_int_equal(fake.fences, 0);
    assert_int_equal(fake.errors, 0);
    ca_arena_retire(arena);
    free(fake.stamps);
    fake.stamps = NULL;
}

/* What a rounded request that has a class gets. */
static inline size_t class_bytes(size_t bytes)
{
    size_t of_class;

    ca_cache_class_of(bytes, &of_class);
    return of_class;
}

/* Allocates `count` blocks at once and frees them. */
static inline void go_through(size_t bytes, unsigned count)
{
    held_t held[CA_CACHE_EPOCH_BLOCKS + 1];

    for (unsigned i = 0; i < count; i++)
        assert_int_equal(hold(arena, bytes, &held[i]), 0);
    for (unsigned i = 0; i < count; i++)
        let_go(&held[i]);
}

static inline void *leave_in_stock(void *bytes)
{
    go_through((size_t)(uintptr_t)bytes, CA_CACHE_EPOCH_BLOCKS);
    return NULL;
}

static inline void on_thread(void *(*work)(void *), void *arg)
{
    pthread_t thread;

    pthread_create(&thread, NULL, work, arg);
    pthread_join(thread, NULL);
}

static pthread_barrier_t barrier;

/* Fills its cache, then lives on while the other does its part. */
static inline void *keep_in_stock(void *bytes)
{
    leave_in_stock(bytes);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static inline void beside_a_full_cache(size_t bytes, void (*part)(void))
{
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, keep_in_stock, (void *)(uintptr_t)bytes);
    pthread_barrier_wait(&barrier);
    part();
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
}

/* A program that has so much live besides. */
static inline void live_is(size_t bytes, held_t *held)
{
    assert_int_equal(hold(arena, bytes, held), 0);
    ca_lock_take(&arena->lock);
    ca_caches_review(arena); /* as after every growth */
    ca_lock_drop(&arena->lock);
}

#endif
