/* Views: a range's memory at other addresses; see pool/range/view.h. The fake upstream checks
 * physical bytes, whatever address they are used by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_pages.h"
#include "one_arena.h"
#include "one_thread.h"
#include "pool/fence/order.h"
#include "pool/fence/stream.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"
#include "pool/range/view.h"

#define DEVICE (2048 * MIB)

static ca_arena_params_t params;

static void start_with(size_t device, size_t limit)
{
    params = fake_params;
    params.expandable = true;
    params.limit = limit;
    params.device_bytes = device;
    fake_reset(device, 2 * device);
    fake.auto_pass = true;
    arena = ca_arena_create(fake_with_pages(), NULL, &params);
}

static int start(void **state)
{
    (void)state;
    start_with(DEVICE, SIZE_MAX);
    return 0;
}

static int end(void **state)
{
    (void)state;
    size_t segments = fake.used - (arena->range ? arena->range->held : 0);
    fake_forget_owners();
    ca_arena_retire(arena);
    assert_int_equal(fake_pages.pages, 0);
    assert_int_equal(fake_pages.mapped, 0);
    assert_int_equal(fake_pages.reserved, 0);
    assert_int_equal(fake.used, segments);
    assert_int_equal(fake.errors, 0);
    return 0;
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

#define PIECES 6
static held_t pieces[PIECES];

/* Six blocks of 10 MiB, one behind the other; every other one is freed: 30 MiB, in three pieces. */
static void fragment(void)
{
    get(62 * MIB); /* of no range */
    for (int i = 0; i < PIECES; i++)
        pieces[i] = get(10 * MIB);
    for (int i = 0; i < PIECES; i += 2)
        put(&pieces[i]);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(arena->range->held, 60 * MIB);
}

static bool in_range(uint64_t address)
{
    return address - arena->range->segment->base < arena->range->segment->bytes;
}

static void pieces_serve_as_one(void **state)
{
    (void)state;
    fragment();
    size_t before = stats().reserved_bytes;
    held_t one = get(30 * MIB);
    assert_false(in_range(one.address));
    assert_true(ca_range_holds(one.address));
    assert_int_equal(stats().reserved_bytes, before);
    assert_int_equal(stats().live_bytes, 122 * MIB);
    put(&one);
}

static void smaller_requests_get_none(void **state)
{
    (void)state;
    fragment();
    held_t one = get(14 * MIB);
    assert_true(in_range(one.address));
}

static void a_view_serves_again_without_a_call(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    uint64_t address = one.address;
    for (int i = 0; i < 3; i++) {
        put(&one);
        fake_pass_all();
        ca_arena_trim(arena, 0);
        fake_log();
        one = get((size_t)(29 + i % 2) * MIB); /* a part of its last page will do */
        assert_int_equal(one.address, address);
        assert_null(strpbrk(fake_log(), "AMUV"));
    }
    assert_int_equal(arena->range->view_count, 1);
}

/* Or a page that is ready would be mapped where something is in use. */
static void it_serves_no_request_that_leaves_pages(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    uint64_t address = one.address;
    put(&one);
    fake_pass_all();
    one = get(28 * MIB);
    assert_int_not_equal(one.address, address);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 2 * MIB);
    put(&one);
}

/* What is ready in the middle of two pages is the beginning of neither. */
static void it_serves_nothing_from_the_middle_of_a_page(void **state)
{
    (void)state;
    end(state);
    start_with(8 * DEVICE, SIZE_MAX); /* or blocks would begin at pages */
    fragment();
    held_t one = get(24 * MIB); /* of 4, 2 and the last 4 MiB of 0 */
    put(&one), put(&pieces[1]);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    held_t last = get(10 * MIB), low = get(6 * MIB), page = get(2 * MIB);
    held_t half = get(MIB), gap = get(2 * MIB), middle = get(9 * MIB), third = get(10 * MIB);
    assert_int_equal(gap.address, pieces[0].address + 9 * MIB);
    assert_int_equal(third.address, pieces[2].address);
    put(&last), put(&page), put(&gap), put(&third);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().ready_bytes, 24 * MIB);
    uint64_t before = one.address;
    one = get(24 * MIB);
    assert_int_not_equal(one.address, before);
    put(&one), put(&low), put(&half), put(&middle);
}

static void its_memory_serves_by_its_first_address_meanwhile(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    put(&one);
    fake_pass_all();
    for (int i = 0; i < PIECES; i += 2)
        pieces[i] = get(10 * MIB);
    assert_int_equal(arena->range->held, 60 * MIB);
    one = get(30 * MIB); /* not by the view */
    assert_true(in_range(one.address));
    put(&one);
    for (int i = 0; i < PIECES; i += 2)
        put(&pieces[i]);
}

static void what_is_not_needed_of_its_last_page_stays_ready(void **state)
{
    (void)state;
    fragment();
    get(29 * MIB);
    assert_int_equal(stats().ready_bytes, 1 * MIB);
    get(1 * MIB);
    assert_int_equal(arena->range->held, 60 * MIB);
}

static void new_pages_complete_a_view(void **state)
{
    (void)state;
    fragment();
    held_t one = get(36 * MIB); /* growth would take as much */
    assert_false(in_range(one.address));
    assert_int_equal(arena->range->held, 66 * MIB);
    put(&one);
}

/* Its memory is nobody's until its fence has passed. */
static void a_view_that_is_freed_waits_for_its_fence(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    fake.auto_pass = false;
    params.reuse = CA_POOL_REUSE_GROW;
    put(&one);
    held_t other = get(10 * MIB);
    assert_int_equal(arena->range->held, 70 * MIB);
    put(&other);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    one = get(30 * MIB);
    put(&one);
}

static int let_in(void *arg, uint64_t at, size_t bytes, bool sure)
{
    (void)arg;
    assert_true(sure && at && bytes);
    return 0;
}

static void walk_meanwhile(void)
{
    fake_pages.on_map = NULL;
    assert_int_equal(ca_range_walk(arena, let_in, NULL), 0);
}

/* The walk has not seen it, and a peer would miss it. */
static void a_view_on_its_way_is_mapped_again_after_a_walk(void **state)
{
    (void)state;
    fragment();
    uint64_t maps = fake_pages.maps;
    fake_pages.on_map = walk_meanwhile;
    held_t one = get(30 * MIB);
    assert_false(in_range(one.address));
    assert_int_equal(fake_pages.maps - maps, 2 * 15);
    assert_int_equal(fake_pages.reserved, 2);
    put(&one);
}

static void what_a_device_on_the_bus_has_keeps_its_view(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    ca_range_pin(one.address + MIB, MIB);
    put(&one);
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    assert_int_equal(arena->range->view_count, 1);
    held_t other = get(30 * MIB); /* of no page that is pinned */
    assert_true(in_range(other.address));
    for (int i = 0; i < PIECES; i += 2)
        pieces[i] = get(10 * MIB);
    assert_int_equal(arena->range->held, 90 * MIB);
    put(&other);
}

static void pages_that_go_take_their_views_along(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    put(&one);
    fake_pass_all();
    fake_log();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 30 * MIB);
    assert_int_equal(arena->range->view_count, 0);
    assert_int_equal(fake_pages.reserved, 1);
    sound();
}

static void the_oldest_views_are_given_up(void **state)
{
    held_t held[PIECES];
    (void)state;
    fragment();
    for (size_t i = 0; i < 40; i++) {
        /* Others are live each time, so that no view that there is serves. */
        for (size_t k = 0; k < 3; k++)
            held[k] = get((4 + (i + k) % 3 * 2) * MIB);
        held_t one = get((16 + i % 5) * MIB);
        put(&one);
        for (size_t k = 0; k < 3; k++)
            put(&held[k]);
        fake_pass_all();
        assert_true(arena->range->view_bytes <= CA_VIEWS_MOST * arena->range->held);
    }
    assert_true(arena->range->view_count > 1);
}

static void pinned_views_stay_whole(void **state)
{
    (void)state;
    fragment();
    held_t one = get(30 * MIB);
    uint64_t address = one.address;
    ca_arena_pin(arena, true);
    put(&one);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    sound();
    pieces[0] = get(10 * MIB); /* of other memory */
    assert_int_equal(arena->range->held, 70 * MIB);
    one = get(30 * MIB);
    assert_int_equal(one.address, address);
    put(&one);
    fake_pass_all();
    ca_arena_pin(arena, false);
    ca_arena_trim(arena, 0);
    ca_arena_trim(arena, SIZE_MAX);
    sound();
    assert_int_equal(arena->range->held, 40 * MIB);
}

static void none_is_made_in_pin_mode(void **state)
{
    (void)state;
    fragment();
    ca_arena_pin(arena, true);
    held_t one = get(30 * MIB);
    assert_true(in_range(one.address));
    ca_arena_pin(arena, false);
}

static void in_pin_mode_memory_that_is_short_is_taken_apart(void **state)
{
    (void)state;
    end(state);
    start_with(128 * MIB, SIZE_MAX);
    fragment();
    held_t one = get(30 * MIB), other;
    ca_arena_pin(arena, true);
    put(&one);
    fake_pass_all();
    assert_int_equal(hold(arena, 10 * MIB, &other), 0);
    sound();
    ca_arena_pin(arena, false);
}

static void the_limit_counts_no_addresses(void **state)
{
    held_t held;
    (void)state;
    end(state);
    start_with(DEVICE, 128 * MIB);
    fragment();
    held_t one = get(30 * MIB);
    assert_int_equal(hold(arena, 10 * MIB, &held), -ENOMEM);
    get(6 * MIB);
    put(&one);
    fake_pass_all();
    get(30 * MIB);
    assert_int_equal(stats().reserved_peak, 128 * MIB);
}

static void where_the_device_is_full_pieces_serve(void **state)
{
    held_t held;
    (void)state;
    end(state);
    start_with(124 * MIB, SIZE_MAX);
    fragment();
    assert_int_equal(hold(arena, 30 * MIB, &held), 0);
    sound();
    assert_int_equal(hold(arena, 2 * MIB, &held), 0); /* 2 MiB are left */
    assert_int_equal(hold(arena, 2 * MIB, &held), -ENOMEM);
    sound();
}

static void a_view_that_cannot_be_mapped_leaves_nothing(void **state)
{
    (void)state;
    fragment();
    size_t mapped = fake_pages.mapped, reserved = fake_pages.reserved;
    fake_pages.fail_map = 1;
    fake_pages.fail_map_rc = -ENOMEM;
    held_t one = get(30 * MIB); /* by growth */
    assert_true(in_range(one.address));
    assert_int_equal(fake_pages.reserved, reserved);
    assert_int_equal(fake_pages.mapped, mapped + 15);
    assert_true(arena->range->no_views);
    put(&one);
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX);
    sound();
}

static void so_does_one_that_gets_no_new_pages(void **state)
{
    held_t held;
    (void)state;
    end(state);
    start_with(126 * MIB, SIZE_MAX); /* 4 MiB are left */
    fragment();
    assert_int_equal(hold(arena, 40 * MIB, &held), -ENOMEM);
    sound();
    assert_int_equal(arena->range->view_count, 0);
    assert_int_equal(stats().ready_bytes, 0); /* it went, and did not suffice */
}

static void the_context_ends(void)
{
    fake_pages.on_map = NULL;
    fake_forget_owners();
    ca_arena_retire(arena);
}

static void a_context_that_ends_while_a_view_is_made_leaves_nothing(void **state)
{
    held_t held;
    (void)state;
    fragment();
    fake_pages.on_map = the_context_ends;
    fake.retires = true;
    assert_int_equal(hold(arena, 30 * MIB, &held), -EIO);
    assert_int_equal(fake_pages.pages, 0);
    assert_int_equal(fake_pages.mapped, 0);
    assert_int_equal(fake_pages.reserved, 0);
}

static int count_bytes(void *arg, uint64_t at, size_t bytes, bool sure)
{
    *(size_t *)arg += bytes;
    assert_true(sure);
    assert_true(ca_range_holds(at) && ca_range_holds(at + bytes - 1));
    return 0;
}

static void a_walk_visits_views_too(void **state)
{
    size_t bytes = 0;
    (void)state;
    fragment();
    get(30 * MIB);
    assert_int_equal(ca_range_walk(arena, count_bytes, &bytes), 0);
    assert_int_equal(bytes, 90 * MIB);
}

static int context;

static void submit(uint64_t stream)
{
    ca_order_before(stream, &context, CA_WORK);
    ca_order_after(stream, CA_WORK);
    fake.quiet = false;
}

/* Three pieces of ten MiB, in flight behind one fence, between others. */
static void fragment_in_order(void **state)
{
    const ca_upstream_t *upstream = arena->upstream;
    end(state);
    fake.auto_pass = false;
    fake.in_order = true;
    params.reuse = CA_POOL_REUSE_ORDER;
    ca_order_reset_after_fork();
    arena = ca_arena_create(upstream, &context, &params);
    ca_order_start(upstream, &context, 1000);
    get(62 * MIB);
    for (int i = 0; i < PIECES; i++)
        pieces[i] = get(10 * MIB);
    submit(10);
    uint64_t fences = fake.recorded;
    for (int i = 0; i < PIECES; i += 2) {
        put(&pieces[i]);
        fake.quiet = true;
    }
    assert_int_equal(fake.recorded, fences + 1);
    fake_log();
}

/* In order a view may be made of what is in flight; nothing there is unmapped before it has passed.
 */
static void views_in_order(void **state)
{
    fragment_in_order(state);
    held_t one = get(30 * MIB);
    assert_null(strpbrk(fake_log(), "WQUF")); /* nothing was waited for */
    assert_false(in_range(one.address));
    put(&one);
    fake.quiet = false;
    get(MIB);
    fake_log();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 28 * MIB);
    const char *log = fake_log(), *waited = strchr(log, 'W'), *unmapped = strchr(log, 'U');
    assert_true(waited && unmapped && waited < unmapped);
    ca_order_forget(&context);
}

static void in_thread(void *(*body)(void *))
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *submits_elsewhere(void *arg)
{
    submit(11);
    return arg;
}

static size_t trimmed;

static void *trims(void *arg)
{
    trimmed = ca_arena_trim(arena, SIZE_MAX);
    return arg;
}

/* A second thread's second stream ends order: what is in flight is owed all the same. */
static void a_view_shares_a_fence_with_its_pieces(void **state)
{
    fragment_in_order(state);
    held_t one = get(30 * MIB);
    uint64_t address = one.address;
    for (int i = 0; i < 3; i++) {
        fake_log();
        put(&one);
        one = get(30 * MIB);
        assert_int_equal(one.address, address);
        assert_string_equal(fake_log(), "");
    }
    put(&one);
    get(MIB); /* of its pages, whose others are ready now, and in flight */
    in_thread(submits_elsewhere);
    assert_false(ca_order_may(&context));
    fake_log();
    in_thread(trims); /* which would not have slept for it */
    assert_int_equal(trimmed, 0);
    assert_null(strpbrk(fake_log(), "WU"));
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 28 * MIB);
    assert_non_null(strchr(fake_log(), 'U'));
    ca_order_forget(&context);
}

static void frees_what_is_in_flight(void)
{
    fake_pages.on_unmap = NULL;
    submit(10);
    let_go(&pieces[1]);
}

/* What comes while pages are unmapped has a fence of its own, and is none of them. */
static void what_is_freed_while_pages_go_is_not_among_them(void **state)
{
    fragment_in_order(state);
    get(10 * MIB); /* of what is in flight */
    fake_pages.on_unmap = frees_what_is_in_flight;
    fake_log();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 20 * MIB);
    assert_int_equal(fake.errors, 0);
    sound();
    ca_order_forget(&context);
}

/* --- random programs -------------------------------------------------------------------------- */

static uint64_t state_of_random;

static size_t below(size_t bound)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return (size_t)((state_of_random * 0x2545f4914f6cdd1du >> 16) % bound);
}

#define HELD 64
#define OPERATIONS 3000

static void random_program(uint64_t seed)
{
    static held_t held[HELD];
    unsigned views = 0;
    bool pinned = false;
    start_with(512 * MIB, below(2) ? 400 * MIB : SIZE_MAX);
    fake.lag = seed % 4;
    state_of_random = seed * 0x9e3779b97f4a7c15u + 1;
    memset(held, 0, sizeof held);
    for (unsigned n = 0; n < OPERATIONS; n++) {
        held_t *one = &held[below(HELD)];
        size_t bytes = below(4) ? (below(60) + 1) * MIB / 2 : (below(2000) + 1) * KIB;
        if (one->block) {
            let_go(one);
        } else if (hold(arena, bytes, one) == 0) {
            views += arena->range && !in_range(one->address) && ca_range_holds(one->address);
        }
        if (below(8) == 0)
            fake_pass(fake.recorded - below(4) % (fake.recorded + 1));
        if (below(300) == 0)
            ca_arena_trim(arena, below(2) ? SIZE_MAX : below(100) * MIB);
        if (below(200) == 0 && n % 2)
            ca_arena_pin(arena, pinned = !pinned);
        if (below(150) == 0) {
            fake_pages.fail_map = (unsigned)below(2) * 40;
            fake_pages.fail_map_rc = -EAGAIN; /* what the driver says of a capture */
            fake.fail_at[FAKE_ALLOC] = 1 + below(4);
            fake.fail_rc[FAKE_ALLOC] = -ENOMEM;
        }
        if (n % 50 == 0)
            sound();
    }
    for (unsigned i = 0; i < HELD; i++)
        let_go(&held[i]);
    if (pinned)
        ca_arena_pin(arena, false);
    fake_calm_down();
    fake.lag = 0;
    fake_pages.fail_map = 0;
    sound();
    ca_arena_trim(arena, SIZE_MAX);
    sound();
    assert_int_equal(fake.used, 0);
    assert_true(views > 25);
}

static void random_programs(void **state)
{
    ONE_THREAD();
    for (uint64_t seed = 1; seed <= 4; seed++) {
        end(state);
        random_program(seed);
    }
}

#define test(name) cmocka_unit_test_setup_teardown(name, start, end)

/* --- a stream at home, see pool/fence/stream.h ------------------------------------------------ */

static ca_stream_t *home, *other;

static held_t get_on(ca_stream_t *stream, size_t bytes)
{
    held_t held = {.bytes = bytes};
    assert_int_equal(ca_arena_alloc(arena, stream, bytes, &held.block, &held.address, &held.reused),
                     0);
    fake_use(held.address, bytes);
    sound();
    return held;
}

static void free_at_home(ca_block_t *block)
{
    ca_arena_free_on(block, home);
}

static void put_at_home(held_t *held)
{
    let_go_by(held, free_at_home);
    sound();
}

/* 30 MiB are ready, in three pieces. */
static void start_at_home(void)
{
    fake.in_order = true;
    fragment();
    home = ca_arena_stream(arena, (void *)1, false);
    other = ca_arena_stream(arena, (void *)2, false);
    for (unsigned i = 0; i <= 4 * CA_HOME_AFTER; i++) {
        held_t held = get_on(home, 4096);
        put_at_home(&held);
    }
    assert_ptr_equal(arena->home, home);
    fake_pass_all();
    fake.auto_pass = false;
}

/* The pages of a view that was freed at home are pending once home is left; so is nothing of its
 * own addresses, though work may use them. */
static void no_view_goes_by_which_home_s_work_may_come(void **state)
{
    (void)state;
    start_at_home();
    const ca_range_t *range = arena->range;
    held_t held[3], one;
    for (size_t left = 0; left < 4; left++) { /* one of each three is live, or none */
        for (size_t i = 0; i < 3; i++)
            held[i] = get_on(home, 10 * MIB);
        for (size_t i = 0; i < 3; i++)
            if (i != left)
                put_at_home(&held[i]);
        one = get_on(home, (left < 3 ? 20 : 30) * MIB);
        assert_false(in_range(one.address));
        put_at_home(&one);
        if (left < 3)
            put_at_home(&held[left]);
    }
    held[0] = get_on(home, 2 * MIB);
    one = get_on(home, 28 * MIB);
    put_at_home(&one);
    put_at_home(&held[0]);
    assert_true(range->view_bytes + 20 * MIB > CA_VIEWS_MOST * range->held);
    assert_ptr_equal(arena->home, home);
    held_t first = get_on(other, 512);
    assert_null(arena->home);
    fake.stuck = fake.recorded; /* of what was at home */
    put(&pieces[1]);
    put(&pieces[3]);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    fake_log();
    one = get_on(other, 20 * MIB);
    assert_null(strchr(fake_log(), 'U'));
    fake.stuck = 0;
    put(&one);
    put(&first);
    fake_pass_all();
}

/* In pin mode a view's block is ready for requests of just its size. */
static void a_pinned_view_is_in_flight_for_others(void **state)
{
    (void)state;
    start_at_home();
    held_t one = get_on(home, 30 * MIB);
    uint64_t address = one.address;
    assert_false(in_range(address));
    ca_arena_pin(arena, true);
    put_at_home(&one);
    held_t two = get_on(other, 30 * MIB);
    assert_int_not_equal(two.address, address);
    let_go(&two);
    fake_pass_all();
    ca_arena_pin(arena, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(no_view_goes_by_which_home_s_work_may_come),
        test(a_pinned_view_is_in_flight_for_others),
        test(pieces_serve_as_one),
        test(smaller_requests_get_none),
        test(a_view_serves_again_without_a_call),
        test(it_serves_no_request_that_leaves_pages),
        test(it_serves_nothing_from_the_middle_of_a_page),
        test(its_memory_serves_by_its_first_address_meanwhile),
        test(what_is_not_needed_of_its_last_page_stays_ready),
        test(new_pages_complete_a_view),
        test(a_view_that_is_freed_waits_for_its_fence),
        test(a_view_on_its_way_is_mapped_again_after_a_walk),
        test(what_a_device_on_the_bus_has_keeps_its_view),
        test(pages_that_go_take_their_views_along),
        test(the_oldest_views_are_given_up),
        test(pinned_views_stay_whole),
        test(none_is_made_in_pin_mode),
        test(in_pin_mode_memory_that_is_short_is_taken_apart),
        test(the_limit_counts_no_addresses),
        test(where_the_device_is_full_pieces_serve),
        test(a_view_that_cannot_be_mapped_leaves_nothing),
        test(so_does_one_that_gets_no_new_pages),
        test(a_context_that_ends_while_a_view_is_made_leaves_nothing),
        test(a_walk_visits_views_too),
        test(views_in_order),
        test(a_view_shares_a_fence_with_its_pieces),
        test(what_is_freed_while_pages_go_is_not_among_them),
        test(random_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
