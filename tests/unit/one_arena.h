/* For unit tests of one arena on the fake upstream: its invariants are checked after each step.
 * Include cmocka first. Header-only, because every unit program is linked alone. */
#ifndef ONE_ARENA_H
#define ONE_ARENA_H

#include "fake_upstream.h"

static ca_arena_t *arena;

static inline void sound(void)
{
    const char *broken = ca_arena_check(arena);
    if (broken)
        fail_msg("%s", broken);
    assert_int_equal(fake.errors, 0);
}

/* Must be served. */
static inline held_t get(size_t bytes)
{
    held_t held;
    assert_int_equal(hold(arena, bytes, &held), 0);
    sound();
    return held;
}

static inline void put(held_t *held)
{
    let_go(held);
    sound();
}

#endif
