/* The journal: what is live is in it, whatever threads do, however much there is, and nothing else.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include <errno.h>

#include "registry/journal/journal.h"
#include "registry/table/registry.h"
#include "registry/python/codes.h"
#include "registry/python/python.h"
#include "registry/stack/stack.h"
#include "registry/table/threads.h"

#define BASE UINT64_C(0x7f0000000000)
#define THREADS 4
#define EACH 20000u /* addresses of a thread */

static char folder[] = "/tmp/cachealloc-journal-XXXXXX", path[sizeof folder + 16];
static ca_journal_read_t read_again;

static int begin(void **state)
{
    (void)state;
    char expanded[sizeof folder + 16];
    unsigned tried;
    const ca_journal_about_t about = {
        .expanded = expanded, .version = "1.2.3", .rank = "7", .stack_depth = 12};
    snprintf(expanded, sizeof expanded, "%s/journal", folder);
    assert_int_equal(ca_journal_start(&about, path, sizeof path, &tried), 0);
    assert_int_equal(tried, 1);
    return 0;
}

static void forget_all(void)
{
    ca_journal_reset_after_fork();
    ca_registry_reset_after_fork();
    ca_stack_reset_after_fork();
}

static int end(void **state)
{
    (void)state;
    forget_all();
    unlink(path);
    return 0;
}

/* As another process would. */
static void read_it_after(void (*before)(void))
{
    char reason[256];
    ca_text_t why;
    ca_text_init(&why, reason, sizeof reason);
    forget_all();
    if (before)
        before();
    assert_int_equal(ca_journal_read(path, &read_again, &why), 0);
}

static void read_it(void)
{
    read_it_after(NULL);
}

static uint64_t address_of(uint64_t number)
{
    return BASE + number * 512;
}

static void insert(uint64_t number, uint64_t bytes)
{
    ca_allocation_t record = {.address = address_of(number),
                              .bytes = bytes,
                              .kind = number % 2 ? CA_KIND_PINNED : CA_KIND_DEVICE,
                              .device = 3,
                              .context = 5,
                              .stream = number % 7,
                              .owner = NULL,
                              .thread = 99};
    assert_int_equal(ca_registry_insert(&record), 0);
}

static void erase(uint64_t number)
{
    ca_allocation_t record;
    assert_true(ca_registry_erase(address_of(number), &record));
}

static void have_a_site(void)
{
    ca_py_site_add(ca_py_code_put("reader", "reader.py"), 1);
}

static void a_python_frame_is_read_as_it_was(void **state)
{
    (void)state;
    const char *function, *file;
    unsigned line;
    uint32_t code = ca_py_code_put("Block.forward", "/x/train.py");
    const uintptr_t frames[] = {0x1001, CA_PYTHON_WORD | ca_py_site_add(code, 17)};
    ca_allocation_t record = {
        .address = BASE, .bytes = 1, .stack = ca_stack_intern_of(frames, 2, 1)};
    assert_int_equal(ca_registry_insert(&record), 0);
    read_it_after(have_a_site); /* which has the first numbers */
    ca_allocation_t found;
    uintptr_t copied[2];
    assert_true(ca_registry_find(BASE, &found));
    assert_int_equal(ca_stack_frames(found.stack, copied, 2), 2);
    assert_int_equal(copied[0], frames[0]);
    assert_true(ca_python_place(copied[1], &function, &file, &line));
    assert_string_equal(function, "Block.forward");
    assert_string_equal(file, "/x/train.py");
    assert_int_equal(line, 17);
}

static void a_record_is_read_as_it_was(void **state)
{
    (void)state;
    const uintptr_t frames[] = {0x1001, 0x2002, 0x3003};
    ca_allocation_t record = {.address = BASE,
                              .bytes = 1234,
                              .kind = CA_KIND_MANAGED,
                              .device = 3,
                              .context = 5,
                              .stream = 77,
                              .stack = ca_stack_intern_of(frames, 3, 1),
                              .thread = 4321};
    const char worker[CA_THREAD_NAME] = "worker";
    ca_threads_put(4321, worker);
    ca_threads_notify_all();
    assert_int_equal(ca_registry_insert(&record), 0);
    uint64_t sequence = ca_registry_sequence();
    read_it();
    ca_allocation_t found;
    uintptr_t copied[4];
    char name[CA_THREAD_NAME];
    assert_int_equal(read_again.records, 1);
    assert_true(ca_registry_find(BASE, &found));
    assert_int_equal(found.bytes, 1234);
    assert_int_equal(found.kind, CA_KIND_MANAGED);
    assert_int_equal(found.device, 3);
    assert_int_equal(found.stream, 77);
    assert_int_equal(found.thread, 4321);
    assert_int_equal(found.sequence, sequence);
    assert_int_equal(ca_stack_frames(found.stack, copied, 4), 3);
    assert_memory_equal(copied, frames, sizeof frames);
    ca_threads_name(4321, name);
    assert_string_equal(name, "worker");
    assert_int_equal(read_again.origin.pid, getpid());
    assert_int_equal(read_again.origin.stack_depth, 12);
    assert_int_equal(read_again.origin.peak_bytes, 1234);
    assert_string_equal(read_again.origin.version, "1.2.3");
    assert_string_equal(read_again.origin.rank, "7");
    assert_int_equal(read_again.lost, 0);
    ca_journal_read_end(&read_again);
    assert_int_equal(ca_registry_total().count, 0);
}

/* The driver gives an address out again that was never freed here. */
static void of_an_address_the_last_record_counts(void **state)
{
    (void)state;
    ca_allocation_t record = {.address = BASE, .bytes = 1}, found;
    assert_int_equal(ca_registry_insert(&record), 0);
    record.bytes = 2;
    assert_int_equal(ca_registry_insert(&record), -EEXIST);
    assert_true(ca_registry_erase(BASE, &found));
    record.bytes = 3;
    assert_int_equal(ca_registry_insert(&record), 0);
    read_it();
    assert_int_equal(read_again.records, 1);
    assert_true(ca_registry_find(BASE, &found));
    assert_int_equal(found.bytes, 3);
    ca_journal_read_end(&read_again);
}

static void what_a_context_took_along_is_not_live(void **state)
{
    (void)state;
    insert(1, 10);
    insert(2, 10);
    assert_int_equal(ca_registry_drop_context(5).count, 2);
    insert(3, 10);
    read_it();
    assert_int_equal(read_again.records, 1);
    ca_journal_read_end(&read_again);
}

static void what_was_live_before_is_in_it_once(void **state)
{
    ca_journal_reset_after_fork();
    unlink(path);
    insert(2, 20);
    insert(3, 30);
    begin(state);
    insert(1, 10);
    ca_journal_add_all();
    ca_journal_add_all();
    erase(2);
    read_it();
    assert_int_equal(read_again.records, 2);
    assert_int_equal(ca_registry_total().bytes, 40);
    ca_journal_read_end(&read_again);
}

/* More than the first tables hold, freed in another order, and allocated again. */
static void *come_and_go(void *arg)
{
    uint64_t first = (uint64_t)(uintptr_t)arg * EACH;
    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < EACH; i++)
            insert(first + i, 1 + round);
        for (uint64_t i = 0; i < EACH; i++)
            if (round < 2 || i % 3 != 0)
                erase(first + (i * 7919 + round) % EACH);
    }
    return NULL;
}

static void threads_leave_in_it_what_is_live(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    ca_allocation_t *before, found;
    size_t count;
    unsigned busy;
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(ca_registry_snapshot(&before, &count, &busy), 0);
    assert_in_range(count, THREADS * EACH / 3, THREADS * (EACH / 3 + 1));
    read_it();
    assert_int_equal(read_again.lost, 0);
    assert_int_equal(read_again.records, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(ca_registry_find(before[i].address, &found));
        assert_int_equal(found.sequence, before[i].sequence);
        assert_int_equal(found.bytes, before[i].bytes);
    }
    ca_registry_snapshot_free(before, count);
    ca_journal_read_end(&read_again);
}

/* No room is made in a file that is another one by now; what has no place is counted. */
static void another_s_file_does_not_grow(void **state)
{
    (void)state;
    struct stat found;
    char other[sizeof path + 8];
    snprintf(other, sizeof other, "%s.other", path);
    assert_int_equal(rename(path, other), 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    for (uint64_t i = 0; i < 30000; i++)
        insert(i, 1);
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_size, 0);
    ca_journal_end(); /* nor is it removed */
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(rename(other, path), 0);
    read_it();
    assert_true(read_again.lost > 10000);
    assert_int_equal(read_again.records + read_again.lost, 30000);
    ca_journal_read_end(&read_again);
}

static void at_the_end_the_file_goes(void **state)
{
    (void)state;
    ca_journal_end();
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    assert_non_null(mkdtemp(folder));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_record_is_read_as_it_was, begin, end),
        cmocka_unit_test_setup_teardown(a_python_frame_is_read_as_it_was, begin, end),
        cmocka_unit_test_setup_teardown(of_an_address_the_last_record_counts, begin, end),
        cmocka_unit_test_setup_teardown(what_a_context_took_along_is_not_live, begin, end),
        cmocka_unit_test_setup_teardown(what_was_live_before_is_in_it_once, begin, end),
        cmocka_unit_test_setup_teardown(threads_leave_in_it_what_is_live, begin, end),
        cmocka_unit_test_setup_teardown(another_s_file_does_not_grow, begin, end),
        cmocka_unit_test_setup_teardown(at_the_end_the_file_goes, begin, end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
