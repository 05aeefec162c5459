/* What the books of a block take: its object, its share of the chunk that this lies in, and of the
 * index. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/counters.h"
#include "fake_upstream.h"
#include "pool/state.h"
#include "registry/table/table.h"

#define FROM 10000
#define TO 1000000
#define PER_BLOCK 110 /* bytes */

static int fresh(void **state)
{
    (void)state;
    fake_reset((size_t)64 << 30, 0);
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    return 0;
}

/* Of tables in use: those that were outgrown have no pages any more. */
static size_t index_bytes(void)
{
    size_t bytes = 0;
    for (size_t s = 0; s < STRIPES; s++) {
        const ca_index_table_t *table = atomic_load(&ca_table.stripes[s].index.table);
        if (table)
            bytes += ca_round_up(sizeof *table + table->size * sizeof table->entries[0], 4096);
    }
    return bytes;
}

static void keep_one(ca_arena_t *arena, size_t bytes)
{
    ca_allocation_t record = {.bytes = bytes, .kind = CA_KIND_DEVICE, .context = 1};
    ca_block_t *block;
    assert_int_equal(ca_arena_alloc(arena, NULL, bytes, &block, &record.address, NULL), 0);
    record.owner = block;
    assert_int_equal(ca_registry_insert_at(ca_block_record(block), &record), 0);
}

/* The worst of all counts, in tenths of a byte. Pieces that are left over are blocks too. */
static size_t worst_of_growing(size_t least, size_t step, size_t to)
{
    ca_arena_t *arena = ca_arena_create(&fake_upstream, NULL, &fake_params);
    size_t worst = 0, at = 0, index = 0;
    assert_non_null(arena);
    for (size_t n = 1; n <= to; n++) {
        keep_one(arena, least + n * 7919 % 61 * step);
        if (n < FROM || n % 64)
            continue;
        size_t now = (arena->blocks.bytes + index_bytes()) * 10 / arena->blocks.live;
        if (now > worst) {
            worst = now;
            at = n;
            index = index_bytes() * 10 / arena->blocks.live;
        }
    }
    print_message("at most %zu.%zu bytes, at %zu live blocks; %zu.%zu of them for the index\n",
                  worst / 10, worst % 10, at, index / 10, index % 10);
    return worst;
}

static void a_block_takes_no_more_than_is_promised(void **state)
{
    (void)state;
    assert_in_range(worst_of_growing(512, 512, TO), 880, PER_BLOCK * 10);
}

static void nor_does_one_where_all_are_of_a_size(void **state)
{
    (void)state;
    assert_in_range(worst_of_growing(2048, 0, TO), 880, PER_BLOCK * 10);
}

static void nor_does_one_of_many_sizes(void **state)
{
    (void)state;
    assert_in_range(worst_of_growing(256, 9000, TO / 10), 880, PER_BLOCK * 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_block_takes_no_more_than_is_promised, fresh),
        cmocka_unit_test_setup(nor_does_one_where_all_are_of_a_size, fresh),
        cmocka_unit_test_setup(nor_does_one_of_many_sizes, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
