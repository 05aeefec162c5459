/* Memory that other processes see: neither handed out again nor given back; and segments of their
 * own for what may be exported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "one_arena.h"
#include "pool/decay.h"
#include "pool/export.h"

static ca_arena_params_t params;

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
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
    held_t a = get(MIB), b = get(MIB);
    exported(b.address, CA_EXPORT_INTERIOR);
    assert_int_equal(stats().exported_bytes, 0); /* as long as it lives */
    put(&b);
    assert_int_equal(stats().exported_bytes, MIB);
    settle();
    assert_false(handed_out_again(&b));
    put(&a);
    settle();
    assert_true(handed_out_again(&a)); /* it was not meant */
    assert_int_equal(stats().exported_bytes, MIB);
}

/* The driver would have it back: with it, a program that exports again and again runs for ever. */
static void exported_memory_comes_before_an_out_of_memory(void **state)
{
    (void)state;
    fake_reset(64 * MIB, 0); /* the fake does not know who looks at what */
    fake.auto_pass = true;
    start();
    for (unsigned i = 0; i < 300; i++) {
        held_t first = get(MIB), held = get(MIB);
        ca_pool_export(held.address);
        put(&held), put(&first);
    }
    assert_in_range(stats().exported_bytes, MIB, 64 * MIB);
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
    put(&a), put(&b), put(&c);
    assert_int_equal(stats().exported_bytes, 3 * MIB);
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
    assert_int_equal(stats().idle_bytes, 0);
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
    assert_int_equal(stats().exported_bytes, MIB);
    assert_int_equal(
        ca_arena_alloc_on(arena, stream, MIB, &again.block, &again.address, &again.reused), 0);
    assert_true(again.address != b.address);
    put(&a);
}

static void exported_segments_do_not_go_back(void **state)
{
    (void)state;
    fake.limit = 64 * MIB;
    start();
    held_t a = get(32 * MIB), more;
    exported(a.address, CA_EXPORT_BASE);
    put(&a);
    settle();
    assert_int_equal(stats().idle_bytes, 0);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    assert_int_equal(ca_arena_trim_as(arena, SIZE_MAX, CA_TRIM_SHORTAGE), 0);
    ca_arena_tick(arena);
    ca_arena_tick(arena);
    assert_int_equal(ca_arena_decay(arena, 0, false), 0);
    assert_int_equal(hold(arena, 48 * MIB, &more), -ENOMEM);
    sound();
    assert_int_equal(fake.calls[FAKE_FREE], 0);
}

/* Nor where no block is kept in it. */
static void an_exported_segment_that_is_all_ready_does_not_go_back(void **state)
{
    (void)state;
    fake.limit = 8 * MIB;
    start();
    held_t a = get(MIB), b, more;
    put(&a);
    exported(a.address + 4 * MIB, CA_EXPORT_INTERIOR);
    settle();
    b = get(MIB);
    put(&b);
    assert_int_equal(hold(arena, 16 * MIB, &more), -ENOMEM);
    settle();
    assert_int_equal(stats().ready_bytes, 8 * MIB);
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 0);
    ca_arena_tick(arena);
    ca_arena_tick(arena);
    assert_int_equal(ca_arena_decay(arena, 0, false), 0);
    sound();
    assert_int_equal(fake.calls[FAKE_FREE], 0);
}

static void what_is_kept_makes_nobody_wait(void **state)
{
    (void)state;
    params.reuse = CA_POOL_REUSE_AUTO;
    start();
    for (unsigned i = 0; i < 4; i++) {
        held_t a = get(100 * MIB);
        exported(a.address, CA_EXPORT_BASE);
        put(&a);
    }
    assert_int_equal(stats().exported_bytes, 400 * MIB);
    held_t a = get(8 * MIB);
    put(&a);
    held_t b = get(60 * MIB);
    assert_null(strpbrk(fake_log(), "Ww"));
    put(&b);
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
        TEST(exported_segments_do_not_go_back),
        TEST(an_exported_segment_that_is_all_ready_does_not_go_back),
        TEST(what_is_kept_makes_nobody_wait),
        TEST(what_is_not_ours_is_not_exported),
        TEST(dedicated_blocks_begin_where_their_segment_does),
        TEST(a_dedicated_segment_serves_its_size_again),
        TEST(dedicated_comes_before_small),
        TEST(a_full_device_serves_from_shared_segments),
        TEST(host_memory_is_not_dedicated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
