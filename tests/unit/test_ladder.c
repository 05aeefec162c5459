/* The retry ladder, rung by rung. The log of upstream calls (see fake_upstream.h) shows which rung
 * served a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>
#include "one_arena.h"
#include "pool/fence/epoch.h"
#include "pool/blocks/span.h"
#include "pool/state.h"

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    arena = ca_arena_create(&fake_upstream, NULL, &fake_params);
    return arena ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void with_limit(size_t limit)
{
    ca_arena_params_t params = fake_params;
    params.limit = limit;
    ca_arena_retire(arena);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
}

/* On another device: its memory, and the addresses that are looked after. */
static void start_again(size_t memory, size_t space, ca_arena_params_t params)
{
    ca_arena_retire(arena);
    fake_reset(memory, space);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
}

static void refused(size_t bytes)
{
    held_t held;
    assert_int_equal(hold(arena, bytes, &held), -ENOMEM);
    sound();
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

/* A block of `bytes`, ready, in a segment of its own if it is large. */
static void make_ready(size_t bytes)
{
    held_t held = get(bytes);
    put(&held);
    ca_arena_trim(arena, 0); /* closes the open epoch */
    fake_pass_all();
    ca_arena_trim(arena, 0);
    sound();
    fake_log();
}

/* All of a device of 64 MiB in four segments, live. */
static void fill(held_t held[4])
{
    fake.limit = 64 * MIB;
    for (unsigned i = 0; i < 4; i++)
        held[i] = get(16 * MIB);
    fake_log();
}

static int served_in_callback;
static held_t got_in_callback;

static void ask_in_callback(void)
{
    fake.on_call[FAKE_ALLOC] = NULL;
    served_in_callback = hold(arena, 20 * MIB, &got_in_callback);
}

/* Would not end otherwise: as where a profiler's callback takes memory. */
static void a_request_inside_the_call_that_obtains_memory_does_not_wait_for_it(void **state)
{
    (void)state;
    alarm(10);
    fake.on_call[FAKE_ALLOC] = ask_in_callback;
    held_t a = get(20 * MIB);
    assert_int_equal(served_in_callback, -EIO); /* the driver serves it */
    put(&a);
    get(40 * MIB);
    alarm(0);
}

static void what_is_ready_serves_a_request_inside_such_a_call(void **state)
{
    (void)state;
    make_ready(20 * MIB);
    fake.on_call[FAKE_ALLOC] = ask_in_callback;
    get(40 * MIB);
    assert_int_equal(served_in_callback, 0);
    put(&got_in_callback);
}

/* --- rungs, in order -------------------------------------------------------------------------- */

static void ready_memory_serves_without_a_call(void **state)
{
    (void)state;
    make_ready(8 * MIB);
    get(8 * MIB);
    assert_string_equal(fake_log(), "");
}

static void a_passed_epoch_serves_with_one_query(void **state)
{
    (void)state;
    held_t a = get(8 * MIB);
    put(&a);
    fake_pass_all();
    fake_log();
    get(8 * MIB);
    assert_string_equal(fake_log(), "Q");
}

static void the_open_epoch_is_closed_and_queried_before_growing(void **state)
{
    (void)state;
    held_t a = get(2 * MIB), b = get(6 * MIB);
    put(&a);
    fake.auto_pass = true;
    fake_log();
    get(2 * MIB);
    assert_string_equal(fake_log(), "RQ");
    put(&b);
}

static void within_the_policy_it_grows_and_does_not_wait(void **state)
{
    (void)state;
    held_t a = get(8 * MIB);
    put(&a);
    fake_log();
    get(8 * MIB);
    assert_string_equal(fake_log(), "qA"); /* asked, grown */
    assert_int_equal(fake.calls[FAKE_WAIT], 0);
}

/* Reserved above 1.25 x the live peak + 64 MiB, all of it pending. */
static void exceed_the_policy(void)
{
    while (stats().largest_ready >= 8 * MIB ||
           stats().reserved_bytes <= stats().live_peak + stats().live_peak / 4 + 64 * MIB) {
        held_t held = get(8 * MIB);
        put(&held);
    }
    fake_log();
}

static void beyond_the_policy_a_bounded_wait_serves(void **state)
{
    (void)state;
    exceed_the_policy();
    fake.wait_passes = true;
    get(8 * MIB);
    const char *log = fake_log();
    assert_non_null(strchr(log, 'W'));
    assert_null(strchr(log, 'A'));
    assert_int_equal(fake.unbounded_waits, 0);
}

/* Each of as many waits would come a few frees after the one before. */
static void one_bounded_wait_is_for_the_older_half_of_the_epochs(void **state)
{
    (void)state;
    exceed_the_policy();
    size_t epochs = stats().epochs;
    assert_true(epochs >= 8);
    fake.wait_passes = true;
    held_t held = get(8 * MIB);
    assert_int_equal(fake.calls[FAKE_WAIT], 1);
    assert_int_equal(stats().epochs, epochs - (epochs + 1) / 2);
    put(&held);
}

static void pass_one(void)
{
    fake_pass(fake.passed + 1);
}

static void a_bounded_wait_that_was_too_short_serves_from_what_passed_meanwhile(void **state)
{
    (void)state;
    exceed_the_policy();
    fake.on_call[FAKE_WAIT] = pass_one;
    held_t held = get(8 * MIB);
    const char *log = fake_log();
    assert_non_null(strstr(log, "wQq"));
    assert_null(strchr(log, 'A'));
    put(&held);
}

static void *exceed(void *unused)
{
    exceed_the_policy();
    return unused;
}

/* This thread has freed nothing, and plain it would not have slept. */
static void after_the_bounded_wait_it_grows_beyond_the_policy(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, exceed, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    get(8 * MIB);
    const char *log = fake_log();
    assert_non_null(strstr(log, "wqA")); /* what lies before what was waited for had its chance */
    assert_int_equal(fake.unbounded_waits, 0);
}

static uint64_t waited_in_vain(void)
{
    for (uint64_t waits = fake.calls[FAKE_WAIT]; fake.calls[FAKE_WAIT] == waits;) {
        held_t held = get(8 * MIB); /* a segment has several */
        put(&held);
    }
    return fake.waited_ns;
}

/* Plain, it slept in its free: what is behind that is waited for a hundred times as long, until
 * that was in vain, and then not for long. */
static void what_its_own_frees_would_have_waited_for_is_waited_for_longer(void **state)
{
    (void)state;
    exceed_the_policy();
    assert_int_equal(waited_in_vain(), 100 * fake_params.reuse_wait_ns);
    assert_int_equal(waited_in_vain(), fake_params.reuse_wait_ns);
    arena->operations = arena->long_wait_after;
    assert_int_equal(waited_in_vain(), 100 * fake_params.reuse_wait_ns);
    assert_int_equal(fake.unbounded_waits, 0);
}

/* Others' frees may be behind work that waits for this thread. */
static void that_of_another_thread_is_not(void **state)
{
    (void)state;
    pthread_t thread;
    held_t mine = get(8 * MIB);
    put(&mine);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(pthread_create(&thread, NULL, exceed, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    get(8 * MIB);
    assert_int_equal(fake.waited_ns, fake_params.reuse_wait_ns);
}

static void idle_segments_go_back_before_the_peak_rises(void **state)
{
    (void)state;
    held_t a = get(20 * MIB), b = get(30 * MIB), c = get(40 * MIB);
    put(&a), put(&b), put(&c);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().reserved_bytes, 90 * MIB);
    fake_log();
    fake.auto_pass = true;
    get(44 * MIB); /* 40 back leaves 50 + 44 > 90: 30 more */
    assert_string_equal(fake_log(), "RQFRQFA");
    assert_int_equal(stats().reserved_bytes, 64 * MIB);
    assert_int_equal(stats().reserved_peak, 90 * MIB);
}

/* The real free would wait for that work, which may be waiting for the thread that allocates. */
static void with_work_in_flight_the_peak_rises_instead_of_a_free(void **state)
{
    (void)state;
    held_t a = get(20 * MIB), b = get(30 * MIB), c = get(40 * MIB);
    put(&a), put(&b), put(&c);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    fake_log();
    get(44 * MIB);
    assert_string_equal(fake_log(), "RqA");
    assert_int_equal(stats().reserved_peak, 134 * MIB);
}

/* As another thread does meanwhile. */
static void submit_work(void)
{
    fake.auto_pass = false;
}

static void nor_do_more_go_back_once_there_is_work(void **state)
{
    (void)state;
    held_t a = get(20 * MIB), b = get(30 * MIB), c = get(40 * MIB);
    put(&a), put(&b), put(&c);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    fake_log();
    fake.auto_pass = true;
    fake.on_call[FAKE_FREE] = submit_work;
    get(44 * MIB);
    fake.on_call[FAKE_FREE] = NULL;
    assert_int_equal(fake.calls[FAKE_FREE], 1);
}

static void below_the_peak_nothing_goes_back(void **state)
{
    (void)state;
    make_ready(100 * MIB);
    ca_arena_trim(arena, SIZE_MAX);
    make_ready(20 * MIB);
    get(40 * MIB);
    assert_string_equal(fake_log(), "A");
}

static void a_refused_preferred_size_falls_back_to_what_is_needed(void **state)
{
    (void)state;
    fake.limit = 4 * MIB;
    get(512);
    assert_string_equal(fake_log(), "aA");
    assert_int_equal(stats().reserved_bytes, CA_SEGMENT_UNIT);
    fake.limit = fake.used + MIB;
    held_t b = get(2 * MIB - 4096); /* the rest of the first segment */
    get(MIB);
    assert_string_equal(fake_log(), "aA"); /* of a full device it prefers no more than a unit */
    put(&b);
}

static void out_of_memory_gives_idle_segments_back(void **state)
{
    (void)state;
    fake.limit = 80 * MIB;
    held_t a = get(20 * MIB), b = get(30 * MIB), c = get(20 * MIB);
    put(&a), put(&c);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    fake_log();
    get(40 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
    assert_int_equal(fake.waiting_frees, 0);
    put(&b);
}

static void then_others_are_asked(void **state)
{
    (void)state;
    fake.limit = 100 * MIB;
    fake.others = 60 * MIB;
    held_t a = get(30 * MIB);
    fake_log();
    get(50 * MIB);
    assert_string_equal(fake_log(), "aCA");
    put(&a);
}

static void others_are_not_asked_for_what_the_limit_forbids(void **state)
{
    (void)state;
    with_limit(32 * MIB);
    fake.others = 60 * MIB;
    held_t a = get(30 * MIB);
    refused(8 * MIB);
    assert_null(strchr(fake_log(), 'C'));
    put(&a);
}

static void then_every_closed_epoch_is_waited_for(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    put(&held[1]);
    put(&held[2]);
    fake_log();
    held_t again = get(16 * MIB);
    assert_int_equal(again.address, held[1].address); /* the oldest, no more */
    assert_int_equal(fake.unbounded_waits, 1);
    assert_int_equal(stats().pending_bytes, 16 * MIB);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
}

static void free_in_no_order(ca_block_t *block)
{
    ca_arena_free_async(block, NULL, 0);
}

static void free_to_its_cache(ca_block_t *block)
{
    ca_cached_free_async(block, NULL, 0);
}

/* Nor after any other free that would have: the plain free behind it waits for all that it does. */
static void what_calls_that_do_not_wait_have_freed_is_not_waited_for(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    let_go_by(&held[1], free_in_no_order);
    refused(16 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
    put(&held[2]);
    held_t again = get(16 * MIB);
    assert_int_equal(again.address, held[1].address);
    assert_int_equal(fake.unbounded_waits, 1);
}

/* What lies in a thread's cache goes to the open epoch when a capture begins: see the above. */
static void nor_is_it_given_to_the_real_free_from_a_cache(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 64 * MIB;
    start_again(64 * MIB, 64 * MIB, params);
    held_t first = get(64 * KIB);
    put(&first);
    make_ready(64 * KIB); /* there are fences: caches open */
    held_t kept = get(64 * KIB);
    let_go_by(&kept, free_to_its_cache);
    assert_true(ca_caches_bytes(arena) > 0);
    fake.capturing = true;
    for (unsigned i = 0; i < 3; i++)
        get(16 * MIB);
    get(8 * MIB);
    refused(8 * MIB);
    assert_int_equal(fake.waiting_frees, 0);
}

static ca_stream_t *its_stream;

static void free_on_its_stream(ca_block_t *block)
{
    ca_arena_free_on(block, its_stream);
}

static void nor_what_a_stream_left_behind(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    its_stream = ca_arena_stream(arena, &its_stream, false);
    fake.capturing = true;
    let_go_by(&held[1], free_on_its_stream);
    ca_stream_retire(its_stream);
    refused(16 * MIB);
    assert_int_equal(fake.waiting_frees, 0);
}

static void without_fences_they_wait_as_others_do(void **state)
{
    (void)state;
    fake.fail_rc[FAKE_RECORD] = -ENOSYS;
    fake.fail_at[FAKE_RECORD] = 1;
    held_t held[4];
    fill(held);
    put(&held[0]); /* that there are none is known now */
    assert_true(arena->no_fences);
    let_go_by(&held[1], free_in_no_order);
    get(16 * MIB), get(16 * MIB);
}

static held_t freed_later[32];
static unsigned freed_count;

/* As another thread does meanwhile. */
static void free_one(void)
{
    if (freed_count < 32)
        let_go(&freed_later[freed_count++]);
}

static void but_not_what_is_freed_meanwhile(void **state)
{
    (void)state;
    fake.limit = 320 * MIB;
    for (unsigned i = 0; i < 32; i++)
        freed_later[i] = get(8 * MIB);
    held_t early[4];
    for (unsigned i = 0; i < 4; i++)
        early[i] = get(8 * MIB);
    put(&early[0]);
    put(&early[1]);
    fake.on_call[FAKE_WAIT] = free_one;
    fake.wait_passes = true;
    freed_count = 0;
    refused(300 * MIB);
    assert_true(fake.unbounded_waits > 0 && fake.unbounded_waits <= 2);
    fake.unbounded_waits = 0;
    assert_true(ca_arena_trim_as(arena, SIZE_MAX, CA_TRIM_SHORTAGE) > 0);
    assert_true(fake.unbounded_waits <= freed_count);
    assert_true(freed_count < 32);
    fake.on_call[FAKE_WAIT] = NULL;
}

static void waiting_and_giving_back_make_room_for_a_larger_request(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    put(&held[1]);
    put(&held[2]);
    get(32 * MIB);
    assert_int_equal(fake.waiting_frees, 0); /* idle by then */
}

static void during_a_capture_pending_segments_go_to_the_real_free(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    fake.capturing = true;
    put(&held[1]);
    put(&held[2]);
    get(32 * MIB);
    assert_int_equal(fake.waiting_frees, 2);
    assert_int_equal(fake.recorded, 0);
    assert_int_equal(fake.unbounded_waits, 0);
}

static void a_segment_with_a_live_block_is_never_given_back(void **state)
{
    (void)state;
    held_t held[4], halves[8];
    fill(held);
    for (unsigned i = 0; i < 4; i++)
        put(&held[i]);
    for (unsigned i = 0; i < 8; i++)
        halves[i] = get(8 * MIB);
    fake.capturing = true;
    for (unsigned i = 0; i < 8; i += 2)
        put(&halves[i]);
    refused(8 * MIB);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
    fake.capturing = false;
    fake.auto_pass = true;
    get(8 * MIB);
}

/* Where memory is short every free closes its epoch; one that cannot leaves that to an allocation.
 */
static void put_during_a_capture(held_t *held)
{
    fake.capturing = true;
    put(held);
    fake.capturing = false;
}

static void where_memory_is_short_every_free_closes_its_epoch(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    refused(30 * MIB);
    put(&held[3]);
    held_t small = get(4096);
    fake_log();
    put(&small);
    assert_non_null(strchr(fake_log(), 'R'));
}

static void headroom_is_left_while_the_cache_can_do_without(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.headroom = 32 * MIB;
    ca_arena_retire(arena);
    fake_reset(128 * MIB, 256 * MIB);
    fake.auto_pass = true;
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    held_t a = get(40 * MIB), b = get(40 * MIB);
    put(&a);
    ca_arena_trim(arena, 0);
    get(60 * MIB); /* would leave 8 MiB: the idle 40 MiB go back first */
    assert_int_equal(stats().reserved_bytes, 100 * MIB);
    put(&b);
}

static void headroom_never_refuses_memory(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.headroom = 32 * MIB;
    start_again(128 * MIB, 256 * MIB, params);
    get(120 * MIB);
    assert_int_equal(stats().reserved_bytes, 120 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
}

static void headroom_frees_nothing_while_the_device_works(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.headroom = 32 * MIB;
    start_again(128 * MIB, 256 * MIB, params);
    held_t a = get(40 * MIB);
    put(&a);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    fake_log();
    get(60 * MIB); /* leaves 28 MiB: less than asked for, but the free would wait */
    assert_null(strchr(fake_log(), 'F'));
    assert_int_equal(stats().reserved_bytes, 100 * MIB);
}

static void nor_more_than_until_it_works_again(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.headroom = 32 * MIB;
    start_again(128 * MIB, 256 * MIB, params);
    held_t a = get(20 * MIB), b = get(20 * MIB);
    get(32 * MIB);
    put(&a), put(&b);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    fake.auto_pass = true;
    fake.on_call[FAKE_FREE] = submit_work;
    get(52 * MIB); /* both leave as much as is asked for */
    fake.on_call[FAKE_FREE] = NULL;
    assert_int_equal(fake.calls[FAKE_FREE], 1);
}

static void reuse_grow_never_waits_while_there_is_memory(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.reuse = CA_POOL_REUSE_GROW;
    ca_arena_retire(arena);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    for (unsigned i = 0; i < 40; i++) {
        held_t a = get(8 * MIB);
        put(&a);
    }
    assert_int_equal(fake.calls[FAKE_WAIT], 0);
    assert_true(stats().reserved_bytes >= 40 * 8 * MIB);
}

static void reuse_wait_waits_before_it_grows(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.reuse = CA_POOL_REUSE_WAIT;
    ca_arena_retire(arena);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    fake.wait_passes = true;
    for (unsigned i = 0; i < 40; i++) {
        held_t a = get(8 * MIB);
        put(&a);
    }
    assert_int_equal(fake.calls[FAKE_WAIT], 39);
    assert_int_equal(stats().reserved_bytes, 8 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
}

static void what_an_allocation_closed_is_not_waited_for_without_bound(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    held_t small[8];
    put(&held[3]);
    for (unsigned i = 0; i < 8; i++)
        small[i] = get(2 * MIB); /* waits for held[3]'s epoch: a free closed it */
    uint64_t before = fake.unbounded_waits;
    put_during_a_capture(&small[0]); /* the next work may wait for this very thread */
    refused(2 * MIB);
    assert_int_equal(fake.unbounded_waits, before);
    assert_int_equal(fake.waiting_frees, 0);
    put(&small[1]); /* the plain free would have waited for all of it */
    get(2 * MIB);
    assert_int_equal(fake.unbounded_waits, before + 1);
}

static void what_an_allocation_closed_is_waited_for_a_while(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    put(&held[3]);
    held_t small[8];
    for (unsigned i = 0; i < 8; i++)
        small[i] = get(2 * MIB);
    put_during_a_capture(&small[0]);
    fake.wait_passes = true;
    uint64_t before = fake.unbounded_waits;
    get(2 * MIB);
    assert_int_equal(fake.unbounded_waits, before);
}

/* --- what another thread freed -----------------------------------------------------------------
 */

static void *put_all(void *held)
{
    for (held_t *each = held; each->block; each++)
        let_go(each);
    return NULL;
}

static void put_elsewhere(held_t *held)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, put_all, held), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Its plain free would have waited there; this thread may be what the work waits for. */
static void what_another_thread_freed_is_waited_for_with_a_bound(void **state)
{
    (void)state;
    held_t held[4], theirs[2] = {{0}};
    fill(held);
    theirs[0] = held[1];
    put_elsewhere(theirs);
    refused(16 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
    assert_int_equal(fake.waiting_frees, 0);
    fake.wait_passes = true;
    get(16 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
}

static void without_bound_once_this_thread_freed_something_too(void **state)
{
    (void)state;
    held_t held[4], theirs[2] = {{0}};
    fill(held);
    theirs[0] = held[1];
    put_elsewhere(theirs);
    put(&held[3]);
    held_t again = get(16 * MIB);
    assert_int_equal(again.address, held[1].address);
    assert_int_equal(fake.unbounded_waits, 1);
}

/* Caches keep nothing there: each free is one that the heap sees. */
static void also_where_this_thread_has_a_cache(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    params.thread_cache = 64 * MIB;
    start_again(64 * MIB, 64 * MIB, params);
    make_ready(512); /* there are fences: caches open */
    held_t small = get(512), theirs[2] = {{0}};
    held_t rest[3] = {get(16 * MIB), get(16 * MIB), get(16 * MIB)};
    refused(16 * MIB); /* from here on there is no room */
    theirs[0] = rest[1];
    put_elsewhere(theirs);
    assert_int_equal(fake.unbounded_waits, 0);
    put(&small);
    held_t again = get(16 * MIB);
    assert_int_equal(again.address, rest[1].address);
    assert_int_equal(fake.unbounded_waits, 1);
}

/* In a capture what it freed cannot be fenced, and the real free waits for everything. */
static void nor_does_the_real_free_get_what_another_thread_freed(void **state)
{
    (void)state;
    held_t held[4], theirs[2] = {{0}};
    fill(held);
    fake.capturing = true;
    theirs[0] = held[1];
    put_elsewhere(theirs);
    refused(16 * MIB);
    assert_int_equal(fake.waiting_frees, 0);
}

static void without_fences_a_free_synchronizes_where_memory_is_short(void **state)
{
    (void)state;
    fake.no_fences = true;
    held_t held[4];
    fill(held);
    put(&held[1]); /* the first close: learns that there are no fences */
    assert_string_equal(fake_log(), "rS");
    get(16 * MIB);
    put(&held[2]);
    get(16 * MIB);
    assert_int_equal(fake.calls[FAKE_SYNC], 2);
}

/* The program: free p; launch work that waits for this thread; malloc. */
static void without_fences_an_allocation_never_synchronizes(void **state)
{
    (void)state;
    fake.no_fences = true;
    fake.limit = 140 * MIB;
    held_t a = get(40 * MIB), b = get(40 * MIB), p = get(100 * KIB);
    put(&p); /* there is room: its epoch stays open */
    fake_log();
    refused(60 * MIB);
    refused(60 * MIB);
    assert_int_equal(fake.calls[FAKE_SYNC], 0);
    assert_int_equal(fake.waiting_frees, 0); /* the real free would wait as well */
    held_t q = get(512);
    fake_log();
    put(&q); /* from now on every free closes, and takes p along */
    assert_string_equal(fake_log(), "S");
    assert_int_equal(stats().pending_bytes, 0);
    put(&a), put(&b);
    get(100 * MIB);
}

static void without_fences_pending_segments_wait_for_a_free(void **state)
{
    (void)state;
    fake.no_fences = true;
    held_t held[4];
    fill(held);
    fake.capturing = true;
    put(&held[1]);
    put(&held[2]);
    refused(32 * MIB);
    assert_int_equal(fake.waiting_frees, 0);
    fake.capturing = false;
    put(&held[3]); /* not put off by the refusals before */
    assert_int_equal(stats().pending_bytes, 0);
    get(32 * MIB);
}

static void without_fences_the_open_epoch_is_a_small_share_of_the_room(void **state)
{
    (void)state;
    fake.no_fences = true;
    fake.limit = 512 * MIB;
    held_t held[400];
    for (unsigned i = 0; i < 400; i++)
        held[i] = get(MIB);
    size_t room = fake.limit - fake.used, most = 0;
    for (unsigned i = 0; i < 400; i++) {
        put(&held[i]);
        if (i >= CA_EPOCH_BLOCKS && stats().pending_bytes > most)
            most = stats().pending_bytes;
    }
    assert_true(most <= room / 100 + MIB);
}

static void out_of_memory_is_said_when_all_is_live(void **state)
{
    (void)state;
    held_t held[4];
    fill(held);
    refused(512);
    const char *log = fake_log();
    assert_string_equal(log, "aaCaa"); /* 2 MiB, and 512 B, each time */
    for (unsigned i = 0; i < 4; i++)
        put(&held[i]);
    get(512);
}

static void a_request_that_needs_all_the_cache_holds_succeeds(void **state)
{
    (void)state;
    fake.limit = 128 * MIB;
    held_t held[128];
    for (unsigned i = 0; i < 128; i++)
        held[i] = get(MIB);
    assert_int_equal(fake.used, 128 * MIB);
    for (unsigned i = 0; i < 128; i++)
        put(&held[(i * 37) % 128]);
    held_t all = get(128 * MIB);
    put(&all);
    for (unsigned i = 0; i < 128; i++)
        held[i] = get(MIB);
    for (unsigned i = 0; i < 128; i++)
        put(&held[i]);
}

static void a_failed_upstream_free_does_not_stop_the_rest(void **state)
{
    (void)state;
    held_t a = get(20 * MIB), b = get(30 * MIB);
    put(&a), put(&b);
    fake_pass_all();
    fake.fail_at[FAKE_FREE] = 1;
    fake.fail_rc[FAKE_FREE] = -EINVAL;
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 20 * MIB);
    assert_int_equal(stats().reserved_bytes, 30 * MIB); /* and it is not lost */
    sound();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 30 * MIB);
    assert_int_equal(stats().reserved_bytes, 0);
    sound();
}

static ca_arena_t *others;

static void others_get_it(void)
{
    ca_span_add(FAKE_BASE, 20 * MIB, others);
}

/* Its context is being destroyed, and the driver has given the addresses away. */
static void a_failed_upstream_free_takes_no_addresses_from_another(void **state)
{
    (void)state;
    int context;
    others = ca_arena_create(&fake_upstream, &context, &fake_params);
    held_t a = get(20 * MIB);
    assert_int_equal(a.address, FAKE_BASE);
    put(&a);
    fake_pass_all();
    fake.on_call[FAKE_FREE] = others_get_it;
    fake.fail_at[FAKE_FREE] = 1;
    fake.fail_rc[FAKE_FREE] = -EIO;
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    fake.on_call[FAKE_FREE] = NULL;
    assert_int_equal(stats().reserved_bytes, 0);
    ca_arena_retire(arena);
    assert_ptr_equal(ca_span_arena(FAKE_BASE), others);
    ca_span_remove(FAKE_BASE, 20 * MIB, others);
    ca_arena_retire(others);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_request_inside_the_call_that_obtains_memory_does_not_wait_for_it),
        TEST(what_is_ready_serves_a_request_inside_such_a_call),
        TEST(ready_memory_serves_without_a_call),
        TEST(a_passed_epoch_serves_with_one_query),
        TEST(the_open_epoch_is_closed_and_queried_before_growing),
        TEST(within_the_policy_it_grows_and_does_not_wait),
        TEST(beyond_the_policy_a_bounded_wait_serves),
        TEST(one_bounded_wait_is_for_the_older_half_of_the_epochs),
        TEST(a_bounded_wait_that_was_too_short_serves_from_what_passed_meanwhile),
        TEST(after_the_bounded_wait_it_grows_beyond_the_policy),
        TEST(what_its_own_frees_would_have_waited_for_is_waited_for_longer),
        TEST(that_of_another_thread_is_not),
        TEST(idle_segments_go_back_before_the_peak_rises),
        TEST(with_work_in_flight_the_peak_rises_instead_of_a_free),
        TEST(nor_do_more_go_back_once_there_is_work),
        TEST(below_the_peak_nothing_goes_back),
        TEST(a_refused_preferred_size_falls_back_to_what_is_needed),
        TEST(out_of_memory_gives_idle_segments_back),
        TEST(then_others_are_asked),
        TEST(others_are_not_asked_for_what_the_limit_forbids),
        TEST(then_every_closed_epoch_is_waited_for),
        TEST(but_not_what_is_freed_meanwhile),
        TEST(what_calls_that_do_not_wait_have_freed_is_not_waited_for),
        TEST(nor_is_it_given_to_the_real_free_from_a_cache),
        TEST(nor_what_a_stream_left_behind),
        TEST(without_fences_they_wait_as_others_do),
        TEST(waiting_and_giving_back_make_room_for_a_larger_request),
        TEST(during_a_capture_pending_segments_go_to_the_real_free),
        TEST(a_segment_with_a_live_block_is_never_given_back),
        TEST(where_memory_is_short_every_free_closes_its_epoch),
        TEST(headroom_is_left_while_the_cache_can_do_without),
        TEST(headroom_never_refuses_memory),
        TEST(headroom_frees_nothing_while_the_device_works),
        TEST(nor_more_than_until_it_works_again),
        TEST(reuse_grow_never_waits_while_there_is_memory),
        TEST(reuse_wait_waits_before_it_grows),
        TEST(what_an_allocation_closed_is_not_waited_for_without_bound),
        TEST(what_an_allocation_closed_is_waited_for_a_while),
        TEST(what_another_thread_freed_is_waited_for_with_a_bound),
        TEST(without_bound_once_this_thread_freed_something_too),
        TEST(also_where_this_thread_has_a_cache),
        TEST(nor_does_the_real_free_get_what_another_thread_freed),
        TEST(without_fences_a_free_synchronizes_where_memory_is_short),
        TEST(without_fences_an_allocation_never_synchronizes),
        TEST(without_fences_pending_segments_wait_for_a_free),
        TEST(without_fences_the_open_epoch_is_a_small_share_of_the_room),
        TEST(out_of_memory_is_said_when_all_is_live),
        TEST(a_request_that_needs_all_the_cache_holds_succeeds),
        TEST(a_failed_upstream_free_does_not_stop_the_rest),
        TEST(a_failed_upstream_free_takes_no_addresses_from_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
