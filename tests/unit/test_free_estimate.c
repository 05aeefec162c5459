/* Growth asks upstream what it has left, and goes by the answer for a while: to ask is as dear as
 * to obtain a segment. See ca_free_estimate_t. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/clock.h"
#include "one_arena.h"
#include "pool/growth/grow.h"
#include "pool/state.h"

#define DEVICE (4096 * MIB)
#define BLOCK (64 * MIB) /* in a segment of its own */

static void start(size_t headroom)
{
    ca_arena_params_t params = fake_params;
    params.headroom = headroom;
    fake_reset(DEVICE, 0);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
}

/* However slow this machine is. */
static void not_too_long_ago(ca_arena_t *asked)
{
    asked->estimate.until = UINT64_MAX;
}

static void long_ago(ca_arena_t *asked)
{
    asked->estimate.until = 0;
}

static void obtain(ca_arena_t *from, size_t bytes, held_t *held)
{
    uint64_t before = fake.calls[FAKE_ALLOC];
    *held = (held_t){.bytes = bytes};
    assert_int_equal(ca_arena_alloc(from, NULL, bytes, &held->block, &held->address, NULL), 0);
    assert_int_equal(fake.calls[FAKE_ALLOC], before + 1);
}

/* Grows so often. How often that asked. */
static uint64_t looks_in(unsigned growths)
{
    uint64_t before = fake.looks;
    held_t held;
    for (unsigned i = 0; i < growths; i++)
        obtain(arena, BLOCK, &held);
    return fake.looks - before;
}

static void growth_asks_once_in_a_while(void **state)
{
    (void)state;
    start(0);
    uint64_t before = ca_clock_ns();
    assert_int_equal(looks_in(1), 1);
    assert_in_range(arena->estimate.until, before + CA_ESTIMATE_SERVES_NS,
                    ca_clock_ns() + CA_ESTIMATE_SERVES_NS);
    not_too_long_ago(arena);
    assert_int_equal(looks_in(8), 0);
    assert_int_equal(arena->free_bytes, DEVICE - 9 * BLOCK);
    long_ago(arena);
    assert_int_equal(looks_in(1), 1);
    assert_int_equal(arena->free_bytes, DEVICE - 10 * BLOCK);
    ca_arena_retire(arena);
}

/* And each time once little is left. */
static void growth_asks_when_half_of_it_is_gone(void **state)
{
    (void)state;
    start(0);
    looks_in(1);
    not_too_long_ago(arena);
    assert_int_equal(looks_in(31), 0);
    assert_int_equal(arena->free_bytes, DEVICE / 2);
    assert_int_equal(looks_in(1), 1);
    assert_int_equal(arena->estimate.found, DEVICE / 2);
    ca_arena_retire(arena);
}

static void growth_asks_where_the_headroom_is_near(void **state)
{
    (void)state;
    start(1792 * MIB); /* twice of which are 8 blocks less than all there is */
    looks_in(1);
    not_too_long_ago(arena);
    assert_int_equal(looks_in(7), 0);
    assert_int_equal(looks_in(1), 1);
    not_too_long_ago(arena);
    assert_int_equal(looks_in(1), 1);
    ca_arena_retire(arena);
}

/* What it said a moment ago is not so any more. The call that upstream refuses is the only one that
 * was made in vain. */
static void growth_asks_where_it_was_refused(void **state)
{
    (void)state;
    held_t held = {.bytes = BLOCK};
    start(256 * MIB);
    looks_in(1);
    not_too_long_ago(arena);
    fake.others = DEVICE - BLOCK;
    uint64_t calls = fake.calls[FAKE_ALLOC], looks = fake.looks;
    ca_lock_take(&arena->lock);
    arena->inside++;
    assert_int_equal(ca_grow(arena, BLOCK, 256 * MIB, &held.block), -ENOMEM);
    arena->inside--;
    ca_lock_drop(&arena->lock);
    assert_int_equal(fake.calls[FAKE_ALLOC], calls + 1);
    assert_int_equal(fake.looks, looks + 1);
    assert_int_equal(arena->free_bytes, 0);
    ca_arena_retire(arena);
}

/* By the driver's answer to another arena on the same device, or to the program. */
static void or_where_it_was_told_of_less(void **state)
{
    (void)state;
    start(0);
    looks_in(1);
    not_too_long_ago(arena);
    ca_arena_note_free_bytes(arena, 32 * BLOCK);
    assert_int_equal(looks_in(16), 0);
    assert_int_equal(looks_in(1), 1);
    ca_arena_note_free_bytes(arena, 0);
    not_too_long_ago(arena);
    assert_int_equal(looks_in(1), 1);
    ca_arena_retire(arena);
}

static void what_went_back_is_there_again(void **state)
{
    (void)state;
    held_t held[16];
    start(0);
    for (unsigned i = 0; i < 16; i++) {
        obtain(arena, BLOCK, &held[i]);
        not_too_long_ago(arena);
    }
    for (unsigned i = 0; i < 16; i++)
        ca_arena_free(held[i].block);
    fake.auto_pass = true;
    fake_pass_all();
    assert_int_equal(ca_arena_trim(arena, SIZE_MAX), 16 * BLOCK);
    assert_int_equal(looks_in(32), 0);
    assert_int_equal(arena->free_bytes, DEVICE / 2);
    ca_arena_retire(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growth_asks_once_in_a_while),
        cmocka_unit_test(growth_asks_when_half_of_it_is_gone),
        cmocka_unit_test(growth_asks_where_the_headroom_is_near),
        cmocka_unit_test(growth_asks_where_it_was_refused),
        cmocka_unit_test(or_where_it_was_told_of_less),
        cmocka_unit_test(what_went_back_is_there_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
