/* Memory that other processes see: not handed out again, given back with its segment; and segments
 * of their own for what may be exported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/arena.h"
#include "pool/range/export.h"

static ca_arena_params_t params;

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    ca_pool_reset_requests();
    params = fake_params;
    arena = NULL;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ca_pool_dedicate(false);
    if (arena)
        ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void start(void)
{
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    assert_non_null(arena);
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    assert_int_equal(now.live_bytes + now.pending_bytes + now.ready_bytes + now.exported_bytes,
                     now.reserved_bytes);
    return now;
}

static void exported(uint64_t address, ca_export_t what)
{
    assert_int_equal(ca_pool_export(address), what);
    sound();
}

/* All that is not live is ready, or was exported. */
static void settle(void)
{
    for (unsigned i = 0; i < 2; i++) {
        fake_pass_all();
        ca_arena_trim(arena, 0);
    }
    assert_int_equal(stats().pending_bytes, 0);
    sound();
    fake_log();
}

/* Whether any memory of the arena that is ready overlaps what was at `held`: all of it is taken, in
 * pieces. */
static bool handed_out_again(const held_t *held)
{
    static held_t pieces[256];
    size_t count = 0, piece = 256 * KIB;
    bool again = false;

    while (stats().largest_ready >= piece && count < 256)
        pieces[count++] = get(piece);
    for (size_t i = 0; i < count; i++) {
        again |= pieces[i].address < held->address + held->bytes &&
                 held->address < pieces[i].address + piece;
        put(&pieces[i]);
    }
    settle();
    return again;
}

/* --- what was exported ------------------------------------------------------------------------ */

static void an_exported_block_is_not_handed_out_again(void **state)
{
    (void)state;
    start();
    held_t a = get(MIB);
    assert_int_equal(ca_pool_exports(a.address), CA_EXPORT_BASE);
    exported(a.address, CA_EXPORT_BASE);
    held_t b = get(MIB);
    assert_int_equal(ca_pool_exports(b.address), CA_EXPORT_INTERIOR);
    assert_int_equal(stats().exported_bytes, 0); /* as long as it lives */
    put(&a);
    assert_int_equal(stats().exported_bytes, 0); /* while its work may be under way */
    settle();
    assert_int_equal(stats().exported_bytes, MIB);
    assert_false(handed_out_again(&a));
    put(&b);
    settle();
    assert_true(handed_out_again(&b)); /* it was not meant */
    assert_int_equal(stats().exported_bytes, MIB);
}

/* The driver would have it back: with it, a program that exports again and again runs for ever. */
static void exported_memory_comes_before_an_out_of_memory(void **state)
{
    (void)state;
    fake_reset(64 * MIB, 0); /* the fake does not know who looks at what */
    fake.auto_pass = true;
    start();
    held_t pin = get(4096);
    for (unsigned i = 0; i < 300; i++) { /* all in the one segment */
        held_t held = get(MIB);
        ca_pool_export(pin.address);
        put(&held);
        settle();
    }
    assert_in_range(stats().exported_bytes, MIB, 64 * MIB);
    put(&pin);
}

/* Without anything that lives beside it, it is the driver's again as soon as its work is done. */
static void exported_memory_goes_back_before_the_next_growth(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 0);
    start();
    for (unsigned i = 0; i < 100; i++) {
        held_t held = get(30 * MIB + 4096);
        exported(held.address, CA_EXPORT_BASE);
        put(&held);
        fake_pass_all();
        assert_in_range(stats().reserved_bytes, 0, 80 * MIB);
    }
    assert_in_range(fake.calls[FAKE_FREE], 98, 100);
}

static void a_large_free_gives_back_what_was_exported(void **state)
{
    (void)state;
    fake.auto_pass = true;
    start();
    for (unsigned i = 0; i < 10; i++) {
        held_t held = get(30 * MIB);
        exported(held.address, CA_EXPORT_BASE);
        put(&held);
        held_t other = get(5 * MIB);
        put(&other);
        assert_int_equal(stats().exported_bytes, 0);
    }
    assert_in_range(stats().reserved_bytes, 0, 60 * MIB);
}

static void the_base_may_mean_every_live_block(void **state)
{
    (void)state;
    start();
    held_t a = get(MIB), b = get(MIB), before = get(MIB);
    put(&before);
    settle();
    exported(a.address, CA_EXPORT_BASE);
    held_t after = get(MIB);
    assert_int_equal(after.address, before.address); /* the rest goes on to be used */
    put(&a), put(&b), put(&after);
    settle();
    assert_int_equal(stats().exported_bytes, 2 * MIB);
    assert_false(handed_out_again(&a));
    assert_false(handed_out_again(&b));
    assert_true(handed_out_again(&after));
}

static void an_address_inside_a_block_may_mean_every_live_block(void **state)
{
    (void)state;
    start();
    held_t a = get(MIB), b = get(MIB), c = get(MIB);
    exported(b.address + 4096, CA_EXPORT_INTERIOR);
    held_t after = get(MIB);
    put(&a), put(&b), put(&c);
    settle();
    assert_int_equal(stats().exported_bytes, 3 * MIB);
    put(&after);
}

/* As a program may that exports what it has freed: the plain driver would have refused. */
static void where_nothing_lives_the_segment_is_exported(void **state)
{
    (void)state;
    start();
    held_t a = get(MIB);
    exported(a.address + 2 * MIB, CA_EXPORT_INTERIOR);
    put(&a);
    settle();
    assert_int_equal(stats().exported_bytes, MIB);
    assert_int_equal(stats().idle_bytes, stats().reserved_bytes);
}

static void an_export_counts_once(void **state)
{
    (void)state;
    start();
    held_t a = get(MIB), b = get(MIB);
    for (unsigned i = 0; i < 3; i++)
        exported(b.address, CA_EXPORT_INTERIOR);
    ca_block_t *block = b.block;
    put(&b);
    ca_arena_free(block); /* a free that came too late finds nothing live */
    sound();
    settle();
    assert_int_equal(stats().exported_bytes, MIB);
    exported(b.address, CA_EXPORT_INTERIOR);
    put(&a);
}

static void a_free_on_a_stream_keeps_it_too(void **state)
{
    (void)state;
    start();
    ca_stream_t *stream = ca_arena_stream(arena, (void *)1, false);
    held_t a = get(MIB), b = get(MIB), again;
    exported(b.address, CA_EXPORT_INTERIOR);
    ca_arena_free_on(b.block, stream);
    assert_int_equal(
        ca_arena_alloc(arena, stream, MIB, &again.block, &again.address, &again.reused), 0);
    assert_true(again.address != b.address);
    settle();
    assert_int_equal(stats().exported_bytes, MIB);
    put(&a);
}

/* Not while anything lives there; then at once, by whatever gives memory back. */
static void exported_segments_go_back_with_their_last_block(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        fake_reset(64 * MIB, 0);
        start();
        held_t a = get(3 * MIB), beside = get(MIB);
        exported(a.address, CA_EXPORT_BASE);
        put(&a);
        settle();
        assert_int_equal(stats().idle_bytes, 0);
        assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
        assert_int_equal(fake.calls[FAKE_FREE], 0);
        put(&beside);
        settle();
        assert_int_equal(stats().idle_bytes, stats().reserved_bytes);
        ca_arena_tick(arena);
        ca_arena_tick(arena);
        held_t more = {0};
        if (how == 0)
            assert_true(ca_arena_trim(arena, SIZE_MAX) > 0);
        else if (how == 1)
            assert_true(ca_arena_decay(arena, 0, false) > 0);
        else
            more = get(60 * MIB);
        sound();
        assert_int_equal(fake.calls[FAKE_FREE], 1);
        assert_int_equal(stats().exported_bytes, 0);
        if (more.block)
            put(&more);
        ca_arena_retire(arena);
        arena = NULL;
    }
}

/* Nor does its work: it is pending before. */
static void exported_memory_in_flight_does_not_go_back(void **state)
{
    (void)state;
    start();
    held_t a = get(30 * MIB), b = get(30 * MIB);
    exported(a.address, CA_EXPORT_BASE);
    put(&a);
    put(&b);
    held_t more = get(90 * MIB);
    assert_int_equal(fake.calls[FAKE_FREE], 0);
    fake_pass_all();
    put(&more);
}

static void what_is_not_ours_is_not_exported(void **state)
{
    (void)state;
    start();
    held_t a = get(MIB);
    exported(FAKE_BASE - MIB, CA_EXPORT_NONE);
    ca_arena_retire(arena);
    arena = NULL;
    assert_int_equal(ca_pool_export(a.address), CA_EXPORT_NONE);
}

/* --- segments of their own -------------------------------------------------------------------- */

static void dedicated_blocks_begin_where_their_segment_does(void **state)
{
    (void)state;
    start();
    held_t before = get(2 * MIB), shared = get(2 * MIB);
    ca_pool_dedicate(true);
    held_t a = get(2 * MIB), b = get(5 * MIB), small = get(2 * MIB - CA_PAGE);
    exported(before.address, CA_EXPORT_BASE);
    exported(shared.address, CA_EXPORT_INTERIOR);
    exported(a.address, CA_EXPORT_BASE);
    exported(b.address, CA_EXPORT_BASE);
    assert_int_equal(ca_block_bytes(b.block), 6 * MIB); /* whole units, as the driver's pages */
    exported(small.address, CA_EXPORT_INTERIOR);
    put(&before), put(&shared), put(&a), put(&b), put(&small);
}

static void a_dedicated_segment_serves_its_size_again(void **state)
{
    (void)state;
    ca_pool_dedicate(true);
    start();
    held_t a = get(64 * MIB);
    put(&a);
    settle();
    held_t b = get(63 * MIB);
    assert_string_equal(fake_log(), "");
    assert_int_equal(a.address, b.address);
    held_t c = get(4 * MIB);
    assert_string_equal(fake_log(), "A");
    put(&b), put(&c);
}

static void dedicated_comes_before_small(void **state)
{
    (void)state;
    ca_pool_dedicate(true);
    params.small = 4 * MIB;
    start();
    held_t a = get(3 * MIB), b = get(3 * MIB);
    exported(b.address, CA_EXPORT_BASE);
    put(&a), put(&b);
}

static void a_full_device_serves_from_shared_segments(void **state)
{
    (void)state;
    fake.limit = 8 * MIB;
    start();
    held_t small = get(MIB);
    ca_pool_dedicate(true);
    held_t a = get(4 * MIB);
    assert_int_equal(stats().segments, 1);
    put(&a), put(&small);
}

/* As PyTorch's caching allocator asks. */
static void pieces_of_a_pool_of_the_programs_own_begin_segments(void **state)
{
    static const size_t sizes[] = {2, 20, 2, 34, 20, 2};
    held_t held[60];
    (void)state;
    start();
    for (unsigned i = 0; i < 60; i++) {
        size_t bytes = sizes[i % 6] * MIB / (i % 10 == 9 ? 1000 : 1); /* and some little ones */
        ca_pool_note_request(bytes);
        held[i] = get(bytes);
        if (bytes >= MIB)
            assert_int_equal(ca_pool_exports(held[i].address), CA_EXPORT_BASE);
    }
    for (unsigned i = 0; i < 60; i++)
        put(&held[i]);
    settle();
    held_t again = get(20 * MIB), little = get(MIB); /* idle ones are anybody's */
    assert_null(strchr(fake_log(), 'A'));
    put(&again), put(&little);
}

/* Many others, or most of them freed: it has none, and blocks share segments. */
static void blocks_of_a_program_without_a_pool_share_segments(void **state)
{
    held_t held[2];
    (void)state;
    start();
    for (unsigned i = 0; i < 100; i++)
        ca_pool_note_request(2 * MIB);
    for (unsigned i = 0; i < 70; i++)
        ca_pool_note_free(2 * MIB);
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < 2; i++)
            held[i] = get(2 * MIB);
        assert_int_equal(stats().segments, 1);
        put(&held[0]), put(&held[1]);
        settle();
        for (unsigned i = 0; i < 1000; i++) {
            ca_pool_note_request(2 * MIB);
            if (i % 10 == 0)
                ca_pool_note_request(1000);
        }
    }
}

static void host_memory_is_not_dedicated(void **state)
{
    (void)state;
    ca_pool_dedicate(true);
    params.host = true;
    start();
    held_t a = get(3 * MIB), b = get(3 * MIB);
    assert_int_equal(stats().segments, 1);
    put(&a), put(&b);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_exported_block_is_not_handed_out_again),
        TEST(exported_memory_comes_before_an_out_of_memory),
        TEST(the_base_may_mean_every_live_block),
        TEST(an_address_inside_a_block_may_mean_every_live_block),
        TEST(where_nothing_lives_the_segment_is_exported),
        TEST(an_export_counts_once),
        TEST(a_free_on_a_stream_keeps_it_too),
        TEST(exported_memory_goes_back_before_the_next_growth),
        TEST(a_large_free_gives_back_what_was_exported),
        TEST(exported_segments_go_back_with_their_last_block),
        TEST(exported_memory_in_flight_does_not_go_back),
        TEST(what_is_not_ours_is_not_exported),
        TEST(dedicated_blocks_begin_where_their_segment_does),
        TEST(a_dedicated_segment_serves_its_size_again),
        TEST(dedicated_comes_before_small),
        TEST(a_full_device_serves_from_shared_segments),
        TEST(pieces_of_a_pool_of_the_programs_own_begin_segments),
        TEST(blocks_of_a_program_without_a_pool_share_segments),
        TEST(host_memory_is_not_dedicated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
