/* The ring of freed records: the latest that an address lies in is found, and none that is not. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "registry/table/freed.h"

#define BASE 0x7f0000000000u

static int fresh(void **state)
{
    (void)state;
    ca_freed_reset_after_fork();
    ca_freed_keep(CA_FREED_FEW);
    return 0;
}

static void note(uint64_t address, uint64_t bytes, uint32_t stack)
{
    ca_allocation_t record = {
        .address = address, .bytes = bytes, .sequence = stack, .stack = stack};
    ca_freed_note(&record, stack + 1, stack + 2);
}

static void an_address_in_a_record_finds_it(void **state)
{
    ca_freed_t freed;
    (void)state;
    assert_false(ca_freed_find(BASE, &freed));
    assert_false(ca_freed_find(0, &freed));
    note(BASE, 100, 7);
    assert_true(ca_freed_find(BASE, &freed));
    assert_true(ca_freed_find(BASE + 99, &freed));
    assert_int_equal(freed.record.address, BASE);
    assert_int_equal(freed.record.bytes, 100);
    assert_int_equal(freed.record.stack, 7);
    assert_int_equal(freed.stack, 8);
    assert_int_equal(freed.thread, 9);
    assert_false(ca_freed_find(BASE - 1, &freed));
    assert_false(ca_freed_find(BASE + 100, &freed));
}

static void the_latest_counts(void **state)
{
    ca_freed_t freed;
    (void)state;
    note(BASE, 1000, 1);
    note(BASE + 500, 10, 2);
    note(BASE, 300, 3);
    assert_true(ca_freed_find(BASE, &freed));
    assert_int_equal(freed.record.stack, 3);
    assert_true(ca_freed_find(BASE + 505, &freed));
    assert_int_equal(freed.record.stack, 2);
    assert_true(ca_freed_find(BASE + 700, &freed));
    assert_int_equal(freed.record.stack, 1);
}

/* How many of `count` records that come one after the other are found afterwards. */
static size_t remembered(size_t count)
{
    ca_freed_t freed;
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        note(BASE + i * 512, 512, (uint32_t)i + 1);
    for (size_t i = 0; i < count; i++) {
        bool there = ca_freed_find(BASE + i * 512, &freed);
        assert_true(there || i + found < count); /* the last of them */
        assert_true(!there || freed.record.stack == i + 1);
        found += there;
    }
    return found;
}

static void as_many_are_kept_as_was_asked_for(void **state)
{
    assert_int_equal(remembered(3 * CA_FREED_MOST), CA_FREED_FEW);
    fresh(state);
    ca_freed_keep(CA_FREED_MOST);
    assert_int_equal(remembered(3 * CA_FREED_MOST), CA_FREED_MOST);
    fresh(state);
    ca_freed_keep(10 * CA_FREED_MOST);
    assert_int_equal(remembered(2 * CA_FREED_MOST), CA_FREED_MOST);
}

static void the_child_of_a_fork_has_none(void **state)
{
    ca_freed_t freed;
    note(BASE, 100, 7);
    ca_freed_reset_after_fork();
    assert_false(ca_freed_find(BASE, &freed));
    note(BASE, 100, 8);
    assert_true(ca_freed_find(BASE, &freed));
    fresh(state);
}

#define THREADS 3
#define ROUNDS 30000

/* Every word of a record says whose it is. */
static void *note_many(void *arg)
{
    uint64_t of = (uintptr_t)arg;
    for (uint32_t i = 1; i <= ROUNDS; i++)
        note(BASE + (of << 32) + i % 64 * 512, 512, (uint32_t)of << 24 | i % 64);
    return NULL;
}

static void what_is_found_is_whole(void **state)
{
    pthread_t threads[THREADS];
    ca_freed_t freed;
    size_t found = 0;
    (void)state;
    ca_freed_keep(1); /* so that they meet */

    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, note_many, (void *)i), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t of = i % THREADS, which = i % 64;
        if (!ca_freed_find(BASE + (of << 32) + which * 512, &freed))
            continue;
        found++;
        assert_int_equal(freed.record.stack, of << 24 | which);
        assert_int_equal(freed.record.sequence, freed.record.stack);
        assert_int_equal(freed.stack, freed.record.stack + 1);
        assert_int_equal(freed.thread, freed.record.stack + 2);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < 64 * THREADS; i++)
        found += ca_freed_find(BASE + ((uint64_t)(i / 64) << 32) + i % 64 * 512, &freed);
    assert_int_not_equal(found, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(an_address_in_a_record_finds_it, fresh),
        cmocka_unit_test_setup(the_latest_counts, fresh),
        cmocka_unit_test_setup(as_many_are_kept_as_was_asked_for, fresh),
        cmocka_unit_test_setup(the_child_of_a_fork_has_none, fresh),
        cmocka_unit_test_setup(what_is_found_is_whole, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
