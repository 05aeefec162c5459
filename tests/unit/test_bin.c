/* The bins: what is found is the tightest, and the bitmaps always agree with the lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "pool/blocks/bin.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define ANY 512

static ca_bins_t bins;

static int empty_bins(void **state)
{
    (void)state;
    memset(&bins, 0, sizeof bins);
    return 0;
}

static ca_block_t *put(ca_block_t *block, uint64_t address, size_t bytes)
{
    *block = (ca_block_t){
        .address = address, .granules = (uint32_t)(bytes / CA_GRANULE), .state = CA_BLOCK_READY};
    ca_bins_insert(&bins, block);
    return block;
}

static void sizes_map_to_rising_bins(void **state)
{
    (void)state;
    unsigned row = 0, sub = 0;
    for (size_t bytes = CA_GRANULE; bytes < 256 * MIB; bytes += bytes / 64 / 512 * 512 + 512) {
        unsigned next_row, next_sub;
        ca_bin_of(bytes, &next_row, &next_sub);
        assert_true(next_row > row || (next_row == row && next_sub >= sub));
        assert_true(next_row < CA_BIN_ROWS && next_sub < CA_BIN_SUBS);
        row = next_row;
        sub = next_sub;
    }
    ca_bin_of(CA_BYTES_MOST * 2 - CA_GRANULE, &row, &sub);
    assert_true(row < CA_BIN_ROWS && sub == CA_BIN_SUBS - 1);
}

static void empty_bins_find_nothing(void **state)
{
    (void)state;
    assert_null(ca_bins_find(&bins, CA_GRANULE, ANY, UINT_MAX));
    assert_null(ca_bins_find(&bins, CA_BYTES_MOST, ANY, UINT_MAX));
    assert_int_equal(ca_bins_largest(&bins), 0);
}

static void an_exact_fit_is_preferred(void **state)
{
    (void)state;
    ca_block_t a, b, c;
    put(&a, 0x10000000, MIB + 4096);
    put(&b, 0x20000000, MIB);
    put(&c, 0x30000000, MIB + 8192);
    assert_ptr_equal(ca_bins_find(&bins, MIB, ANY, 16), &b);
    ca_bins_remove(&bins, &b);
    assert_ptr_equal(ca_bins_find(&bins, MIB, ANY, 16), &a);
}

static void a_block_of_the_same_bin_that_is_too_small_is_passed_over(void **state)
{
    (void)state;
    ca_block_t small, large;
    put(&small, 0x10000000, MIB);
    put(&large, 0x20000000, 64 * MIB);
    assert_ptr_equal(ca_bins_find(&bins, MIB + 512, ANY, 16), &large);
    ca_bins_remove(&bins, &large);
    assert_null(ca_bins_find(&bins, MIB + 512, ANY, UINT_MAX));
}

static void equal_fits_give_the_lowest_address(void **state)
{
    (void)state;
    ca_block_t a, b, c;
    put(&a, 0x20000000, 4096);
    put(&b, 0x10000000, 4096);
    put(&c, 0x30000000, 4096);
    assert_ptr_equal(ca_bins_find(&bins, 4096, ANY, 16), &b);
}

static void alignment_is_part_of_the_fit(void **state)
{
    (void)state;
    ca_block_t crooked, straight;
    put(&crooked, 0x10000200, 64 * KIB);
    assert_null(ca_bins_find(&bins, 64 * KIB, CA_PAGE, UINT_MAX));
    put(&straight, 0x20000000, 68 * KIB);
    assert_ptr_equal(ca_bins_find(&bins, 64 * KIB, CA_PAGE, 16), &straight);
    ca_bins_remove(&bins, &crooked);
    put(&crooked, 0x10000200, 68 * KIB); /* 3.5 KiB to skip leave enough */
    ca_bins_remove(&bins, &straight);
    assert_ptr_equal(ca_bins_find(&bins, 64 * KIB, CA_PAGE, 16), &crooked);
}

static void an_unbounded_look_finds_what_a_bounded_one_misses(void **state)
{
    (void)state;
    static ca_block_t small[40];
    ca_block_t fit;
    put(&fit, 0x10000000, MIB + 16 * KIB);
    for (unsigned i = 0; i < 40; i++)
        put(&small[i], 0x20000000 + i * 4 * MIB, MIB);
    assert_null(ca_bins_find(&bins, MIB + 512, ANY, 16));
    assert_ptr_equal(ca_bins_find(&bins, MIB + 512, ANY, UINT_MAX), &fit);
}

static void the_largest_is_known(void **state)
{
    (void)state;
    ca_block_t a, b, c;
    put(&a, 0x10000000, 64 * MIB);
    put(&b, 0x20000000, 64 * MIB + 512);
    put(&c, 0x30000000, 512);
    assert_int_equal(ca_bins_largest(&bins), 64 * MIB + 512);
    ca_bins_remove(&bins, &b);
    assert_int_equal(ca_bins_largest(&bins), 64 * MIB);
}

/* Against a plain scan over all blocks. */
static void random_sets_agree_with_a_scan(void **state)
{
    (void)state;
    enum { N = 300 };
    static ca_block_t blocks[N];
    static bool in[N];
    srand(1);
    for (unsigned step = 0; step < 100000; step++) {
        unsigned i = (unsigned)rand() % N;
        if (in[i]) {
            ca_bins_remove(&bins, &blocks[i]);
        } else {
            size_t bytes = ((size_t)rand() % 4096 + 1) << (9 + rand() % 8);
            put(&blocks[i], 0x10000000 + (uint64_t)i * 0x40000000 + (rand() % 8) * 512u, bytes);
        }
        in[i] = !in[i];

        size_t bytes = ((size_t)rand() % 4096 + 1) << (9 + rand() % 8);
        size_t alignment = ca_block_alignment(bytes), best = SIZE_MAX, largest = 0;
        for (unsigned k = 0; k < N; k++) {
            if (!in[k])
                continue;
            if (ca_block_size(&blocks[k]) > largest)
                largest = ca_block_size(&blocks[k]);
            if (ca_block_size(&blocks[k]) >= bytes + ca_block_padding(&blocks[k], alignment) &&
                ca_block_size(&blocks[k]) < best)
                best = ca_block_size(&blocks[k]);
        }
        ca_block_t *found = ca_bins_find(&bins, bytes, alignment, UINT_MAX);
        if (best == SIZE_MAX)
            assert_null(found);
        else
            assert_true(found && ca_block_size(found) == best);
        assert_int_equal(ca_bins_largest(&bins), largest);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, empty_bins)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sizes_map_to_rising_bins),
        TEST(empty_bins_find_nothing),
        TEST(an_exact_fit_is_preferred),
        TEST(a_block_of_the_same_bin_that_is_too_small_is_passed_over),
        TEST(equal_fits_give_the_lowest_address),
        TEST(alignment_is_part_of_the_fit),
        TEST(an_unbounded_look_finds_what_a_bounded_one_misses),
        TEST(the_largest_is_known),
        TEST(random_sets_agree_with_a_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
