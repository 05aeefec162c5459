/* Moments that a program names: what is kept of them, and in which order. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/counters.h"
#include "registry/table/live.h"
#include "registry/table/marks.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"

#define THREADS 4
#define EACH 2000

static ca_mark_t marks[CA_MARKS_MOST];

static int fresh(void **state)
{
    (void)state;
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    ca_thread_counts_join();
    ca_timeline_start(NULL);
    return 0;
}

static void without_marks_there_are_none(void **state)
{
    (void)state;
    uint64_t dropped = 7;
    assert_int_equal(ca_marks_copy(marks, &dropped), 0);
    assert_int_equal(dropped, 0);
}

static void a_mark_tells_when_and_what_was_live(void **state)
{
    (void)state;
    uint64_t dropped;
    uint64_t before = ca_timeline_now();
    ca_marks_add("first");
    ca_allocation_t record = {.address = 0x7f0000000000u, .bytes = 12345, .stack = 1};
    assert_int_equal(ca_registry_insert(&record), 0);
    ca_marks_add("second");
    assert_int_equal(ca_marks_copy(marks, &dropped), 2);
    assert_int_equal(dropped, 0);
    assert_string_equal(marks[0].name, "first");
    assert_int_equal(marks[0].live, 0);
    assert_int_equal(marks[0].sequence, 0);
    assert_string_equal(marks[1].name, "second");
    assert_int_equal(marks[1].live, 12345);
    assert_int_equal(marks[1].sequence, 1);
    assert_true(before <= marks[0].ns && marks[0].ns <= marks[1].ns);
    assert_true(marks[1].ns <= ca_timeline_now());
}

static void change(uint64_t address, uint64_t bytes)
{
    ca_allocation_t record = {.address = address, .bytes = bytes, .stack = 1};
    if (bytes)
        assert_int_equal(ca_registry_insert(&record), 0);
    else
        assert_true(ca_registry_erase(address, &record));
}

/* What is live as a phase begins is part of it; the credit that a free leaves is not. */
static void each_phase_has_its_own_peak(void **state)
{
    enum { A = 0x10000, B = 0x20000, C = 0x30000 };
    uint64_t dropped;
    (void)state;
    ca_thread_counts_join();
    change(A, 1000);
    change(B, 500);
    change(B, 0);
    ca_marks_add("lower");
    change(C, 200);
    change(C, 0);
    ca_marks_add("as it is");
    ca_marks_add("higher");
    change(B, 2000);
    change(B, 0);
    ca_marks_add("last");
    change(A, 0);
    assert_int_equal(ca_marks_copy(marks, &dropped), 4);
    assert_int_equal(marks[0].peak, 1500);
    assert_int_equal(marks[1].peak, 1200);
    assert_int_equal(marks[2].peak, 1000);
    assert_int_equal(marks[3].peak, 3000);
    assert_int_equal(ca_live_phase_peak(), 1000);
    assert_int_equal(ca_registry_peak_bytes(), 3000);
}

static void the_name_is_copied_and_cut(void **state)
{
    (void)state;
    char name[300];
    uint64_t dropped;
    memset(name, 'x', sizeof name);
    name[CA_MARK_NAME - 1] = '\0';
    ca_marks_add(name);
    name[CA_MARK_NAME - 1] = 'x';
    name[sizeof name - 1] = '\0';
    ca_marks_add(name);
    for (size_t i = 0; i + 2 < sizeof name; i += 2)
        memcpy(name + i, "\xc3\xa9", 2);
    ca_marks_add(name);
    memset(name, 0, sizeof name);
    ca_marks_add(name);
    assert_int_equal(ca_marks_copy(marks, &dropped), 4);
    assert_int_equal(strlen(marks[0].name), CA_MARK_NAME - 1);
    assert_null(strchr(marks[0].name, '.'));
    assert_int_equal(strlen(marks[1].name), CA_MARK_NAME - 1);
    assert_string_equal(marks[1].name + CA_MARK_NAME - 5, "x...");
    const char *end = strchr(marks[2].name, '.');
    assert_non_null(end);
    assert_string_equal(end, "...");
    assert_int_equal((end - marks[2].name) % 2, 0); /* no half of a character */
    assert_string_equal(marks[3].name, "");
}

static void the_oldest_go_first_and_are_counted(void **state)
{
    (void)state;
    char name[16];
    uint64_t dropped;
    for (unsigned i = 0; i < CA_MARKS_MOST + 10; i++) {
        snprintf(name, sizeof name, "%u", i);
        ca_marks_add(name);
    }
    assert_int_equal(ca_marks_copy(marks, &dropped), CA_MARKS_MOST);
    assert_int_equal(dropped, 10);
    for (unsigned i = 0; i < CA_MARKS_MOST; i++)
        assert_int_equal(strtoul(marks[i].name, NULL, 10), i + 10);
    assert_int_equal(ca_marks_copy(NULL, &dropped), CA_MARKS_MOST);
}

static void *add_many(void *number)
{
    char name[32];
    for (unsigned i = 0; i < EACH; i++) {
        snprintf(name, sizeof name, "%u %u", (unsigned)(uintptr_t)number, i);
        ca_marks_add(name);
    }
    return NULL;
}

static void threads_lose_none_and_mix_none(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    uint64_t dropped;
    int last[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, (void *)i), 0);
    for (unsigned i = 0; i < 200; i++) {
        size_t count = ca_marks_copy(marks, &dropped);
        for (size_t j = 1; j < count; j++)
            assert_true(marks[j].ns >= marks[j - 1].ns);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        last[i] = -1;
    }
    assert_int_equal(ca_marks_copy(marks, &dropped) + dropped, THREADS * EACH);
    for (unsigned i = 0; i < CA_MARKS_MOST; i++) {
        char *end;
        unsigned long thread = strtoul(marks[i].name, &end, 10);
        long number = strtol(end, &end, 10);
        assert_true(thread < THREADS && *end == '\0');
        assert_true(last[thread] < 0 || number == last[thread] + 1);
        last[thread] = (int)number;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_marks_there_are_none, fresh),
        cmocka_unit_test_setup(a_mark_tells_when_and_what_was_live, fresh),
        cmocka_unit_test_setup(each_phase_has_its_own_peak, fresh),
        cmocka_unit_test_setup(the_name_is_copied_and_cut, fresh),
        cmocka_unit_test_setup(the_oldest_go_first_and_are_counted, fresh),
        cmocka_unit_test_setup(threads_lose_none_and_mix_none, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
