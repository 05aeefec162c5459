/* Ranges: memory that grows and shrinks page by page; see pool/range/range.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_pages.h"
#include "one_arena.h"
#include "pool/arena.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"

#define DEVICE (2048 * MIB)

static ca_arena_params_t params;

static void start_on(size_t device, size_t limit)
{
    params = fake_params;
    params.expandable = true;
    params.limit = limit;
    params.device_bytes = device;
    fake_reset(device, 2 * device);
    fake.auto_pass = true;
    arena = ca_arena_create(fake_with_pages(), NULL, &params);
}

static void start_with(size_t limit)
{
    start_on(DEVICE, limit);
}

static int start(void **state)
{
    (void)state;
    start_with(SIZE_MAX);
    return 0;
}

/* Nothing is left in the device, whatever was live. */
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

/* Fills what there is of plain segments, so that all else comes from the range. */
static held_t begin(void)
{
    held_t first = get(62 * MIB);
    assert_null(arena->range);
    return first;
}

static void a_small_program_has_no_range(void **state)
{
    (void)state;
    for (int i = 0; i < 15; i++)
        get(4 * MIB);
    assert_null(arena->range);
    assert_int_equal(fake_pages.maps, 0);
}

static void a_range_grows_by_what_is_needed(void **state)
{
    (void)state;
    begin();
    size_t before = stats().reserved_bytes;
    held_t one = get(20 * MIB), two = get(7 * MIB);
    assert_true(ca_range_holds(one.address) && ca_range_holds(two.address));
    assert_int_equal(stats().reserved_bytes - before, 28 * MIB);
    assert_int_equal(two.address, one.address + 20 * MIB);
    /* What is ready at the end counts. */
    put(&two);
    fake_pass_all();
    held_t three = get(10 * MIB);
    assert_int_equal(three.address, one.address + 20 * MIB);
    assert_int_equal(stats().reserved_bytes - before, 30 * MIB);
}

/* Or threads would keep pages between large blocks. */
static void small_blocks_lie_apart_for_good(void **state)
{
    (void)state;
    end(state);
    start_with(SIZE_MAX);
    arena->params.warmup = 100;
    begin();
    held_t large = get(20 * MIB), small = get(64 * KIB), other = get(65 * KIB);
    assert_true(ca_range_holds(large.address) && ca_range_holds(other.address));
    assert_false(ca_range_holds(small.address));
    for (int i = 0; i < 300; i++) {
        put(&small);
        small = get(64 * KIB);
    }
    assert_true(arena->prefers_memory && !arena->warming_up);
}

static void pages_are_larger_where_more_is_held(void **state)
{
    (void)state;
    end(state);
    start_on(4 * DEVICE, SIZE_MAX);
    begin();
    get(100 * MIB);
    size_t small = arena->range->pages[0].page.bytes;
    get(900 * MIB);
    assert_int_equal(small, 2 * MIB);
    assert_int_equal(arena->range->pages[arena->range->count - 1].page.bytes, 8 * MIB);
}

/* One block that stays is to spoil no large part of a small device, or of what the limit leaves. */
static void pages_are_a_small_part_of_the_device(void **state)
{
    (void)state;
    begin();
    get(1900 * MIB);
    assert_int_equal(arena->range->pages[arena->range->count - 1].page.bytes, 2 * MIB);
    end(state);
    start_on(8 * DEVICE, 2 * DEVICE);
    begin();
    get(1900 * MIB);
    assert_int_equal(arena->range->pages[arena->range->count - 1].page.bytes, 4 * MIB);
}

#define ROW 16

/* Blocks of `bytes` in a row, of which every other one goes. */
static void make_row(size_t bytes)
{
    held_t row[ROW];
    for (int i = 0; i < ROW; i++)
        row[i] = get(bytes);
    for (int i = 0; i < ROW; i += 2)
        put(&row[i]);
    fake_pass_all();
    ca_arena_trim(arena, 0);
}

/* What stays of blocks of nearly a page spoils no page beside its own. */
static void blocks_of_nearly_a_page_have_it(void **state)
{
    (void)state;
    begin();
    get(20 * MIB);
    get(65 * KIB); /* the next one does not begin behind this */
    make_row(2 * MIB - 64 * KIB);
    assert_int_equal(ca_range_idle(arena), ROW / 2 * 2 * MIB);
    make_row(4 * MIB - 128 * KIB);
    assert_int_equal(ca_range_idle(arena), ROW / 2 * 6 * MIB);
    sound();
}

/* They take no memory that the program would have had without. */
static void they_do_without_where_memory_is_short(void **state)
{
    (void)state;
    end(state);
    start_with(128 * MIB);
    begin();
    held_t first = get(30 * MIB);
    get(22 * MIB);
    held_t low = get(MIB + 256 * KIB); /* of a page; six are left */
    fake.auto_pass = false;
    put(&first);
    fake_log();
    held_t held = get(12 * MIB + 716 * KIB);
    assert_int_equal(held.address, low.address + MIB + 256 * KIB);
    assert_null(strpbrk(fake_log(), "CSW")); /* nor is anything waited for */
    assert_int_equal(stats().reserved_bytes, 128 * MIB);
    sound();
}

/* As long as there is little, smaller blocks lie where the others end. */
static void a_small_part_of_the_device_is_packed(void **state)
{
    (void)state;
    end(state);
    start_on(8 * DEVICE, SIZE_MAX);
    begin();
    held_t one = get(20 * MIB), two = get(2 * MIB - 64 * KIB), three = get(2 * MIB - 64 * KIB);
    assert_int_equal(two.address, one.address + 20 * MIB);
    assert_int_equal(three.address, two.address + 2 * MIB - 64 * KIB);
}

static void pages_go_back_whatever_lives_beside_them(void **state)
{
    (void)state;
    begin();
    held_t low = get(20 * MIB), middle = get(31 * MIB), high = get(7 * MIB);
    size_t before = stats().reserved_bytes;
    put(&middle);
    fake_pass_all();
    /* 20 to 51 MiB: whole pages up to 50. */
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 30 * MIB);
    sound();
    assert_int_equal(before - stats().reserved_bytes, 30 * MIB);
    assert_int_equal(fake.used, stats().reserved_bytes);
    /* The hole is filled again where that is enough. */
    fake_log();
    held_t again = get(31 * MIB);
    assert_int_equal(again.address, low.address + 20 * MIB);
    assert_int_equal(stats().reserved_bytes, before);
    put(&again), put(&low), put(&high);
}

static void a_trim_gives_no_more_than_is_asked(void **state)
{
    (void)state;
    begin();
    held_t one = get(64 * MIB);
    put(&one);
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, 5 * MIB), 6 * MIB);
    sound();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 58 * MIB);
    assert_int_equal(arena->range->count, 0);
    sound();
    held_t two = get(64 * MIB);
    assert_int_equal(two.address, one.address);
}

static void idle_pages_count_as_idle(void **state)
{
    (void)state;
    begin();
    held_t one = get(31 * MIB);
    get(MIB);
    put(&one);
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().idle_bytes, 30 * MIB);
    ca_arena_pin(arena, true);
    assert_int_equal(stats().idle_bytes, 0);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    ca_arena_pin(arena, false);
}

static void pages_that_are_idle_for_long_decay(void **state)
{
    (void)state;
    begin();
    held_t one = get(40 * MIB), two;
    put(&one);
    fake_pass_all();
    ca_arena_tick(arena);
    two = get(10 * MIB); /* that much is idle no more */
    ca_arena_tick(arena);
    put(&two);
    fake_pass_all();
    ca_arena_tick(arena);
    assert_int_equal(ca_arena_decay(arena, 2, false), 0);
    ca_arena_tick(arena);
    ca_arena_tick(arena);
    assert_int_equal(ca_arena_decay(arena, 2, false), 30 * MIB);
    sound();
    assert_int_equal(ca_arena_decay(arena, 2, false), 0);
    for (int i = 0; i < 4; i++)
        ca_arena_tick(arena);
    assert_int_equal(ca_arena_decay(arena, 2, false), 10 * MIB);
}

static void the_limit_counts_pages(void **state)
{
    held_t held, other;
    (void)state;
    end(state);
    start_with(128 * MIB);
    begin();
    get(30 * MIB);
    other = get(30 * MIB);
    assert_int_equal(hold(arena, 8 * MIB, &held), -ENOMEM);
    sound();
    get(6 * MIB);
    assert_int_equal(stats().reserved_bytes, 128 * MIB);
    put(&other);
    fake_pass_all();
    get(30 * MIB);
    assert_int_equal(stats().reserved_peak, 128 * MIB);
}

static void a_full_device_is_used_to_the_last_page(void **state)
{
    held_t held;
    (void)state;
    end(state);
    start_on(4 * DEVICE, SIZE_MAX);
    begin();
    get(1900 * MIB + 3 * DEVICE);
    get(82 * MIB); /* in pages of 8 MiB less would fit */
    assert_true(fake.used > 4 * DEVICE - 4 * MIB);
    assert_int_equal(hold(arena, 8 * MIB, &held), -ENOMEM);
    sound();
}

static void what_cannot_be_mapped_leaves_nothing(void **state)
{
    (void)state;
    begin();
    size_t used = fake.used;
    fake_pages.fail_map = 1;
    fake_pages.fail_map_rc = -EINVAL;
    held_t held = get(20 * MIB); /* elsewhere */
    assert_false(ca_range_holds(held.address));
    assert_int_equal(fake.used, used + 20 * MIB);
    assert_int_equal(fake_pages.pages, 0);
}

static void where_mappings_run_out_there_is_other_memory(void **state)
{
    (void)state;
    begin();
    held_t one = get(20 * MIB);
    fake_pages.fail_map = 1;
    fake_pages.fail_map_rc = -ENOMEM;
    held_t two = get(20 * MIB);
    assert_true(ca_range_holds(one.address));
    assert_false(ca_range_holds(two.address));
    assert_int_equal(fake_pages.pages, 10);
}

static void a_device_without_pages_has_plain_segments(void **state)
{
    (void)state;
    fake_pages.none = true;
    begin();
    held_t held = get(20 * MIB);
    assert_false(ca_range_holds(held.address));
    assert_false(arena->params.expandable);
    assert_null(strpbrk(fake_log(), "MV"));
}

static void fewer_addresses_are_reserved_where_many_are_refused(void **state)
{
    (void)state;
    fake_pages.space = 1200 * MIB;
    begin();
    held_t held = get(20 * MIB);
    assert_true(ca_range_holds(held.address));
    assert_int_equal(arena->range->segment->bytes, 1152 * MIB);
    /* All of them are used: then plain memory comes. */
    get(1132 * MIB);
    assert_null(arena->range->holes);
    held = get(20 * MIB);
    assert_false(ca_range_holds(held.address));
}

/* Another thread looks. */
static void look(void)
{
    fake_pages.on_unmap = NULL;
    sound();
    assert_int_equal(stats().reserved_bytes, fake.used);
}

static void what_leaves_counts_until_it_has_left(void **state)
{
    (void)state;
    begin();
    held_t held = get(20 * MIB);
    put(&held);
    fake_pass_all();
    fake_pages.on_unmap = look;
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 20 * MIB);
    assert_null(fake_pages.on_unmap);
}

static void what_cannot_be_unmapped_stays(void **state)
{
    (void)state;
    begin();
    held_t held = get(20 * MIB);
    put(&held);
    fake_pass_all();
    fake_pages.fail_unmap = 1;
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    sound();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 20 * MIB);
}

static int visit(void *arg, uint64_t at, size_t bytes, bool sure)
{
    uint64_t *rows = arg;
    assert_true(sure);
    rows[2 * rows[20]] = at;
    rows[2 * rows[20] + 1] = bytes;
    rows[20]++;
    assert_int_equal(ca_range_give(arena, MIB), 0);
    return 0;
}

static void a_walk_visits_all_that_is_mapped(void **state)
{
    uint64_t rows[21] = {0};
    (void)state;
    assert_int_equal(ca_range_walk(arena, visit, rows), 0);
    begin();
    held_t low = get(20 * MIB), middle = get(30 * MIB);
    get(10 * MIB);
    put(&middle);
    fake_pass_all();
    ca_arena_trim(arena, SIZE_MAX);
    assert_int_equal(ca_range_walk(arena, visit, rows), 0);
    assert_int_equal(rows[20], 2);
    assert_true(rows[0] == low.address && rows[1] == 20 * MIB);
    assert_true(rows[2] == low.address + 50 * MIB && rows[3] == 10 * MIB);
}

static size_t sure_rows, other_rows;

static int count_row(void *arg, uint64_t at, size_t bytes, bool sure)
{
    (void)arg;
    assert_true(at && bytes);
    ++*(sure ? &sure_rows : &other_rows);
    return 0;
}

static void walk_meanwhile(void)
{
    fake_pages.on_map = NULL;
    assert_int_equal(ca_range_walk(arena, count_row, NULL), 0);
}

/* They may be mapped before the walk comes by, or after it. */
static void pages_on_their_way_are_walked_one_by_one(void **state)
{
    (void)state;
    begin();
    get(20 * MIB);
    sure_rows = other_rows = 0;
    fake_pages.on_map = walk_meanwhile;
    get(10 * MIB);
    assert_int_equal(sure_rows, 1);
    assert_int_equal(other_rows, 5);
}

static void pinned_pages_do_not_go(void **state)
{
    (void)state;
    begin();
    held_t low = get(20 * MIB), middle = get(20 * MIB), high = get(20 * MIB);
    ca_range_pin(middle.address + MIB, 10 * MIB); /* six pages */
    put(&low);
    put(&middle);
    put(&high);
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 48 * MIB);
    sound();
    assert_int_equal(arena->range->held, 12 * MIB);
    assert_int_equal(arena->range->pages[0].at, middle.address);
}

static void a_range_that_has_ended_grows_no_more(void **state)
{
    (void)state;
    begin();
    held_t one = get(20 * MIB);
    ca_ranges_end();
    held_t two = get(20 * MIB);
    assert_false(ca_range_holds(two.address));
    put(&one);
    fake_pass_all();
    held_t again = get(20 * MIB); /* what is there serves */
    assert_int_equal(again.address, one.address);
    atomic_store(&ca_ranges_ended, false);
}

static void pages_that_nothing_lives_in_count_as_idle(void **state)
{
    (void)state;
    begin();
    get(21 * MIB);
    held_t high = get(20 * MIB);
    size_t before = stats().idle_bytes;
    fake.auto_pass = false;
    put(&high); /* in flight: 21 to 41, in pages 22 to 42 */
    assert_int_equal(stats().idle_bytes - before, 20 * MIB);
    assert_int_equal(ca_range_idle(arena), 0);
}

/* What is ready in order alone is in flight. */
static void what_is_in_flight_is_not_unmapped(void **state)
{
    static int context;
    const ca_upstream_t *upstream = arena->upstream;
    (void)state;
    end(state);
    fake.auto_pass = false;
    fake.in_order = true;
    params.reuse = CA_POOL_REUSE_ORDER;
    ca_order_reset_after_fork();
    arena = ca_arena_create(upstream, &context, &params);
    ca_order_start(upstream, &context, 1000);
    begin();
    held_t held = get(20 * MIB);
    ca_order_before(10, &context, CA_WORK);
    ca_order_after(10, CA_WORK);
    put(&held);
    get(MIB); /* of what is in flight: the rest is ready, too */
    fake_log();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 18 * MIB);
    const char *log = fake_log(), *waited = strchr(log, 'W'), *unmapped = strchr(log, 'U');
    assert_true(waited && unmapped && waited < unmapped);
    ca_order_forget(&context);
}

static held_t other_thread_has;
static void another_thread_frees(void)
{
    fake_pages.on_map = NULL;
    let_go(&other_thread_has);
    fake_pass_all();
    ca_arena_trim(arena, 0);
}

static void neighbours_that_become_ready_meanwhile_merge(void **state)
{
    (void)state;
    begin();
    other_thread_has = get(20 * MIB);
    held_t ready = get(6 * MIB);
    put(&ready);
    fake_pass_all();
    fake_pages.on_map = another_thread_frees;
    held_t grown = get(16 * MIB);
    assert_int_equal(grown.address, other_thread_has.address + 20 * MIB);
    sound();
}

static void the_context_ends(void)
{
    fake_pages.on_map = NULL;
    fake_forget_owners();
    ca_arena_retire(arena);
}

static void a_context_that_ends_while_pages_come_leaves_nothing(void **state)
{
    held_t held;
    (void)state;
    begin();
    get(20 * MIB);
    fake_pages.on_map = the_context_ends;
    fake.retires = true;
    assert_int_equal(hold(arena, 20 * MIB, &held), -EIO);
    assert_int_equal(fake_pages.pages, 0);
    assert_int_equal(fake_pages.mapped, 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_small_program_has_no_range),
        test(a_range_grows_by_what_is_needed),
        test(small_blocks_lie_apart_for_good),
        test(pages_are_larger_where_more_is_held),
        test(pages_are_a_small_part_of_the_device),
        test(blocks_of_nearly_a_page_have_it),
        test(they_do_without_where_memory_is_short),
        test(a_small_part_of_the_device_is_packed),
        test(pages_go_back_whatever_lives_beside_them),
        test(a_trim_gives_no_more_than_is_asked),
        test(idle_pages_count_as_idle),
        test(pages_that_are_idle_for_long_decay),
        test(the_limit_counts_pages),
        test(a_full_device_is_used_to_the_last_page),
        test(what_cannot_be_mapped_leaves_nothing),
        test(where_mappings_run_out_there_is_other_memory),
        test(a_device_without_pages_has_plain_segments),
        test(fewer_addresses_are_reserved_where_many_are_refused),
        test(what_leaves_counts_until_it_has_left),
        test(what_cannot_be_unmapped_stays),
        test(a_walk_visits_all_that_is_mapped),
        test(pages_on_their_way_are_walked_one_by_one),
        test(pinned_pages_do_not_go),
        test(a_range_that_has_ended_grows_no_more),
        test(pages_that_nothing_lives_in_count_as_idle),
        test(what_is_in_flight_is_not_unmapped),
        test(neighbours_that_become_ready_meanwhile_merge),
        test(a_context_that_ends_while_pages_come_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
