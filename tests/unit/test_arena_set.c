/* Several heaps for one context. The test's own thread has the first one, other threads are started
 * where memory of others is wanted. Every step checks every invariant of every heap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include "fake_upstream.h"
#include "pool/cache/cache.h"
#include "pool/arena_set.h"
#include "pool/state.h"

#define HEAPS 4u

static ca_arena_set_t *set;

static void make(size_t device, ca_arena_params_t params)
{
    fake_reset(device, 1024 * MIB);
    set = ca_arena_set_create(&fake_upstream, NULL, &params, HEAPS, HEAPS);
    assert_non_null(set);
}

static void sound(void)
{
    size_t reserved = 0;
    for (unsigned i = 0; i < HEAPS; i++) {
        ca_arena_stats_t stats;
        const char *broken = ca_arena_check(ca_arena_set_at(set, i));
        if (broken)
            fail_msg("heap %u: %s", i, broken);
        ca_arena_stats(ca_arena_set_at(set, i), &stats);
        reserved += stats.reserved_bytes;
    }
    assert_int_equal(reserved, fake.used);
    assert_int_equal(reserved, ca_arena_set_reserved(set));
    assert_int_equal(fake.errors, 0);
}

static void retire(void)
{
    for (unsigned i = 0; i < HEAPS; i++)
        ca_arena_retire(ca_arena_set_at(set, i));
}

static void trim(size_t bytes)
{
    for (unsigned i = 0; i < HEAPS; i++)
        ca_arena_trim(ca_arena_set_at(set, i), bytes);
}

/* Also where a test fails: the next one gets the same addresses. */
static int tear_down(void **state)
{
    (void)state;
    retire();
    return 0;
}

static int get_on(ca_stream_t *stream, size_t bytes, bool ready_only, held_t *held)
{
    *held = (held_t){.bytes = bytes};
    size_t size = bytes; /* or of the class */
    int rc = stream ? -EAGAIN
                    : ca_cache_alloc(ca_arena_set_home(set), &size, ready_only, &held->block,
                                     &held->address, &held->reused);
    if (rc != 0)
        rc = ca_arena_set_alloc(set, stream, size, ready_only, &held->block, &held->address,
                                &held->reused);
    if (rc == 0 && !stream)
        fake_use(held->address, bytes);
    return rc;
}

static held_t get(size_t bytes)
{
    held_t held;
    assert_int_equal(get_on(NULL, bytes, false, &held), 0);
    sound();
    return held;
}

static void put(held_t *held)
{
    let_go(held);
    sound();
}

static void *get_there(void *held)
{
    get_on(NULL, ((held_t *)held)->bytes, false, held);
    return NULL;
}

/* By a thread that has another heap than this one. */
static held_t get_elsewhere(size_t bytes)
{
    held_t held;
    do {
        pthread_t thread;
        held = (held_t){.bytes = bytes};
        pthread_create(&thread, NULL, get_there, &held);
        pthread_join(thread, NULL);
        assert_non_null(held.block);
        if (ca_block_arena(held.block) != ca_arena_set_at(set, 0))
            break;
        put(&held);
        fake_pass_all();
        trim(SIZE_MAX);
    } while (true);
    sound();
    return held;
}

static unsigned heap_of(const held_t *held)
{
    unsigned heap = 0;
    while (ca_arena_set_at(set, heap) != ca_block_arena(held->block))
        heap++;
    return heap;
}

static void each_thread_grows_a_heap_of_its_own(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    held_t mine = get(9 * MIB), again = get(9 * MIB), others[HEAPS];
    unsigned seen = 1u << heap_of(&mine);
    assert_int_equal(heap_of(&mine), 0);
    assert_int_equal(heap_of(&again), 0);
    for (unsigned i = 0; i < HEAPS; i++) {
        pthread_t thread;
        others[i] = (held_t){.bytes = 9 * MIB};
        pthread_create(&thread, NULL, get_there, &others[i]);
        pthread_join(thread, NULL);
        seen |= 1u << heap_of(&others[i]);
    }
    assert_int_equal(seen, 0xf);
    put(&mine), put(&again);
    for (unsigned i = 0; i < HEAPS; i++)
        put(&others[i]);
}

static size_t room_of(unsigned heap)
{
    return ca_arena_set_at(set, heap)->free_bytes;
}

static void the_room_that_one_heap_finds_is_all_heaps(void **state)
{
    (void)state;
    held_t none;
    make(256 * MIB, fake_params);
    held_t a = get(100 * MIB);
    assert_int_equal(get_on(NULL, 300 * MIB, false, &none), -ENOMEM);
    for (unsigned i = 0; i < HEAPS; i++)
        assert_int_equal(room_of(i), 0);
    fake.limit = 1024 * MIB; /* others have given back */
    held_t b = get(300 * MIB);
    for (unsigned i = 0; i < HEAPS; i++)
        assert_true(room_of(i) >= 600 * MIB);
    put(&a);
    put(&b);
}

static void what_goes_back_is_room_for_all_heaps(void **state)
{
    (void)state;
    held_t none;
    make(256 * MIB, fake_params);
    held_t a = get(200 * MIB);
    assert_int_equal(get_on(NULL, 300 * MIB, false, &none), -ENOMEM);
    put(&a);
    fake_pass_all();
    trim(SIZE_MAX);
    for (unsigned i = 0; i < HEAPS; i++)
        assert_true(room_of(i) >= 200 * MIB);
}

static void small_requests_give_each_heap_a_first_segment_while_there_is_room(void **state)
{
    (void)state;
    for (unsigned full = 0; full < 2; full++) {
        make(full ? 8 * MIB : 1024 * MIB, fake_params);
        held_t mine = get(4 * KIB);
        unsigned seen = 1u << heap_of(&mine);
        for (unsigned i = 0; i < 2 * HEAPS; i++) {
            pthread_t thread;
            held_t other = {.bytes = 4 * KIB};
            pthread_create(&thread, NULL, get_there, &other);
            pthread_join(thread, NULL);
            assert_non_null(other.block);
            seen |= 1u << heap_of(&other);
            put(&other);
        }
        assert_int_equal(seen, full ? 1 : 0xf);
        size_t asked = full ? 1 + 3 * (HEAPS - 1) : HEAPS; /* in three sizes; not tried again */
        assert_true(fake.calls[FAKE_ALLOC] <= asked);
        put(&mine);
        retire();
    }
}

static void what_another_heap_has_serves_before_one_grows(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    held_t mine = get(8 * MIB), other = get_elsewhere(40 * MIB), again, none;
    uint64_t there = other.address, grown = fake.calls[FAKE_ALLOC];
    put(&other);
    assert_int_equal(get_on(NULL, 40 * MIB, true, &none), -EAGAIN); /* not while it is in flight */
    fake_pass_all();
    again = get(40 * MIB); /* no hint tells of it yet: it is found under the lock */
    assert_int_equal(again.address, there);
    assert_int_equal(fake.calls[FAKE_ALLOC], grown);
    put(&again), put(&mine);
}

typedef struct keeper {
    ca_arena_t *heap;
    ca_block_t *kept[2];
    pthread_barrier_t has, over;
} keeper_t;

static void pass_through_stock(ca_arena_t *heap)
{
    ca_block_t *block;
    uint64_t address;
    assert_int_equal(ca_cached_alloc(heap, 512, false, &block, &address, NULL), 0);
    ca_cached_free(block);
    assert_true(ca_caches_bytes(heap) > 0);
}

/* Something in the thread's stock, and nothing larger that is ready in its heap. */
static void stock_up(keeper_t *own)
{
    static const size_t bytes[] = {4 * MIB, 4 * MIB, MIB};
    ca_block_t *blocks[3];
    uint64_t address;
    held_t none;
    own->heap = ca_arena_set_home(set);
    assert_int_equal(get_on(NULL, 512 * MIB, true, &none), -EAGAIN); /* it is in use from now on */
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ca_cached_alloc(own->heap, bytes[i], false, &blocks[i], &address, NULL),
                         0);
        if (i == 0) /* caches open with the first fence */
            ca_cached_free(blocks[i]);
    }
    own->kept[0] = blocks[1], own->kept[1] = blocks[2];
    pass_through_stock(own->heap);
}

static void use_up(keeper_t *own)
{
    ca_cached_free(own->kept[0]), ca_cached_free(own->kept[1]);
}

static void *keep_stock(void *keeper)
{
    keeper_t *own = keeper;
    stock_up(own);
    pthread_barrier_wait(&own->has);
    pthread_barrier_wait(&own->over);
    use_up(own);
    return NULL;
}

static void stock_is_not_the_first_that_is_taken_but_goes_before_a_heap_grows(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 8 * MIB;
    params.segment_first = 4 * MIB;
    params.warmup = 0;
    make(1024 * MIB, params);
    fake.auto_pass = true;
    held_t all = get(4 * MIB - 4096), again, more;
    keeper_t mine, other;
    pthread_t thread;
    stock_up(&mine);
    do { /* of another heap */
        pthread_barrier_init(&other.has, NULL, 2);
        pthread_barrier_init(&other.over, NULL, 2);
        pthread_create(&thread, NULL, keep_stock, &other);
        pthread_barrier_wait(&other.has);
        if (other.heap != mine.heap)
            break;
        pthread_barrier_wait(&other.over);
        pthread_join(thread, NULL);
    } while (true);
    let_go(&all);
    pass_through_stock(mine.heap); /* the others' growth has emptied it */
    size_t stock[] = {ca_caches_bytes(mine.heap), ca_caches_bytes(other.heap)};
    assert_true(stock[1] > 0);
    uint64_t grown = fake.calls[FAKE_ALLOC];
    assert_int_equal(get_on(NULL, 4 * MIB - 4096, false, &again), 0); /* closed here, and passed */
    assert_int_equal(fake.calls[FAKE_ALLOC], grown);
    assert_int_equal(ca_caches_bytes(mine.heap), stock[0]);
    assert_int_equal(ca_caches_bytes(other.heap), stock[1]);
    more = get(100 * MIB);
    assert_int_equal(fake.calls[FAKE_ALLOC], grown + 1);
    assert_int_equal(ca_caches_bytes(mine.heap) + ca_caches_bytes(other.heap), 0);
    pthread_barrier_wait(&other.over);
    pthread_join(thread, NULL);
    use_up(&mine);
    put(&again), put(&more);
}

static void *let_all_go(void *held)
{
    for (held_t *each = held; each->block; each++)
        let_go(each);
    return NULL;
}

static void in_another_thread(void *(*what)(void *), void *argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, what, argument);
    pthread_join(thread, NULL);
}

#define GATHERED 16u
#define EACH (16 * KIB)

typedef struct gathering {
    held_t held[GATHERED + 1]; /* ends with one that has no block */
    ca_arena_t *heap, *home;
    size_t before, after; /* bytes in front of the heap */
} gathering_t;

static void *gather(void *argument)
{
    gathering_t *there = argument;
    there->home = ca_arena_set_home(set);
    there->before = ca_caches_bytes(there->heap);
    let_all_go(there->held);
    there->after = ca_caches_bytes(there->heap);
    return NULL;
}

/* One thread allocates, others free: what the heap's lock is taken for is not each free. */
static void what_is_freed_to_another_heap_gathers_in_front_of_it(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 8 * MIB;
    params.warmup = 0;
    make(1024 * MIB, params);
    fake.auto_pass = true;
    held_t first = get(4 * MIB), again;
    let_go(&first); /* caches open with the first fence */
    gathering_t there;
    do { /* by a thread that has another heap */
        there = (gathering_t){.heap = ca_arena_set_home(set)};
        for (unsigned i = 0; i < GATHERED; i++)
            there.held[i] = get(EACH);
        in_another_thread(gather, &there);
        sound();
    } while (there.home == there.heap);
    assert_int_equal(there.after - there.before, GATHERED * EACH);
    assert_int_equal(ca_caches_bytes(there.heap), there.before); /* the thread has ended */
    uint64_t grown = fake.calls[FAKE_ALLOC];
    again = get(params.segment_first);
    assert_int_equal(fake.calls[FAKE_ALLOC], grown);
    put(&again);
}

#define STEPS 4000u

/* What a program of one thread does, the same each time. Returns bytes reserved at most. */
static size_t go_through(ca_arena_t *alone, uint64_t calls[FAKE_CALLS])
{
    static held_t slots[64];
    uint64_t random = 1;
    for (unsigned n = 0; n < STEPS; n++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        held_t *slot = &slots[(random >> 24) % 64];
        size_t bytes = ((size_t)1 << (9 + (random >> 33) % 13)) + (random >> 40) % 4096;
        let_go(slot);
        if (alone)
            assert_int_equal(ca_cached_alloc(alone, slot->bytes = bytes, false, &slot->block,
                                             &slot->address, &slot->reused),
                             0);
        else
            assert_int_equal(get_on(NULL, bytes, false, slot), 0);
        if (alone)
            fake_use(slot->address, bytes);
        if (n % 16 == 0)
            fake_pass_all();
    }
    for (unsigned i = 0; i < 64; i++)
        let_go(&slots[i]);
    memcpy(calls, fake.calls, sizeof fake.calls);
    return fake.used;
}

static void a_program_of_one_thread_has_one_heap(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    uint64_t calls[2][FAKE_CALLS];
    params.thread_cache = 8 * MIB;
    params.warmup = STEPS / 2; /* careful, and then not */
    make(1024 * MIB, params);
    size_t several = go_through(NULL, calls[0]);
    sound();
    retire();
    fake_reset(1024 * MIB, 1024 * MIB);
    ca_arena_t *alone = ca_arena_create(&fake_upstream, NULL, &params);
    size_t one = go_through(alone, calls[1]);
    assert_null(ca_arena_check(alone));
    ca_arena_retire(alone);
    assert_int_equal(several, one);
    assert_memory_equal(calls[0], calls[1], sizeof calls[0]);
    make(1024 * MIB, params); /* for the tear-down */
}

/* What is pending in all heaps together is about what it is in one. */
static void an_epoch_of_one_heap_of_two_holds_half(void **state)
{
    (void)state;
    for (unsigned heaps = 1; heaps <= 2; heaps++) {
        enum { COUNT = CA_EPOCH_BYTES / MIB };
        held_t held[COUNT], other = {0};
        make(1024 * MIB, fake_params);
        for (unsigned i = 0; i < COUNT; i++)
            held[i] = get(MIB);
        if (heaps == 2)
            other = get_elsewhere(MIB);
        uint64_t before = fake.calls[FAKE_RECORD];
        for (unsigned i = 0; i < COUNT; i++) {
            put(&held[i]);
            if (i == COUNT * 3 / 4)
                assert_int_equal(fake.calls[FAKE_RECORD] - before, heaps - 1);
        }
        put(&other);
        retire();
    }
}

static void *keep_a_small_block(void *stock)
{
    held_t small;
    for (unsigned i = 0; i < CA_ARENA_SET_MOST; i++)
        ca_arena_set_at(set, i)->fenced = true; /* as once an epoch was closed */
    get_on(NULL, 1000, false, &small);
    let_go(&small);
    for (unsigned i = 0; i < CA_ARENA_SET_MOST; i++)
        *(size_t *)stock += ca_caches_bytes(ca_arena_set_at(set, i));
    return NULL;
}

/* Their epochs are small beside what one heap's holds, but worth having. */
static void threads_of_very_many_heaps_keep_blocks(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = MIB;
    params.segment_first = 0; /* so small that many get one */
    fake_reset(4096 * MIB, 0);
    set = ca_arena_set_create(&fake_upstream, NULL, &params, CA_ARENA_SET_MOST, CA_ARENA_SET_MOST);
    for (unsigned i = 0; i < CA_ARENA_SET_MOST + CA_ARENA_SET_MOST / 2; i++) {
        size_t stock = 0;
        in_another_thread(keep_a_small_block, &stock);
        if (i >= CA_ARENA_SET_MOST) /* now all are in use, and the first half have memory */
            assert_int_equal(stock, 1024);
    }
    assert_int_equal(ca_arena_set_in_use(set), CA_ARENA_SET_MOST);
    for (unsigned i = 0; i < CA_ARENA_SET_MOST; i++)
        ca_arena_retire(ca_arena_set_at(set, i));
}

static void hints_lead_to_the_heap_that_fits_best_without_a_call(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    held_t large[2], found;
    do { /* in two heaps, neither of them this thread's */
        large[0] = get_elsewhere(70 * MIB), large[1] = get_elsewhere(90 * MIB);
        if (heap_of(&large[0]) != heap_of(&large[1]))
            break;
        put(&large[0]), put(&large[1]);
        fake_pass_all();
        trim(SIZE_MAX);
    } while (true);
    uint64_t small = large[0].address, other = large[1].address;
    put(&large[1]), put(&large[0]);
    fake_pass_all();
    trim(0); /* ready, and told */
    (void)fake_log();
    assert_int_equal(get_on(NULL, 68 * MIB, true, &found), 0);
    assert_int_equal(found.address, small);
    assert_int_equal(get_on(NULL, 68 * MIB, true, &large[1]), 0);
    assert_int_equal(large[1].address, other);
    assert_string_equal(fake_log(), "");
    put(&found), put(&large[1]);
}

static void the_limit_is_that_of_all_heaps_together(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.limit = 64 * MIB;
    make(1024 * MIB, params);
    held_t other = get_elsewhere(40 * MIB), none, mine = get(24 * MIB);
    assert_int_equal(get_on(NULL, 2 * MIB, false, &none), -ENOMEM);
    sound();
    put(&other);
    fake_pass_all();
    held_t more = get(38 * MIB);
    assert_true(fake.used <= 64 * MIB);
    put(&mine), put(&more);
}

static void what_one_heap_is_about_to_obtain_counts_for_the_others(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    assert_true(ca_arena_set_claim(ca_arena_set_at(set, 0), 40 * MIB, 64 * MIB));
    assert_false(ca_arena_set_claim(ca_arena_set_at(set, 0), 40 * MIB, 64 * MIB));
    ca_arena_set_give_up(ca_arena_set_at(set, 0), 40 * MIB);
    assert_true(ca_arena_set_claim(ca_arena_set_at(set, 0), 64 * MIB, 64 * MIB));
    ca_arena_set_give_up(ca_arena_set_at(set, 0), 64 * MIB);
    sound();
}

static void with_a_full_device_other_heaps_give_back_what_is_idle(void **state)
{
    (void)state;
    make(64 * MIB, fake_params);
    held_t other = get_elsewhere(40 * MIB), mine;
    put(&other);
    fake_pass_all();
    mine = get(50 * MIB);
    assert_int_equal(heap_of(&mine), 0);
    assert_int_equal(fake.unbounded_waits, 0);
    put(&mine);
}

#define ROUNDS 200u
static unsigned others_rounds;

/* As another thread does meanwhile, for ever. */
static void another_heap_grows(void)
{
    static bool inside;
    ca_block_t *block;
    uint64_t address;
    if (inside || others_rounds == ROUNDS)
        return;
    inside = true;
    if (ca_arena_alloc(ca_arena_set_at(set, 1), 8 * MIB, &block, &address, NULL) == 0) {
        others_rounds++;
        ca_arena_free(block);
    }
    inside = false;
}

static void what_other_heaps_go_on_freeing_keeps_nobody_from_an_out_of_memory(void **state)
{
    (void)state;
    make(64 * MIB, fake_params);
    held_t other = get_elsewhere(8 * MIB), mine = get(9 * MIB), none;
    fake.auto_pass = true;
    others_rounds = 0;
    fake.on_call[FAKE_ALLOC] = another_heap_grows;
    assert_int_equal(get_on(NULL, 100 * MIB, false, &none), -ENOMEM);
    fake.on_call[FAKE_ALLOC] = NULL;
    assert_in_range(others_rounds, 1, ROUNDS / 4);
    sound();
    put(&other), put(&mine);
}

static void nor_from_a_growth(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    held_t other = get_elsewhere(8 * MIB), big = get(40 * MIB), mine;
    fake.auto_pass = true;
    put(&big);
    others_rounds = 0;
    fake.on_call[FAKE_FREE] = another_heap_grows;
    mine = get(100 * MIB);
    fake.on_call[FAKE_FREE] = NULL;
    assert_in_range(others_rounds, 1, ROUNDS / 4);
    sound();
    put(&other), put(&mine);
}

static void before_an_out_of_memory_the_pending_memory_of_all_heaps_is_waited_for(void **state)
{
    (void)state;
    make(64 * MIB, fake_params);
    held_t other = get_elsewhere(40 * MIB), mine;
    put(&other);
    mine = get(50 * MIB);
    assert_true(fake.unbounded_waits > 0 || fake.waiting_frees > 0);
    put(&mine);
}

static void memory_in_use_everywhere_is_an_out_of_memory_and_changes_nothing(void **state)
{
    (void)state;
    make(64 * MIB, fake_params);
    held_t other = get_elsewhere(32 * MIB), mine = get(32 * MIB), none;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(get_on(NULL, 1 * MIB, false, &none), -ENOMEM);
    sound();
    assert_int_equal(ca_arena_set_reserved_peak(set), 64 * MIB);
    assert_int_equal(ca_arena_set_live_peak(set), 64 * MIB);
    put(&other), put(&mine);
}

static void a_failing_call_upstream_leaves_the_sums_right(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth <= 6; nth++)
        for (fake_call_t call = FAKE_ALLOC; call <= FAKE_QUERY; call++) {
            make(96 * MIB, fake_params);
            held_t other = get_elsewhere(40 * MIB), mine = get(20 * MIB), more;
            put(&other);
            fake_pass_all();
            fake.fail_rc[call] = call == FAKE_ALLOC ? -ENOMEM : -EAGAIN;
            fake.fail_at[call] = nth;
            if (get_on(NULL, 50 * MIB, false, &more) == 0)
                let_go(&more);
            if (call !=
                FAKE_FREE) /* the fake takes a refused free for no free, the pool does not */
                sound();
            let_go(&mine);
            retire();
        }
}

static void in_the_order_of_a_stream_the_streams_own_heap_comes_first(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    ca_stream_t *stream = ca_arena_stream(ca_arena_set_at(set, 0), (void *)1, false);
    held_t other = get_elsewhere(40 * MIB), first, again;
    put(&other);
    fake_pass_all();
    assert_int_equal(get_on(stream, 40 * MIB, false, &first), 0);
    assert_int_equal(heap_of(&first), 0);
    ca_arena_free_on(first.block, stream);
    uint64_t calls = fake.calls[FAKE_ALLOC];
    assert_int_equal(get_on(stream, 40 * MIB, true, &again), 0); /* in flight, but in order */
    assert_int_equal(again.address, first.address);
    assert_int_equal(fake.calls[FAKE_ALLOC], calls);
    ca_arena_free_on(again.block, stream);
    sound();
}

/* Work that the program submitted before such a free may wait for this very thread: no plain free
 * has waited for it. */
static void a_free_on_a_stream_of_another_heap_is_not_waited_for_without_bound(void **state)
{
    (void)state;
    make(64 * MIB, fake_params);
    ca_stream_t *stream = ca_arena_stream(ca_arena_set_at(set, 0), (void *)1, false);
    held_t other = get_elsewhere(38 * MIB + 1), rest = get(MIB + 1), none, mine;
    assert_int_equal(heap_of(&rest), heap_of(&other));
    fake_unuse(other.address, other.bytes);
    ca_arena_free_on(other.block, stream);
    assert_int_equal(get_on(NULL, 50 * MIB, false, &none), -ENOMEM);
    assert_int_equal(fake.unbounded_waits, 0);
    assert_int_equal(fake.waiting_frees, 0);
    put(&rest); /* a plain free waits for all of it */
    mine = get(50 * MIB);
    assert_true(fake.unbounded_waits > 0 || fake.waiting_frees > 0);
    put(&mine);
}

static void when_the_context_is_gone_every_heap_is(void **state)
{
    (void)state;
    make(1024 * MIB, fake_params);
    held_t other = get_elsewhere(8 * MIB), mine = get(8 * MIB), none;
    retire();
    (void)fake_log();
    assert_int_equal(get_on(NULL, 1, false, &none), -EIO);
    assert_int_equal(get_on(NULL, 1, true, &none), -EAGAIN);
    ca_arena_free(other.block);
    ca_arena_free(mine.block);
    assert_string_equal(fake_log(), "");
}

/* --- threads ---------------------------------------------------------------------------------- */

#define WORKERS 6
#define SLOTS 64
#define OPERATIONS 10000

static _Atomic(held_t *) slots[SLOTS]; /* blocks on their way to another thread */
static atomic_bool stop;
static atomic_uint wrong_codes;

static void *work(void *seed)
{
    uint64_t random = (uint64_t)(uintptr_t)seed;
    for (unsigned n = 0; n < OPERATIONS; n++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t bits = 9 + (random >> 33) % 13;
        held_t *mine = calloc(1, sizeof *mine);
        int rc =
            get_on(NULL, ((size_t)1 << bits) + (random >> 40) % ((size_t)1 << bits), false, mine);
        if (rc != 0 && rc != -ENOMEM)
            atomic_fetch_add(&wrong_codes, 1);
        held_t *theirs = atomic_exchange(&slots[(random >> 24) % SLOTS], mine);
        if (theirs) {
            let_go(theirs);
            free(theirs);
        }
    }
    return NULL;
}

static void *disturb(void *unused)
{
    (void)unused;
    for (unsigned n = 0; !atomic_load(&stop); n++) {
        pthread_mutex_lock(&fake.mutex);
        fake.capturing = n % 64 < 4;
        fake_pass(fake.recorded > 2 ? fake.recorded - 2 : 0);
        pthread_mutex_unlock(&fake.mutex);
        if (n % 16 == 0)
            ca_arena_trim(ca_arena_set_at(set, n / 16 % HEAPS), n % 32 ? MIB : SIZE_MAX);
        sched_yield();
    }
    return NULL;
}

static void share_the_heaps(size_t thread_cache)
{
    pthread_t workers[WORKERS], disturber;
    ca_arena_params_t params = fake_params;
    params.reuse_wait_ns = 1000;
    params.thread_cache = thread_cache;
    atomic_store(&stop, false);
    params.limit = 96 * MIB;
    make(112 * MIB, params);
    pthread_create(&disturber, NULL, disturb, NULL);
    for (uintptr_t i = 0; i < WORKERS; i++)
        pthread_create(&workers[i], NULL, work, (void *)(i + 1));
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&stop, true);
    pthread_join(disturber, NULL);
    for (unsigned i = 0; i < SLOTS; i++) {
        held_t *left = atomic_exchange(&slots[i], NULL);
        if (left)
            let_go(left);
        free(left);
    }
    assert_int_equal(wrong_codes, 0);
    assert_true(ca_arena_set_reserved_peak(set) <= params.limit);
    sound();
    fake.capturing = false;
    fake.auto_pass = true;
    fake_pass_all();
    trim(SIZE_MAX);
    sound();
    assert_int_equal(fake.used, 0);
    assert_int_equal(fake.fences, 0);
}

static void threads_share_the_heaps_and_free_each_others_blocks(void **state)
{
    (void)state;
    share_the_heaps(0);
    retire();
    share_the_heaps(4 * MIB);
}

static void *note_home(void *heap)
{
    *(ca_arena_t **)heap = ca_arena_set_home(set);
    return NULL;
}

/* The next thread has another heap than this one. */
static void come_to_the_next_heap(void)
{
    ca_arena_t *heap = NULL;
    while (heap != ca_arena_set_home(set))
        in_another_thread(note_home, &heap);
}

static void what_lies_in_stock_is_not_live(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 64 * MIB;
    params.segment_first = 256 * MIB; /* growth empties the caches */
    params.warmup = 0;
    make(1024 * MIB, params);
    fake.auto_pass = true;
    held_t first = get(4 * MIB), others = {.bytes = MIB}, held[CA_CACHE_EPOCH_BLOCKS];
    size_t most = 0;
    come_to_the_next_heap();
    in_another_thread(get_there, &others);
    assert_int_equal(ca_arena_set_in_use(set), 2);
    let_go(&first); /* caches open with the first fence */
    for (size_t bytes = 32 * KIB; bytes <= 80 * KIB; bytes += bytes / 4) {
        for (unsigned i = 0; i < CA_CACHE_EPOCH_BLOCKS; i++)
            assert_int_equal(get_on(NULL, bytes, false, &held[i]), 0);
        for (unsigned i = 0; i < CA_CACHE_EPOCH_BLOCKS; i++)
            let_go(&held[i]);
        most = MIB + CA_CACHE_EPOCH_BLOCKS * ca_cache_class_bytes(bytes);
    }
    assert_true(ca_caches_bytes(ca_arena_set_home(set)) > 2 * MIB + most);
    assert_in_range(ca_arena_set_live_peak(set), most - HEAPS * CA_ARENA_SET_PUBLISH_FROM,
                    most + HEAPS * CA_ARENA_SET_PUBLISH_FROM);
    put(&others);
}

#define TEST(name) cmocka_unit_test_teardown(name, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_thread_grows_a_heap_of_its_own),
        TEST(the_room_that_one_heap_finds_is_all_heaps),
        TEST(what_goes_back_is_room_for_all_heaps),
        TEST(small_requests_give_each_heap_a_first_segment_while_there_is_room),
        TEST(what_another_heap_has_serves_before_one_grows),
        TEST(stock_is_not_the_first_that_is_taken_but_goes_before_a_heap_grows),
        TEST(what_is_freed_to_another_heap_gathers_in_front_of_it),
        TEST(what_lies_in_stock_is_not_live),
        TEST(a_program_of_one_thread_has_one_heap),
        TEST(an_epoch_of_one_heap_of_two_holds_half),
        TEST(threads_of_very_many_heaps_keep_blocks),
        TEST(hints_lead_to_the_heap_that_fits_best_without_a_call),
        TEST(the_limit_is_that_of_all_heaps_together),
        TEST(what_one_heap_is_about_to_obtain_counts_for_the_others),
        TEST(with_a_full_device_other_heaps_give_back_what_is_idle),
        TEST(what_other_heaps_go_on_freeing_keeps_nobody_from_an_out_of_memory),
        TEST(nor_from_a_growth),
        TEST(before_an_out_of_memory_the_pending_memory_of_all_heaps_is_waited_for),
        TEST(memory_in_use_everywhere_is_an_out_of_memory_and_changes_nothing),
        TEST(a_failing_call_upstream_leaves_the_sums_right),
        TEST(in_the_order_of_a_stream_the_streams_own_heap_comes_first),
        TEST(a_free_on_a_stream_of_another_heap_is_not_waited_for_without_bound),
        TEST(when_the_context_is_gone_every_heap_is),
        TEST(threads_share_the_heaps_and_free_each_others_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
