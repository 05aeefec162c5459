/* Questions about single blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"

#define COUNT 100

static ca_arena_t *arena, *other;

static int set_up(void **state)
{
    (void)state;
    fake_reset(1024 * MIB, 1024 * MIB);
    arena = ca_arena_create(&fake_upstream, NULL, &fake_params);
    other = ca_arena_create(&fake_upstream, NULL, &fake_params);
    return arena && other ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    ca_arena_retire(other);
    return fake.errors ? -1 : 0;
}

static void every_address_of_a_live_block_leads_to_its_start(void **state)
{
    (void)state;
    ca_block_t *blocks[COUNT];
    uint64_t starts[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        ca_arena_t *from = i % 2 ? arena : other;
        assert_int_equal(ca_arena_alloc(from, NULL, 1 + i * 3000, &blocks[i], &starts[i], NULL), 0);
    }
    for (size_t i = 0; i < COUNT; i += 3)
        ca_arena_free(blocks[i]);
    for (size_t i = 0; i < COUNT; i++) {
        bool live = i % 3 != 0;
        size_t bytes = ca_block_bytes(blocks[i]);
        if (!live) {
            assert_int_equal(bytes, 0);
            assert_int_equal(ca_pool_block_at(starts[i]), 0);
            continue;
        }
        assert_in_range(bytes, 1 + i * 3000, i * 3000 + CA_PAGE);
        assert_int_equal(ca_pool_block_at(starts[i]), starts[i]);
        assert_int_equal(ca_pool_block_at(starts[i] + bytes / 2), starts[i]);
        assert_int_equal(ca_pool_block_at(starts[i] + bytes - 1), starts[i]);
        assert_int_not_equal(ca_pool_block_at(starts[i] + bytes), starts[i]);
    }
    for (size_t i = 0; i < COUNT; i++)
        if (i % 3 != 0)
            ca_arena_free(blocks[i]);
}

static void nothing_leads_out_of_what_is_there(void **state)
{
    (void)state;
    ca_block_t *block;
    uint64_t start;
    assert_int_equal(ca_pool_block_at(0), 0);
    assert_int_equal(ca_pool_block_at(FAKE_BASE), 0);
    assert_int_equal(ca_arena_alloc(arena, NULL, MIB, &block, &start, NULL), 0);
    assert_int_equal(ca_pool_block_at(start - 1), 0);
    assert_int_equal(ca_pool_block_at(start + CA_SEGMENT_MOST), 0);
    assert_int_equal(ca_pool_block_at(UINT64_MAX), 0);
    assert_int_equal(ca_pool_block_at(start + 5), start);
    ca_arena_retire(arena);
    assert_int_equal(ca_pool_block_at(start + 5), 0);
    assert_int_equal(ca_block_bytes(block), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_address_of_a_live_block_leads_to_its_start, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(nothing_leads_out_of_what_is_there, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
