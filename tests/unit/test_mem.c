/* Host memory of our own: pages and slabs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"

#include <errno.h>
#include <string.h>

static void mapped_memory_is_zero_and_counted(void **state)
{
    size_t before = ca_mem_mapped();
    (void)state;
    unsigned char *memory = ca_mem_map(5000);
    assert_non_null(memory);
    assert_true(ca_mem_mapped() - before >= 5000);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(memory[i], 0);
    memory[4999] = 1;
    ca_mem_unmap(memory, 5000);
    assert_int_equal(ca_mem_mapped(), before);
}

static void impossible_sizes_give_null_and_count_nothing(void **state)
{
    size_t before = ca_mem_mapped();
    (void)state;
    errno = 0;
    assert_null(ca_mem_map(0));
    assert_null(ca_mem_map(SIZE_MAX));
    assert_null(ca_mem_map(SIZE_MAX - 4096));
    assert_null(ca_mem_map(SIZE_MAX / 2));
    assert_int_equal(errno, 0);
    ca_mem_unmap(NULL, 4096);
    assert_int_equal(ca_mem_mapped(), before);
}

static void slab_objects_are_zeroed_aligned_and_apart(void **state)
{
    static const size_t sizes[] = {0, 1, 8, 16, 24, 48, 100, 4096, 70000, 3 << 20};
    static unsigned char *objects[3000];
    size_t before = ca_mem_mapped();
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t bytes = sizes[s];
        int count = bytes > 4096 ? 5 : 3000;
        ca_slab_t slab;
        ca_slab_init(&slab, bytes);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < count; i++) {
                objects[i] = ca_slab_take(&slab);
                assert_non_null(objects[i]);
                assert_int_equal((uintptr_t)objects[i] % 16, 0);
                for (size_t b = 0; b < bytes; b += 1 + bytes / 64)
                    assert_int_equal(objects[i][b], 0);
                memset(objects[i], 1 + i % 250, bytes);
            }
            assert_int_equal(slab.live, count);
            for (int i = 0; i < count; i++) {
                for (size_t b = 0; b < bytes; b += 1 + bytes / 64)
                    assert_int_equal(objects[i][b], 1 + i % 250);
                ca_slab_give(&slab, objects[i]);
            }
            assert_int_equal(slab.live, 0);
        }
        ca_slab_destroy(&slab);
        assert_int_equal(ca_mem_mapped(), before);
    }
}

static void a_slab_recycles_before_it_grows(void **state)
{
    ca_slab_t slab;
    (void)state;
    ca_slab_init(&slab, 64);
    void *first = ca_slab_take(&slab);
    size_t mapped = ca_mem_mapped();
    ca_slab_give(&slab, first);
    for (int i = 0; i < 100000; i++) {
        assert_ptr_equal(ca_slab_take(&slab), first);
        ca_slab_give(&slab, first);
    }
    assert_int_equal(ca_mem_mapped(), mapped);
    ca_slab_destroy(&slab);
    assert_non_null(ca_slab_take(&slab)); /* usable again */
    ca_slab_destroy(&slab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mapped_memory_is_zero_and_counted),
        cmocka_unit_test(impossible_sizes_give_null_and_count_nothing),
        cmocka_unit_test(slab_objects_are_zeroed_aligned_and_apart),
        cmocka_unit_test(a_slab_recycles_before_it_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
