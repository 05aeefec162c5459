/* Threads share an arena: they free each other's blocks, run into a device that is too small, while
 * one trims and asks for statistics, and at the end one retires the arena under them. Meant for the
 * thread sanitizer as much as for its own checks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include "fake_upstream.h"
#include "pool/state.h"

#define WORKERS 4
#define OPERATIONS 20000
#define SLOTS 64

typedef struct shared {
    ca_arena_t *arena;
    _Atomic(held_t *) slots[SLOTS]; /* blocks on their way to another thread */
    atomic_bool stop;
    atomic_uint served, wrong_codes;
    bool retires;
} shared_t;

typedef struct worker {
    shared_t *shared;
    pthread_t thread;
    uint64_t random;
    unsigned operations;
} worker_t;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du >> 16;
}

static size_t random_size(uint64_t random)
{
    size_t bits = 9 + random % 12;
    return ((size_t)1 << bits) + (random >> 8) % ((size_t)1 << bits);
}

static void release(held_t *held)
{
    let_go(held);
    free(held);
}

/* Allocates, puts the block into a slot, and frees whatever was in that slot. */
static void *work(void *arg)
{
    worker_t *me = arg;
    shared_t *shared = me->shared;

    for (unsigned n = 0; n < me->operations && !atomic_load(&shared->stop); n++) {
        uint64_t random = next_random(&me->random);
        held_t *mine = calloc(1, sizeof *mine);
        int rc = hold(shared->arena, random_size(random), mine);
        if (rc == 0) {
            atomic_fetch_add(&shared->served, 1);
        } else {
            if (rc != -ENOMEM && !(shared->retires && rc == -EIO))
                atomic_fetch_add(&shared->wrong_codes, 1);
            free(mine);
            mine = NULL;
        }
        held_t *theirs = atomic_exchange(&shared->slots[(random >> 40) % SLOTS], mine);
        if (theirs)
            release(theirs);
    }
    return NULL;
}

/* The device goes on, somebody trims and looks. */
static void *disturb(void *arg)
{
    shared_t *shared = arg;

    for (unsigned n = 0; !atomic_load(&shared->stop); n++) {
        ca_arena_stats_t stats;
        pthread_mutex_lock(&fake.mutex);
        fake.capturing = n % 64 < 4;
        fake_pass(fake.recorded > 2 ? fake.recorded - 2 : 0);
        pthread_mutex_unlock(&fake.mutex);
        ca_arena_stats(shared->arena, &stats);
        if (n % 16 == 0)
            ca_arena_trim(shared->arena, n % 32 ? MIB : SIZE_MAX);
        if (n % 256 == 0) {
            const char *broken = ca_arena_check(shared->arena);
            if (broken)
                fake_error("%s", broken);
        }
        sched_yield();
    }
    return NULL;
}

static void run(shared_t *shared, worker_t *workers, unsigned operations)
{
    pthread_t disturber;

    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (worker_t){.shared = shared, .random = i + 1, .operations = operations};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    pthread_create(&disturber, NULL, disturb, shared);
    if (shared->retires) {
        while (atomic_load(&shared->served) < 5000)
            sched_yield();
        ca_arena_retire(shared->arena);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    atomic_store(&shared->stop, true);
    pthread_join(disturber, NULL);
    for (unsigned i = 0; i < SLOTS; i++) {
        held_t *left = atomic_exchange(&shared->slots[i], NULL);
        if (left)
            release(left);
    }
}

static void threads_may_free_each_others_blocks(void **state)
{
    (void)state;
    static worker_t workers[WORKERS];
    shared_t shared = {0};
    ca_arena_params_t params = fake_params;
    params.reuse_wait_ns = 1000;
    fake_reset(48 * MIB, 256 * MIB);
    shared.arena = ca_arena_create(&fake_upstream, NULL, &params);
    run(&shared, workers, OPERATIONS);

    assert_null(ca_arena_check(shared.arena));
    assert_int_equal(shared.wrong_codes, 0);
    fake.capturing = false;
    fake.auto_pass = true;
    fake_pass_all();
    ca_arena_trim(shared.arena, SIZE_MAX);
    assert_null(ca_arena_check(shared.arena));
    assert_int_equal(fake.errors, 0);
    assert_int_equal(fake.used, 0);
    assert_int_equal(fake.fences, 0);
    ca_arena_retire(shared.arena);
}

/* The fake's memory outlives the context, so it can tell whether anything is still called: only
 * what was under way when the arena was retired may come back from it. */
static void an_arena_may_be_retired_under_its_users(void **state)
{
    (void)state;
    static worker_t workers[WORKERS];
    for (unsigned round = 0; round < 5; round++) {
        shared_t shared = {.retires = true};
        fake_reset(48 * MIB, 256 * MIB);
        fake.retires = true;
        shared.arena = ca_arena_create(&fake_upstream, NULL, &fake_params);
        run(&shared, workers, OPERATIONS);

        held_t late;
        uint64_t calls = 0;
        for (unsigned i = 0; i < FAKE_CALLS; i++)
            calls += fake.calls[i];
        assert_int_equal(hold(shared.arena, 512, &late), -EIO);
        assert_int_equal(shared.wrong_codes, 0);
        uint64_t after = 0;
        for (unsigned i = 0; i < FAKE_CALLS; i++)
            after += fake.calls[i];
        assert_int_equal(calls, after);
        assert_int_equal(fake.errors, 0);
    }
}

/* --- one thread grows ----------------------------------------------------------------------------
 */

static ca_arena_t *growing;
static held_t miss, hit;
static atomic_uint entered;

static void *allocate_miss(void *arg)
{
    (void)arg;
    hold(growing, 2 * MIB, &miss);
    return NULL;
}

static void *allocate_hit(void *arg)
{
    (void)arg;
    hold(growing, MIB, &hit);
    return NULL;
}

static uint64_t operations(void)
{
    ca_lock_take(&growing->lock);
    uint64_t now = growing->operations;
    ca_lock_drop(&growing->lock);
    return now;
}

static pthread_t misses;

/* Inside the upstream allocation: another thread is served by what is ready, and one that needs
 * growth too has entered. (It has dropped the lock: it waits, or it is on its way here.) */
static void while_growing(void)
{
    pthread_t hits;

    if (atomic_fetch_add(&entered, 1) > 0)
        return;
    pthread_create(&hits, NULL, allocate_hit, NULL);
    pthread_join(hits, NULL);
    uint64_t before = operations();
    pthread_create(&misses, NULL, allocate_miss, NULL);
    while (operations() == before)
        sched_yield();
}

static void one_thread_grows_while_others_hit_or_wait(void **state)
{
    (void)state;
    held_t first, second;
    fake_reset(1024 * MIB, 1024 * MIB);
    growing = ca_arena_create(&fake_upstream, NULL, &fake_params);
    assert_int_equal(hold(growing, 7 * MIB, &first), 0); /* leaves 1 MiB for the hit */
    fake.on_call[FAKE_ALLOC] = while_growing;
    assert_int_equal(hold(growing, 6 * MIB, &second), 0); /* leaves 2 MiB for the miss */
    pthread_join(misses, NULL);
    assert_non_null(hit.block);
    assert_non_null(miss.block);
    assert_int_equal(fake.calls[FAKE_ALLOC], 2);
    assert_null(ca_arena_check(growing));
    assert_int_equal(fake.errors, 0);
    ca_arena_retire(growing);
}

/* Retired inside the upstream allocation, which may never come back: whoever waits for it leaves.
 */
static void retire_while_growing(void)
{
    uint64_t before = operations();

    pthread_create(&misses, NULL, allocate_miss, NULL);
    while (operations() == before)
        sched_yield();
    ca_arena_retire(growing);
    pthread_join(misses, NULL);
}

static void retiring_frees_those_who_wait_for_growth(void **state)
{
    (void)state;
    held_t held;
    fake_reset(1024 * MIB, 1024 * MIB);
    growing = ca_arena_create(&fake_upstream, NULL, &fake_params);
    fake.on_call[FAKE_ALLOC] = retire_while_growing;
    assert_int_equal(hold(growing, 6 * MIB, &held), -EIO);
    assert_null(miss.block);
    assert_int_equal(fake.calls[FAKE_ALLOC], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_may_free_each_others_blocks),
        cmocka_unit_test(one_thread_grows_while_others_hit_or_wait),
        cmocka_unit_test(retiring_frees_those_who_wait_for_growth),
        cmocka_unit_test(an_arena_may_be_retired_under_its_users),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
