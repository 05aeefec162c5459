/* Where the objects of blocks lie; see pool/blocks/block.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include "base/mem.h"
#include "pool/blocks/block.h"

#define COUNT 1000u

static ca_block_slab_t slab;
static ca_block_t *mine[COUNT], *theirs[COUNT];

static int fresh(void **state)
{
    (void)state;
    memset(&slab, 0, sizeof slab);
    return 0;
}

static int discard(void **state)
{
    (void)state;
    ca_block_discard(&slab);
    return 0;
}

static void *take_theirs(void *count)
{
    for (size_t i = 0; i < (size_t)(uintptr_t)count; i++)
        assert_non_null(theirs[i] = ca_block_new(&slab));
    return NULL;
}

static void by_another_thread(size_t count)
{
    pthread_t thread;
    pthread_create(&thread, NULL, take_theirs, (void *)(uintptr_t)count);
    pthread_join(thread, NULL);
}

static void two_threads_blocks_share_no_page(void **state)
{
    (void)state;
    /* Of as many threads two have the same pages. */
    for (size_t round = 1; round + 1 < CA_BLOCK_COLORS; round++) {
        for (size_t i = 0; i < COUNT; i++)
            assert_non_null(mine[i] = ca_block_new(&slab));
        by_another_thread(COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            assert_int_not_equal(ca_block_page(mine[i])->color, ca_block_page(theirs[i])->color);
            assert_ptr_not_equal(ca_block_page(mine[i]), ca_block_page(theirs[i]));
        }
        /* What is spare comes back to whose it was. */
        for (size_t i = 0; i < COUNT; i++)
            ca_block_delete(&slab, i % 2 ? mine[i] : theirs[i]);
        for (size_t i = 0; i < COUNT; i++)
            ca_block_delete(&slab, i % 2 ? theirs[i] : mine[i]);
    }
    assert_int_equal(slab.live, 0);
}

static size_t count_neighbours(size_t count)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i += CA_BLOCK_PAGE_BLOCKS)
        for (size_t k = 0; k < count; k += CA_BLOCK_PAGE_BLOCKS) {
            const ca_block_page_t *page = ca_block_page(mine[i]), *other = ca_block_page(theirs[k]);
            ptrdiff_t apart = (const char *)page - (const char *)other;
            if (page->color == other->color) /* of so many threads some have the same pages */
                continue;
            found += apart == (ptrdiff_t)CA_BLOCK_PAGE || apart == -(ptrdiff_t)CA_BLOCK_PAGE;
        }
    return found;
}

/* However they take turns: but for where one's chunk ends and another's begins. */
static void nor_is_one_threads_page_beside_the_others(void **state)
{
    (void)state;
    const size_t pages = 12, count = pages * CA_BLOCK_PAGE_BLOCKS;
    for (size_t i = 0; i < pages; i++) {
        size_t at = i * CA_BLOCK_PAGE_BLOCKS;
        for (size_t k = 0; k < CA_BLOCK_PAGE_BLOCKS; k++)
            assert_non_null(mine[at + k] = ca_block_new(&slab));
        by_another_thread(CA_BLOCK_PAGE_BLOCKS);
        memmove(theirs + count - at - CA_BLOCK_PAGE_BLOCKS, theirs,
                CA_BLOCK_PAGE_BLOCKS * sizeof *theirs);
    }
    assert_in_range(count_neighbours(count), 0, 3);
}

static void what_one_thread_leaves_serves_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT; i++)
        mine[i] = ca_block_new(&slab);
    for (size_t i = 0; i < COUNT; i++)
        ca_block_delete(&slab, mine[i]);
    size_t made = slab.made;
    assert_int_equal(made, COUNT);
    by_another_thread(COUNT);
    assert_in_range(slab.made, made, made + COUNT / 4);
    assert_int_not_equal(slab.made, made); /* it has some of its own */
}

/* A context comes and goes for ever, with threads. */
static void lives_take_no_more_addresses_each(void **state)
{
    (void)state;
    size_t mapped = 0;
    for (unsigned life = 0; life < 40; life++) {
        assert_non_null(ca_block_new(&slab));
        for (unsigned i = 1; i < CA_BLOCK_COLORS; i++)
            by_another_thread(1);
        ca_block_discard(&slab);
        assert_int_equal(slab.bytes, 0);
        if (life == 8) /* by when each color had its turn */
            mapped = ca_mem_mapped();
    }
    assert_int_equal(ca_mem_mapped(), mapped);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, discard)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_one_thread_leaves_serves_others),
        TEST(two_threads_blocks_share_no_page),
        TEST(nor_is_one_threads_page_beside_the_others),
        TEST(lives_take_no_more_addresses_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
