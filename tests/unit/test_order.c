/* Reuse in order: what is in flight serves on one stream, and every other stream waits for it. The
 * test is the program: it says what it submits, and where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include "base/counters.h"
#include "one_arena.h"
#include "pool/arena.h"
#include "pool/cache/cache.h"
#include "pool/fence/fence_order.h"
#include "pool/fence/order.h"

#define LARGE (6 * MIB) /* its free records a fence at once */
#define WAIT_NS UINT64_C(1000000)

enum { S = 10, T, U, V }; /* streams */
static int context;

static void begin_with(size_t thread_cache)
{
    ca_arena_params_t params = fake_params;
    fake_reset(1024 * MIB, 1024 * MIB);
    fake.in_order = true;
    params.reuse = CA_POOL_REUSE_ORDER;
    params.thread_cache = thread_cache;
    ca_order_reset_after_fork();
    arena = ca_arena_create(&fake_upstream, &context, &params);
    ca_order_start(&fake_upstream, &context, WAIT_NS);
}

static void begin(void)
{
    begin_with(fake_params.thread_cache);
}

static int set_up(void **state)
{
    (void)state;
    begin();
    return arena ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ca_order_forget(&context);
    ca_arena_retire(arena);
    return fake.errors || fake.fences ? -1 : 0;
}

static void submit_as(uint64_t stream, unsigned work)
{
    ca_order_before(stream, (void *)(uintptr_t)stream, work);
    ca_order_after(stream, work);
}

static void submit(uint64_t stream)
{
    submit_as(stream, CA_WORK);
}

/* A block that was used on the stream and freed: where it was. */
static uint64_t used_on(uint64_t stream)
{
    held_t held = get(LARGE);
    uint64_t address = held.address;
    submit(stream);
    put(&held);
    return address;
}

/* Whether the next request gets that memory. Nothing that it does is logged before. */
static bool serves(uint64_t address)
{
    fake_log();
    held_t held = get(LARGE);
    bool same = held.address == address;
    let_go_by(&held, ca_arena_free);
    return same;
}

static bool takes(uint64_t address)
{
    held_t held = get(LARGE);
    return held.address == address; /* it stays */
}

static unsigned count_of(const char *log, char letter)
{
    unsigned count = 0;
    for (; *log; log++)
        count += *log == letter;
    return count;
}

static void in_thread(void *(*body)(void *), void *arg)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, arg), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *submits_to_t(void *arg)
{
    (void)arg;
    submit(T);
    return NULL;
}

static void *take_one(void *address)
{
    held_t held;
    if (hold(arena, LARGE, &held) == 0)
        *(uint64_t *)address = held.address;
    return NULL;
}

static void *used_by_another_thread(void *address)
{
    *(uint64_t *)address = used_on(S);
    return NULL;
}

static void on_one_stream_what_is_in_flight_serves_at_once(void **state)
{
    (void)state;
    uint64_t address = used_on(S);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(used_on(S), address);
    fake_log();
    assert_int_equal(used_on(S), address);
    assert_string_equal(fake_log(), "R"); /* one fence for the free, and nothing is asked */
    assert_int_equal(fake.calls[FAKE_QUERY], 0);
    assert_true(fake.fences <= 2);
}

static void frees_with_nothing_submitted_between_share_a_fence(void **state)
{
    (void)state;
    held_t one = get(LARGE), two = get(LARGE);
    submit(S);
    fake_log();
    put(&one);
    put(&two);
    assert_string_equal(fake_log(), "R");
    one = get(LARGE);
    let_go(&one); /* its fence is owed by now */
    one = get(LARGE);
    two = get(LARGE);
    assert_string_equal(fake_log(), "");
    submit(S);
    put(&one);
    assert_string_equal(fake_log(), "R"); /* the kernel is behind the other one */
    submit(T);
    assert_string_equal(fake_log(), "J");
    put(&two);
}

static held_t other;

static void free_and_submit_meanwhile(void)
{
    fake.on_call[FAKE_RECORD] = NULL;
    submit(S);
    fake_log();
    put(&other);
}

static void a_submission_while_a_fence_is_recorded_is_behind_it(void **state)
{
    (void)state;
    held_t held = get(LARGE);
    other = get(LARGE);
    submit(S);
    fake.on_call[FAKE_RECORD] = free_and_submit_meanwhile;
    put(&held);
    assert_int_equal(count_of(fake_log(), 'R'), 2);
}

static void what_shares_a_fence_is_not_for_a_thread_that_would_not_have_slept(void **state)
{
    (void)state;
    uint64_t address = used_on(S);
    held_t held = get(LARGE);
    assert_int_equal(held.address, address);
    let_go(&held);
    uint64_t another = address;
    in_thread(take_one, &another);
    assert_true(another != address);
}

static void what_shares_a_fence_passes_with_it(void **state)
{
    (void)state;
    held_t held = get(LARGE);
    submit(S);
    put(&held);
    held = get(LARGE);
    let_go(&held);
    submit_as(S, CA_WORK_HELD); /* from here on nothing serves in order */
    fake_pass_all();
    fake_log();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX) > 0, true);
    assert_true(count_of(fake_log(), 'Q') > 0);
}

/* Two blocks behind one fence; the first was handed out again and freed, so that its epoch is lent
 * and closed. Returns where it is. */
static uint64_t lent_and_freed(void)
{
    held_t held = get(LARGE);
    submit(S);
    put(&held);
    held = get(LARGE);
    fake_log();
    put(&held);
    assert_string_equal(fake_log(), "");
    return held.address;
}

static held_t given[2];

static void *frees_what_is_given(void *submits)
{
    let_go(&given[0]);
    if (submits)
        submit(S);
    let_go(&given[1]);
    return NULL;
}

static void threads_share_it_until_one_of_them_submits(void **state)
{
    (void)state;
    held_t last = get(LARGE);
    given[0] = get(LARGE);
    given[1] = get(LARGE);
    lent_and_freed();
    in_thread(frees_what_is_given, NULL);
    assert_string_equal(fake_log(), "");
    given[0] = get(LARGE);
    given[1] = get(LARGE);
    in_thread(frees_what_is_given, &last);
    assert_string_equal(fake_log(), "R"); /* for the second alone */
    put(&last);
    assert_string_equal(fake_log(), "");
}

static void submits_elsewhere(void)
{
    fake.on_call[FAKE_RECORD] = NULL;
    ca_order_before(S, NULL, CA_WORK);
    ca_order_after(S, CA_WORK);
}

/* Nothing says on which side of the record the submission came. */
static void what_is_freed_after_a_submission_meanwhile_has_a_fence_of_its_own(void **state)
{
    (void)state;
    held_t held = get(LARGE), after = get(LARGE);
    submit(S);
    fake.on_call[FAKE_RECORD] = submits_elsewhere;
    fake_log();
    put(&held);
    put(&after);
    assert_string_equal(fake_log(), "RR");
}

/* What it began may say so before its call has returned. */
static void what_is_freed_during_a_submission_has_a_fence_of_its_own(void **state)
{
    (void)state;
    held_t held = get(LARGE), after = get(LARGE);
    submit(S);
    fake_log();
    put(&held);
    ca_order_before(S, NULL, CA_WORK);
    put(&after);
    assert_string_equal(fake_log(), "RR");
    ca_order_after(S, CA_WORK);
}

static void once_order_has_ended_what_shares_a_fence_waits_for_it(void **state)
{
    (void)state;
    uint64_t address = lent_and_freed();
    fake_log();
    in_thread(submits_to_t, NULL);
    assert_string_equal(fake_log(), "qwwJ"); /* as it is owed */
    assert_false(takes(address));
    held_t held = get(LARGE);
    submit(S);
    fake_log();
    put(&held);
    assert_string_equal(fake_log(), "R"); /* shared no more */
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_true(takes(address));
}

static void a_second_context_that_comes_then_waits_for_it(void **state)
{
    (void)state;
    uint64_t address = lent_and_freed();
    fake_log();
    ca_order_end("a test");
    assert_string_equal(fake_log(), "qW");
    assert_false(ca_order_owed());
    assert_int_equal(fake.unbounded_waits, 1);
    assert_true(serves(address)); /* has passed */
    assert_int_equal(count_of(fake_log(), 'R'), 1);
}

static void while_anything_is_captured_no_fence_is_shared(void **state)
{
    (void)state;
    held_t held = get(LARGE);
    uint64_t address = lent_and_freed();
    ca_order_hold(true);
    fake.capturing = true;
    fake_log();
    put(&held);
    assert_string_equal(fake_log(), "r");
    assert_false(takes(address));
    fake.capturing = false;
    ca_order_hold(false);
    assert_true(takes(address));
}

static void context_ends(void)
{
    fake.on_call[FAKE_JOIN] = fake.on_release = NULL;
    ca_order_forget(&context);
    ca_arena_retire(arena);
}

/* Both the arena and the thread that is at the fence let go of it. */
static void a_context_that_ends_while_a_stream_is_made_to_wait_leaves_no_fence(void **state)
{
    (void)state;
    lent_and_freed();
    fake.on_call[FAKE_JOIN] = context_ends;
    submit(T);
    assert_int_equal(fake.fences, 0);
}

static int passed_pair(uint64_t *address)
{
    ca_block_t *block;
    int rc = ca_arena_alloc_passed(arena, LARGE, &block, address);
    if (rc == 0) {
        submit(S);
        ca_arena_free(block);
    }
    return rc;
}

static void a_request_takes_the_block_that_was_freed_last_as_it_is(void **state)
{
    (void)state;
    uint64_t first = used_on(S), address, merges = ca_counter_read(merges);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(passed_pair(&address), 0);
        assert_int_equal(address, first);
    }
    assert_int_equal(ca_counter_read(merges), merges);
    assert_int_equal(fake.calls[FAKE_QUERY], 0);
    assert_true(fake.fences <= 2);
    sound();
}

/* With the lock dropped, to release the fence of the one before. */
static void where_its_context_ends_meanwhile_it_gets_none(void **state)
{
    (void)state;
    uint64_t address;
    used_on(S);
    assert_int_equal(passed_pair(&address), 0);
    fake.on_release = context_ends;
    assert_int_equal(passed_pair(&address), -EAGAIN);
    assert_null(fake.on_release);
}

static void the_last_one_of_a_shared_fence_may_pass_while_it_is_owed(void **state)
{
    (void)state;
    lent_and_freed();
    submit_as(S, CA_WORK_HELD); /* from here on nothing serves in order */
    fake_pass_all();
    ca_arena_trim(arena, 0); /* its epoch is gone */
    assert_int_equal(fake.fences, 1);
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "J");
    submit(U);
    assert_string_equal(fake_log(), "Q");
    assert_int_equal(fake.fences, 0);
}

static void what_has_no_fence_yet_does_not_serve(void **state)
{
    (void)state;
    held_t small = get(KIB), other;
    uint64_t address = small.address;
    submit(S);
    put(&small);
    assert_int_equal(hold(arena, KIB, &other), 0);
    assert_true(other.address != address);
}

static void another_stream_waits_for_it_once(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake_log();
    submit(T);
    submit(T);
    assert_string_equal(fake_log(), "J");
    submit(S); /* whose fence it is behind by itself */
    assert_string_equal(fake_log(), "");
    submit(T);
    assert_string_equal(fake_log(), "");
    submit(U);
    assert_string_equal(fake_log(), "qJ"); /* it may have passed since T came */
}

static void where_it_has_passed_meanwhile_no_other_need(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    submit(T);
    fake_pass_all();
    fake_log();
    submit(U);
    assert_string_equal(fake_log(), "Q");
    submit(V);
    assert_string_equal(fake_log(), "");
    assert_false(ca_order_owed());
}

static void else_hardly_any_asks(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake_log();
    for (uint64_t stream = 100; stream < 160; stream++)
        submit(stream);
    const char *log = fake_log();
    assert_int_equal(count_of(log, 'J'), 60);
    assert_int_equal(count_of(log, 'q'), 6);
    for (uint64_t stream = 100; stream < 160; stream++)
        submit(stream);
    assert_string_equal(fake_log(), "");
}

static unsigned elsewhere_by_turns(unsigned count)
{
    uint64_t before = ca_counter_read(submissions_elsewhere);
    for (unsigned i = 0; i < count; i++)
        submit(i % 2 ? S : T);
    return (unsigned)(ca_counter_read(submissions_elsewhere) - before);
}

static void but_does_now_and_then_while_it_goes_on(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    submit(T);
    fake_pass_all();
    fake_log();
    elsewhere_by_turns(1000); /* and nothing is freed, which would find out */
    assert_string_equal(fake_log(), "Q");
    assert_false(ca_order_owed());
}

static void what_was_before_a_fence_that_has_passed_is_not_owed(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    submit(T);
    uint64_t address = used_on(T);
    assert_true(ca_order_owed());
    fake_pass_all();
    assert_true(takes(address)); /* by a question */
    assert_false(ca_order_owed());
}

static void a_thread_on_several_streams_says_so_once_a_fence(void **state)
{
    (void)state;
    submit(S);
    assert_int_equal(elsewhere_by_turns(100), 100); /* counted all the same */
    assert_true(ca_order_current == CA_ORDER_SEVERAL);
    used_on(S); /* its fence is begun, and S is the last stream */
    assert_true(ca_order_current != CA_ORDER_SEVERAL);
    submit(T);
    fake_pass_all();
    assert_false(serves(used_on(T))); /* T's work came after that fence */
}

static void the_last_of_its_streams_may_be_the_only_one_from_then_on(void **state)
{
    (void)state;
    submit(S);
    elsewhere_by_turns(99);
    assert_true(ca_order_current == CA_ORDER_SEVERAL);
    used_on(T); /* the last one */
    fake_pass_all();
    held_t held;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(hold(arena, KIB, &held), 0), put(&held);
    assert_true(takes(used_on(T)));
}

static void a_second_thread_is_seen_then_too(void **state)
{
    (void)state;
    submit(S);
    elsewhere_by_turns(100); /* S is the last */
    in_thread(submits_to_t, NULL);
    assert_true(ca_order_is_over());
}

static void one_on_the_last_stream_is_none(void **state)
{
    (void)state;
    submit(S);
    elsewhere_by_turns(99); /* T is */
    in_thread(submits_to_t, NULL);
    assert_false(ca_order_is_over());
}

static void it_waits_again_for_what_is_handed_out_later(void **state)
{
    (void)state;
    held_t small = get(KIB);
    submit(S);
    assert_true(takes(used_on(S)));
    submit(T);
    fake_pass_all();
    held_t held;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(hold(arena, LARGE, &held), 0), put(&held);
    submit(S);
    fake_pass_all();
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(hold(arena, LARGE, &held), 0), put(&held);
    fake_pass_all();
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(hold(arena, LARGE, &held), 0), put(&held);
    assert_true(ca_order_may(&context)); /* of S again */
    assert_true(takes(used_on(S)));
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "J");
    put(&small);
}

static void what_a_free_that_waits_for_nothing_came_after_is_not_its_own(void **state)
{
    (void)state;
    uint64_t address;
    held_t async = get(LARGE);
    submit(S);
    in_thread(used_by_another_thread, &address);
    fake_unuse(async.address, async.bytes);
    ca_arena_free_async(async.block, NULL, 0);
    assert_false(takes(address));
}

static void memory_of_the_host_never_serves(void **state)
{
    (void)state;
    ca_arena_params_t params = fake_params;
    ca_arena_t *before = arena;
    params.reuse = CA_POOL_REUSE_ORDER;
    params.host = true;
    arena = ca_arena_create(&fake_upstream, &context, &params);
    assert_false(serves(used_on(S)));
    ca_arena_retire(arena);
    arena = before;
}

static void submit_meanwhile(void)
{
    fake.on_call[FAKE_JOIN] = NULL;
    in_thread(submits_to_t, NULL);
}

static void another_thread_on_that_stream_waits_too_until_it_has(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake.on_call[FAKE_JOIN] = submit_meanwhile;
    fake_log();
    submit(T);
    assert_int_equal(count_of(fake_log(), 'J'), 2);
}

static void nothing_is_owed_where_nothing_was_handed_out(void **state)
{
    (void)state;
    used_on(S);
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "");
}

static void a_submission_elsewhere_between_makes_it_wait(void **state)
{
    (void)state;
    uint64_t address = used_on(S);
    submit(T);
    assert_false(serves(address));
}

static void one_on_another_stream_before_the_fence_does_too(void **state)
{
    (void)state;
    submit(S);
    held_t held = get(LARGE);
    uint64_t address = held.address;
    submit(T);
    submit(S);
    put(&held);
    assert_false(serves(address));
}

static void it_is_one_stream_again_once_a_later_fence_has_passed(void **state)
{
    (void)state;
    used_on(S);
    used_on(T);
    submit(T);
    fake_pass_all(); /* that of T's free was begun after the last submission elsewhere */
    held_t held;
    for (unsigned i = 0; i < 200; i++) /* found at the latest when the next query is due */
        assert_int_equal(hold(arena, LARGE, &held), 0), put(&held);
    uint64_t address = used_on(T);
    assert_true(takes(address));
}

static void a_fence_from_before_does_not_do(void **state)
{
    (void)state;
    used_on(S);
    uint64_t last = fake.recorded;
    submit(T);
    fake_pass(last);
    held_t held;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(hold(arena, KIB, &held), 0), put(&held);
    assert_false(ca_order_may(&context));
}

static void a_thread_that_would_not_have_slept_does_not_take_it(void **state)
{
    (void)state;
    uint64_t address;
    submit(S);
    in_thread(used_by_another_thread, &address);
    assert_false(takes(address));
    used_on(S); /* its own free is behind that fence */
    held_t one = get(LARGE), two = get(LARGE);
    assert_true(one.address == address || two.address == address);
}

static void such_a_thread_s_submission_waits_on_the_host_first(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake_log();
    in_thread(submits_to_t, NULL);
    assert_string_equal(fake_log(), "qwwJ");
    assert_true(fake.waited_ns <= UINT64_C(1000000000));
    assert_int_equal(fake.unbounded_waits, 0);
}

static void it_goes_on_where_that_was_long_enough(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake.wait_passes = true;
    fake_log();
    in_thread(submits_to_t, NULL);
    assert_string_equal(fake_log(), "qW");
}

static void a_second_thread_with_a_second_stream_ends_it(void **state)
{
    (void)state;
    used_on(S);
    in_thread(submits_to_t, NULL);
    fake_pass_all();
    assert_false(ca_order_may(&context));
    used_on(T);
    fake_pass_all();
    held_t held;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(hold(arena, LARGE, &held), 0), put(&held);
    assert_false(serves(used_on(T)));
}

static bool kept_by_the_thread(size_t bytes)
{
    ca_block_t *block;
    uint64_t address;
    for (unsigned i = 0; i < 4; i++) { /* the first makes the cache */
        assert_int_equal(ca_cached_alloc(arena, NULL, bytes, false, &block, &address, NULL), 0);
        ca_cached_free(block);
    }
    return ca_block_state(block) == CA_BLOCK_CACHED;
}

/* In order they would keep apart what is free between them. */
static void from_then_on_threads_keep_larger_blocks_again(void **state)
{
    (void)state;
    ca_order_forget(&context);
    ca_arena_retire(arena);
    begin_with(64 * MIB);
    used_on(S);
    assert_true(kept_by_the_thread(CA_ORDER_SMALL));
    assert_false(kept_by_the_thread(2 * CA_ORDER_SMALL));
    in_thread(submits_to_t, NULL);
    used_on(T);
    assert_true(kept_by_the_thread(2 * CA_ORDER_SMALL));
    assert_true(kept_by_the_thread(CA_CACHE_ALWAYS));
}

static void once_nothing_is_owed_either_nothing_is_looked_at(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    in_thread(submits_to_t, NULL); /* waits in vain, and is made to wait on the device */
    submit(S);
    assert_true(ca_order_current != CA_ORDER_OFF);
    fake_pass_all();
    submit(U); /* finds out */
    assert_true(ca_order_current == CA_ORDER_OFF);
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "");
}

static void *waits_for_t(void *arg)
{
    (void)arg;
    ca_order_waits_for(T);
    return NULL;
}

static void as_does_one_that_waits_for_it(void **state)
{
    (void)state;
    used_on(S);
    in_thread(waits_for_t, NULL);
    assert_false(ca_order_may(&context));
}

static void threads_on_one_stream_do_not(void **state)
{
    (void)state;
    uint64_t address;
    submit(S);
    in_thread(used_by_another_thread, &address);
    assert_true(ca_order_may(&context));
}

static void what_may_wait_for_a_thread_keeps_all_from_serving(void **state)
{
    (void)state;
    held_t held = get(LARGE);
    uint64_t address = held.address;
    submit_as(S, CA_WORK_HELD);
    put(&held);
    assert_false(serves(address));
}

static void a_programmatic_launch_waits_on_the_same_stream(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake_log();
    submit_as(S, CA_WORK_EARLY);
    assert_string_equal(fake_log(), "J");
}

static void a_copy_by_the_host_waits_on_the_host(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake_log();
    submit_as(S, CA_WORK_COPY); /* in order */
    assert_string_equal(fake_log(), "");
    submit_as(T, CA_WORK_COPY);
    assert_string_equal(fake_log(), "qW");
    assert_int_equal(fake.unbounded_waits, 1); /* as its plain free would have */
}

static void a_stream_with_the_number_of_one_that_ended_waits_anew(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    submit(T);
    ca_order_stream_ends(T);
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "qJ");
}

static void as_does_one_with_the_number_of_the_current_one(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    ca_order_stream_ends(S);
    assert_false(ca_order_may(&context));
    fake_log();
    submit(S);
    assert_string_equal(fake_log(), "J");
}

static void of_several_streams_after_the_current_one_ended_each_is_seen(void **state)
{
    (void)state;
    submit(T);
    submit(S);
    ca_order_stream_ends(S);
    held_t held = get(LARGE);
    uint64_t first = held.address;
    put(&held);
    uint64_t fence = fake.recorded;
    held = get(LARGE);
    uint64_t address = held.address;
    submit(T);
    submit(S);
    put(&held);
    fake_pass(fence);
    assert_true(takes(first));
    assert_false(serves(address));
}

static void a_wait_for_the_stream_proves_that_all_has_passed(void **state)
{
    (void)state;
    used_on(S);
    submit(T);
    used_on(T);
    uint64_t other = ca_order_wait_begins(S);
    ca_order_wait_ended(other);
    assert_false(ca_order_may(&context)); /* T's work goes on */
    uint64_t all = ca_order_wait_begins(0);
    fake_pass_all();
    ca_order_wait_ended(all);
    assert_true(ca_order_may(&context));
    assert_true(takes(used_on(T)));
    uint64_t begun = ca_order_wait_begins(T);
    fake_pass_all();
    ca_order_wait_ended(begun);
    fake_log();
    submit(U);
    assert_string_equal(fake_log(), ""); /* known without a question */
}

static void a_wait_that_began_before_proves_nothing(void **state)
{
    (void)state;
    submit(S);
    uint64_t begun = ca_order_wait_begins(S);
    assert_true(takes(used_on(S)));
    ca_order_wait_ended(begun);
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "J");
}

static void nothing_serves_while_anything_is_captured(void **state)
{
    (void)state;
    uint64_t address = used_on(S);
    ca_order_hold(true);
    assert_false(takes(address));
    ca_order_hold(false);
    assert_true(takes(address));
    ca_order_hold(true);
    fake_log();
    submit(T); /* no stream can be made to wait */
    assert_string_equal(fake_log(), "qW");
    ca_order_hold(false);
}

static void what_leaves_the_order_of_streams_waits_on_the_host(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    submit(T); /* has paid, and the fence has still not passed */
    fake_log();
    ca_order_leave();
    assert_string_equal(fake_log(), "qW");
    ca_order_leave();
    assert_string_equal(fake_log(), "");
}

static void what_is_in_flight_does_not_go_back(void **state)
{
    (void)state;
    held_t held;
    uint64_t address = used_on(S);
    assert_int_equal(hold(arena, LARGE, &held), 0);
    assert_int_equal(held.address, address);
    let_go(&held);
    fake.stuck = fake.recorded + 1; /* its fence */
    held_t other = get(LARGE);
    put(&other);
    fake_log();
    ca_arena_trim(arena, SIZE_MAX);
    assert_int_equal(fake.waiting_frees, 0);
}

static void *decays(void *given)
{
    ca_arena_tick(arena);
    ca_arena_tick(arena);
    *(size_t *)given = ca_arena_decay(arena, 1, false);
    return NULL;
}

static void nor_does_it_decay(void **state)
{
    (void)state;
    size_t given;
    held_t small = get(KIB), another;
    used_on(S);
    another = get(KIB); /* of the same segment as the first; all of the other one is ready now */
    in_thread(decays, &given);
    assert_int_equal(given, 0);
    fake_pass_all();
    in_thread(decays, &given);
    assert_true(given >= LARGE);
    assert_int_equal(fake.waiting_frees, 0);
    put(&small);
    put(&another);
}

static void a_second_context_ends_it_and_waits(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake_log();
    ca_order_end("a test");
    assert_string_equal(fake_log(), "qW");
    assert_false(ca_order_may(&context));
}

static void where_that_is_in_vain_every_stream_waits(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake.fail_at[FAKE_WAIT] = 1;
    fake.fail_rc[FAKE_WAIT] = -EAGAIN;
    ca_order_end("a test");
    fake_log();
    submit(S);
    submit(T);
    assert_int_equal(count_of(fake_log(), 'J'), 2);
}

static held_t slipped;

/* Its fence is begun and recorded while the other one, begun before, is not recorded yet: which of
 * the two stands behind the other one nobody can tell. */
static void free_meanwhile(void)
{
    fake.on_call[FAKE_RECORD] = NULL;
    let_go(&slipped);
}

static void of_two_fences_that_may_have_swapped_both_are_waited_for(void **state)
{
    (void)state;
    held_t held = get(LARGE);
    slipped = get(LARGE);
    submit(S);
    fake.on_call[FAKE_RECORD] = free_meanwhile;
    put(&held);
    held_t one = get(LARGE);
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "JJ");
    put(&one);
}

static void a_stream_that_cannot_be_made_to_wait_waits_on_the_host(void **state)
{
    (void)state;
    assert_true(takes(used_on(S)));
    fake.fail_at[FAKE_JOIN] = 1;
    fake.fail_rc[FAKE_JOIN] = -EAGAIN;
    fake_log();
    submit(T);
    assert_string_equal(fake_log(), "jqW");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(on_one_stream_what_is_in_flight_serves_at_once),
        TEST(frees_with_nothing_submitted_between_share_a_fence),
        TEST(a_submission_while_a_fence_is_recorded_is_behind_it),
        TEST(what_shares_a_fence_is_not_for_a_thread_that_would_not_have_slept),
        TEST(what_shares_a_fence_passes_with_it),
        TEST(threads_share_it_until_one_of_them_submits),
        TEST(what_is_freed_after_a_submission_meanwhile_has_a_fence_of_its_own),
        TEST(what_is_freed_during_a_submission_has_a_fence_of_its_own),
        TEST(once_order_has_ended_what_shares_a_fence_waits_for_it),
        TEST(a_second_context_that_comes_then_waits_for_it),
        TEST(while_anything_is_captured_no_fence_is_shared),
        TEST(a_context_that_ends_while_a_stream_is_made_to_wait_leaves_no_fence),
        TEST(a_request_takes_the_block_that_was_freed_last_as_it_is),
        TEST(where_its_context_ends_meanwhile_it_gets_none),
        TEST(the_last_one_of_a_shared_fence_may_pass_while_it_is_owed),
        TEST(what_has_no_fence_yet_does_not_serve),
        TEST(another_stream_waits_for_it_once),
        TEST(where_it_has_passed_meanwhile_no_other_need),
        TEST(else_hardly_any_asks),
        TEST(but_does_now_and_then_while_it_goes_on),
        TEST(what_was_before_a_fence_that_has_passed_is_not_owed),
        TEST(a_thread_on_several_streams_says_so_once_a_fence),
        TEST(the_last_of_its_streams_may_be_the_only_one_from_then_on),
        TEST(a_second_thread_is_seen_then_too),
        TEST(one_on_the_last_stream_is_none),
        TEST(it_waits_again_for_what_is_handed_out_later),
        TEST(what_a_free_that_waits_for_nothing_came_after_is_not_its_own),
        TEST(memory_of_the_host_never_serves),
        TEST(another_thread_on_that_stream_waits_too_until_it_has),
        TEST(nothing_is_owed_where_nothing_was_handed_out),
        TEST(a_submission_elsewhere_between_makes_it_wait),
        TEST(one_on_another_stream_before_the_fence_does_too),
        TEST(it_is_one_stream_again_once_a_later_fence_has_passed),
        TEST(a_fence_from_before_does_not_do),
        TEST(a_thread_that_would_not_have_slept_does_not_take_it),
        TEST(such_a_thread_s_submission_waits_on_the_host_first),
        TEST(it_goes_on_where_that_was_long_enough),
        TEST(a_second_thread_with_a_second_stream_ends_it),
        TEST(from_then_on_threads_keep_larger_blocks_again),
        TEST(once_nothing_is_owed_either_nothing_is_looked_at),
        TEST(as_does_one_that_waits_for_it),
        TEST(threads_on_one_stream_do_not),
        TEST(what_may_wait_for_a_thread_keeps_all_from_serving),
        TEST(a_programmatic_launch_waits_on_the_same_stream),
        TEST(a_copy_by_the_host_waits_on_the_host),
        TEST(a_stream_with_the_number_of_one_that_ended_waits_anew),
        TEST(as_does_one_with_the_number_of_the_current_one),
        TEST(of_several_streams_after_the_current_one_ended_each_is_seen),
        TEST(a_wait_for_the_stream_proves_that_all_has_passed),
        TEST(a_wait_that_began_before_proves_nothing),
        TEST(nothing_serves_while_anything_is_captured),
        TEST(what_leaves_the_order_of_streams_waits_on_the_host),
        TEST(what_is_in_flight_does_not_go_back),
        TEST(nor_does_it_decay),
        TEST(a_second_context_ends_it_and_waits),
        TEST(where_that_is_in_vain_every_stream_waits),
        TEST(of_two_fences_that_may_have_swapped_both_are_waited_for),
        TEST(a_stream_that_cannot_be_made_to_wait_waits_on_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
