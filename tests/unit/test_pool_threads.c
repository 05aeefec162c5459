/* Threads share an arena: they free each other's blocks, run into a device that is too small, while
 * one trims and asks for statistics, and at the end one retires the arena under them. Meant for the
 * thread sanitizer as much as for its own checks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>
#include "fake_upstream.h"
#include "pool/state.h"

#define WORKERS 4
#define OPERATIONS 20000
#define SLOTS 64

typedef struct shared {
    ca_arena_t *arena;
    _Atomic(held_t *) slots[SLOTS]; /* blocks on their way to another thread */
    atomic_bool stop;
    atomic_uint tried, wrong_codes;
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
        atomic_fetch_add(&shared->tried, 1);
        if (rc != 0) {
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
        while (atomic_load(&shared->tried) < 5000)
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

static void free_each_others_blocks(size_t memory, size_t thread_cache)
{
    static worker_t workers[WORKERS];
    shared_t shared = {0};
    ca_arena_params_t params = fake_params;
    params.reuse_wait_ns = 1000;
    params.thread_cache = thread_cache;
    fake_reset(memory, memory + 208 * MIB);
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

static void threads_may_free_each_others_blocks(void **state)
{
    (void)state;
    free_each_others_blocks(48 * MIB, 0);
}

/* There is enough for caches to be open, and then there is not. */
static void threads_with_caches_may_free_each_others_blocks(void **state)
{
    (void)state;
    free_each_others_blocks(48 * MIB, 8 * MIB);
    free_each_others_blocks(128 * MIB, 8 * MIB);
    free_each_others_blocks(1024 * MIB, 8 * MIB);
}

/* The fake's memory outlives the context, so it can tell whether anything is still called: only
 * what was under way when the arena was retired may come back from it. */
static void an_arena_may_be_retired_under_its_users(void **state)
{
    (void)state;
    static worker_t workers[WORKERS];
    for (unsigned round = 0; round < 10; round++) {
        shared_t shared = {.retires = true};
        ca_arena_params_t params = fake_params;
        params.thread_cache = round % 2 ? 8 * MIB : 0;
        size_t memory = round % 2 ? 512 * MIB : 48 * MIB;
        fake_reset(memory, memory + 208 * MIB);
        fake.retires = true;
        shared.arena = ca_arena_create(&fake_upstream, NULL, &params);
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
    ca_arena_params_t params = fake_params;
    params.segment_first = 48 * MIB;
    growing = ca_arena_create(&fake_upstream, NULL, &params);
    assert_int_equal(hold(growing, 47 * MIB, &first), 0); /* leaves 1 MiB for the hit */
    fake.on_call[FAKE_ALLOC] = while_growing;
    assert_int_equal(hold(growing, 4 * MIB, &second), 0); /* leaves 4 MiB for the miss */
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

/* --- cancellation --------------------------------------------------------------------------------
 * A thread is cancelled inside an upstream call that is a cancellation point, and in the wait for
 * one that grows. It may end only when it is out of the pool. */

static sem_t inside, go_on;
static atomic_uint returned;

static void block_once(void)
{
    if (atomic_fetch_add(&entered, 1) > 0)
        return;
    sem_post(&inside);
    while (sem_wait(&go_on) != 0) /* a cancellation point */
        ;
}

static void (*job)(void *);

/* Where it is cancelled there are no variables: the address sanitizer forgets none of them. */
static void *cancelled(void *arg)
{
    job(arg);
    atomic_fetch_add(&returned, 1);
    pthread_testcancel();
    return NULL;
}

static void job_allocate(void *arg)
{
    held_t held;
    hold(growing, *(const size_t *)arg, &held);
}

static void job_free(void *arg)
{
    let_go(arg);
}

static void job_trim(void *arg)
{
    (void)arg;
    ca_arena_trim(growing, SIZE_MAX);
}

static void cancel_inside(fake_call_t call, void (*what)(void *), void *arg)
{
    pthread_t thread;
    void *result = NULL;
    held_t held;

    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    atomic_store(&entered, 0);
    atomic_store(&returned, 0);
    job = what;
    fake.on_call[call] = block_once;
    pthread_create(&thread, NULL, cancelled, arg);
    while (sem_wait(&inside) != 0)
        ;
    pthread_cancel(thread);
    sem_post(&go_on);
    pthread_join(thread, &result);
    assert_ptr_equal(result, PTHREAD_CANCELED); /* later is not never */
    assert_int_equal(atomic_load(&returned), 1);
    assert_int_equal(growing->inside, 0);
    assert_null(ca_arena_check(growing));
    assert_int_equal(hold(growing, 100 * MIB, &held), 0); /* the turn is free */
    let_go(&held);
    assert_null(ca_arena_check(growing));
    assert_int_equal(fake.errors, 0);
    ca_arena_retire(growing);
}

static void fresh_arena(ca_arena_params_t params)
{
    fake_reset(1024 * MIB, 1024 * MIB);
    growing = ca_arena_create(&fake_upstream, NULL, &params);
}

static void a_thread_cancelled_while_it_grows_leaves_the_arena_usable(void **state)
{
    (void)state;
    size_t bytes = 6 * MIB;
    fresh_arena(fake_params);
    cancel_inside(FAKE_ALLOC, job_allocate, &bytes);
}

static void a_thread_cancelled_in_a_query_leaves_the_arena_usable(void **state)
{
    (void)state;
    held_t first;
    size_t bytes = 16 * MIB;
    fresh_arena(fake_params);
    assert_int_equal(hold(growing, 8 * MIB, &first), 0);
    let_go(&first);
    cancel_inside(FAKE_QUERY, job_allocate, &bytes);
}

static void a_thread_cancelled_in_a_bounded_wait_leaves_the_arena_usable(void **state)
{
    (void)state;
    held_t first;
    size_t bytes = 16 * MIB;
    ca_arena_params_t params = fake_params;
    params.reuse = CA_POOL_REUSE_WAIT;
    fresh_arena(params);
    assert_int_equal(hold(growing, 8 * MIB, &first), 0);
    let_go(&first);
    cancel_inside(FAKE_WAIT, job_allocate, &bytes);
}

static void a_thread_cancelled_while_it_closes_an_epoch_leaves_the_arena_usable(void **state)
{
    (void)state;
    held_t first;
    fresh_arena(fake_params);
    assert_int_equal(hold(growing, 8 * MIB, &first), 0);
    cancel_inside(FAKE_RECORD, job_free, &first);
}

static void a_thread_cancelled_while_it_synchronizes_leaves_the_arena_usable(void **state)
{
    (void)state;
    held_t first;
    fresh_arena(fake_params);
    fake.no_fences = true;
    assert_int_equal(hold(growing, 256 * MIB, &first), 0);
    cancel_inside(FAKE_SYNC, job_free, &first);
}

static void a_thread_cancelled_in_a_trim_leaves_the_arena_usable(void **state)
{
    (void)state;
    held_t first;
    fresh_arena(fake_params);
    assert_int_equal(hold(growing, 8 * MIB, &first), 0);
    let_go(&first);
    fake_pass_all();
    cancel_inside(FAKE_FREE, job_trim, NULL);
}

static void cancel_the_waiting_thread(void)
{
    static size_t bytes = 16 * MIB;
    if (atomic_fetch_add(&entered, 1) > 0)
        return;
    uint64_t before = operations();
    job = job_allocate;
    pthread_create(&misses, NULL, cancelled, &bytes);
    while (operations() == before) /* it has dropped the lock again: it waits for this thread */
        sched_yield();
    pthread_cancel(misses);
}

static void a_thread_cancelled_while_it_waits_for_growth_leaves_the_lock(void **state)
{
    (void)state;
    held_t held;
    void *result = NULL;
    fresh_arena(fake_params);
    atomic_store(&entered, 0);
    atomic_store(&returned, 0);
    fake.on_call[FAKE_ALLOC] = cancel_the_waiting_thread;
    alarm(20); /* without the lock nobody goes on */
    assert_int_equal(hold(growing, 6 * MIB, &held), 0);
    pthread_join(misses, &result);
    alarm(0);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    assert_int_equal(atomic_load(&returned), 1);
    assert_null(ca_arena_check(growing));
    ca_arena_retire(growing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_may_free_each_others_blocks),
        cmocka_unit_test(threads_with_caches_may_free_each_others_blocks),
        cmocka_unit_test(one_thread_grows_while_others_hit_or_wait),
        cmocka_unit_test(retiring_frees_those_who_wait_for_growth),
        cmocka_unit_test(an_arena_may_be_retired_under_its_users),
        cmocka_unit_test(a_thread_cancelled_while_it_grows_leaves_the_arena_usable),
        cmocka_unit_test(a_thread_cancelled_in_a_query_leaves_the_arena_usable),
        cmocka_unit_test(a_thread_cancelled_in_a_bounded_wait_leaves_the_arena_usable),
        cmocka_unit_test(a_thread_cancelled_while_it_closes_an_epoch_leaves_the_arena_usable),
        cmocka_unit_test(a_thread_cancelled_while_it_synchronizes_leaves_the_arena_usable),
        cmocka_unit_test(a_thread_cancelled_in_a_trim_leaves_the_arena_usable),
        cmocka_unit_test(a_thread_cancelled_while_it_waits_for_growth_leaves_the_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
