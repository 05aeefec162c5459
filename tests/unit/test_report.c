/* The leak report's text. Addresses that lie in no module print as themselves, so that the whole
 * text can be compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>

#include "registry/table/lost.h"
#include "registry/table/peak.h"
#include "registry/report/formats.h"
#include "registry/stack/stack.h"

static char text[1 << 16];
static uint64_t next_address;
static const char *rank;
static size_t sampled;
static uint16_t context; /* of what leaks next, as are these */
static uint32_t thread;
static unsigned depth; /* of the report */
static bool with_peak;

static int fresh(void **state)
{
    (void)state;
    ca_registry_reset_after_fork();
    ca_stack_reset_after_fork();
    ca_peak_reset_after_fork();
    ca_peak_listen(NULL);
    with_peak = false;
    next_address = 0x7f0000000000;
    context = 0;
    thread = 0;
    depth = 0;
    rank = NULL;
    sampled = 0;
    return 0;
}

static uint32_t stack(uintptr_t inner, uintptr_t outer)
{
    uintptr_t frames[2] = {inner, outer};
    return ca_stack_intern(frames, 2);
}

static uint64_t leak(uint32_t stack_id, uint64_t bytes, unsigned device, ca_kind_t kind)
{
    ca_allocation_t record = {.address = next_address, .bytes = bytes, .stack = stack_id};
    record.device = (uint8_t)device;
    record.kind = kind;
    record.context = context;
    record.thread = thread;
    next_address += 512;
    assert_int_equal(ca_registry_insert(&record), 0);
    return record.address;
}

/* Writes the report to `text`, without the line that carries the process id. Returns the leaks. */
static long report(size_t least_bytes, unsigned most_groups)
{
    static ca_out_t out;
    ca_model_options_t options = {.rank = rank, .sampled = sampled, .peak = with_peak};
    options.leak_min = least_bytes;
    options.leak_max = most_groups;
    options.leak_depth = depth;
    char header[64];
    int fd = memfd_create("report", 0);
    assert_true(fd >= 0);
    ca_out_open(&out, fd);
    ca_model_t *model = ca_model_make(&options);
    assert_non_null(model);
    ca_format_text(&out, model);
    long leaks = (long)(model->sections[CA_SECTION_LEAKED].count +
                        model->sections[CA_SECTION_DESTROYED].count);
    ca_model_free(model);
    assert_int_equal(ca_out_flush(&out), 0);
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    assert_true(length >= 0);
    text[length] = '\0';
    if (length != 0) {
        int prefix = snprintf(header, sizeof header, "cachealloc[%d]: leak report%s%s%s\n",
                              (int)getpid(), rank ? ", rank " : "", rank ? rank : "",
                              sampled ? ", stacks sampled: 3M" : "");
        assert_memory_equal(text, header, (size_t)prefix);
        memmove(text, text + prefix, (size_t)(length - prefix) + 1);
    }
    return leaks;
}

static void nothing_is_written_where_nothing_leaked(void **state)
{
    (void)state;
    ca_allocation_t gone;
    uint64_t address = leak(stack(0x1000, 0x2000), 100, 0, CA_KIND_DEVICE);
    assert_true(ca_registry_erase(address, &gone));
    assert_int_equal(report(0, 20), 0);
    assert_string_equal(text, "");
}

static void one_leak_of_one_byte(void **state)
{
    (void)state;
    leak(stack(0x1000, 0x2000), 1, 0, CA_KIND_DEVICE);
    assert_int_equal(report(0, 20), 1);
    assert_string_equal(text, "LEAK SUMMARY: 1 bytes in 1 allocations, 1 stacks\n"
                              "  device 0, device memory: 1 bytes in 1 allocations\n"
                              "#1: 1 bytes in 1 allocations, device 0, device memory\n"
                              "  sequence 1\n"
                              "    0x1000\n"
                              "    0x2000\n");
}

static void groups_are_by_stack_device_and_kind_largest_first(void **state)
{
    (void)state;
    uint32_t a = stack(0x1000, 0x2000), b = stack(0x1100, 0x2000);
    leak(a, 100, 0, CA_KIND_DEVICE);
    leak(b, 5000, 1, CA_KIND_DEVICE);
    leak(a, 150, 0, CA_KIND_DEVICE);
    leak(a, 300, 0, CA_KIND_PINNED);
    leak(b, 100, 0, CA_KIND_DEVICE);
    leak(0, 20, 1, CA_KIND_MANAGED);
    assert_int_equal(report(0, 20), 6);
    assert_string_equal(text, "LEAK SUMMARY: 5670 bytes in 6 allocations, 2 stacks\n"
                              "  device 0, device memory: 350 bytes in 3 allocations\n"
                              "  device 0, pinned memory: 300 bytes in 1 allocations\n"
                              "  device 1, device memory: 5000 bytes in 1 allocations\n"
                              "  device 1, managed memory: 20 bytes in 1 allocations\n"
                              "#1: 5000 bytes in 1 allocations, device 1, device memory\n"
                              "  sequence 2\n"
                              "    0x1100\n"
                              "    0x2000\n"
                              "#2: 300 bytes in 1 allocations, device 0, pinned memory\n"
                              "  sequence 4\n"
                              "    0x1000\n"
                              "    0x2000\n"
                              "#3: 250 bytes in 2 allocations, device 0, device memory\n"
                              "  sizes 100 to 150, sequence 1 to 3\n"
                              "    0x1000\n"
                              "    0x2000\n"
                              "#4: 100 bytes in 1 allocations, device 0, device memory\n"
                              "  sequence 5\n"
                              "    0x1100\n"
                              "    0x2000\n"
                              "#5: 20 bytes in 1 allocations, device 1, managed memory\n"
                              "  sequence 6\n"
                              "    (no call stack)\n");
}

static void the_rank_is_in_the_first_line(void **state)
{
    (void)state;
    leak(0, 1, 0, CA_KIND_DEVICE);
    rank = "17";
    assert_int_equal(report(0, 20), 1);
}

static void sampled_stacks_are_said_to_be_so_in_the_first_line(void **state)
{
    (void)state;
    leak(0, 1, 0, CA_KIND_DEVICE);
    sampled = 3 << 20;
    assert_int_equal(report(0, 20), 1);
    rank = "17";
    assert_int_equal(report(0, 20), 1);
}

static void equal_groups_come_by_count_and_nameless_ones_by_age(void **state)
{
    (void)state;
    uint32_t first = stack(0x1100, 0x1), twice = stack(0x1200, 0x1), late = stack(0x1300, 0x1);
    leak(first, 100, 0, CA_KIND_DEVICE);
    leak(late, 100, 0, CA_KIND_DEVICE);
    leak(twice, 50, 0, CA_KIND_DEVICE);
    leak(twice, 50, 0, CA_KIND_DEVICE);
    report(0, 20);
    const char *at_twice = strstr(text, "0x1200"), *at_first = strstr(text, "0x1100"),
               *at_late = strstr(text, "0x1300");
    assert_non_null(at_twice);
    assert_true(at_twice < at_first && at_first < at_late);
}

static void omitted_groups_are_totalled_with_the_reason(void **state)
{
    (void)state;
    for (uintptr_t i = 0; i < 10; i++)
        leak(stack(0x1000 + i, 0x2000), 100 * (i + 1), 0, CA_KIND_DEVICE);
    assert_int_equal(report(300, 2), 10);
    assert_string_equal(text, "LEAK SUMMARY: 5500 bytes in 10 allocations, 10 stacks\n"
                              "  device 0, device memory: 5500 bytes in 10 allocations\n"
                              "#1: 1000 bytes in 1 allocations, device 0, device memory\n"
                              "  sequence 10\n"
                              "    0x1009\n"
                              "    0x2000\n"
                              "#2: 900 bytes in 1 allocations, device 0, device memory\n"
                              "  sequence 9\n"
                              "    0x1008\n"
                              "    0x2000\n"
                              "(6 more groups, 3300 bytes, not listed: leak_max:2)\n"
                              "(2 more groups, 300 bytes, not listed: leak_min:300)\n");
}

static void groups_below_the_least_size_alone_are_still_totalled(void **state)
{
    (void)state;
    leak(0, 10, 0, CA_KIND_ASYNC);
    assert_int_equal(report(4096, 20), 1);
    assert_string_equal(text, "LEAK SUMMARY: 10 bytes in 1 allocations, 0 stacks\n"
                              "  device 0, async memory: 10 bytes in 1 allocations\n"
                              "(1 more groups, 10 bytes, not listed: leak_min:4096)\n");
}

static void many_leaks_are_all_counted(void **state)
{
    (void)state;
    unsigned long long bytes = 0;
    char expected[128];
    for (uint64_t i = 0; i < 50000; i++) {
        leak(stack(0x1000 + i % 3000, 0x2000), i, (unsigned)(i % 2), CA_KIND_DEVICE);
        bytes += i;
    }
    assert_int_equal(report(0, 3), 50000);
    snprintf(expected, sizeof expected,
             "LEAK SUMMARY: %llu bytes in 50000 allocations, 3000 stacks", bytes);
    assert_memory_equal(text, expected, strlen(expected));
    assert_non_null(strstr(text, "\n(2997 more groups, "));
}

static void what_destroyed_contexts_held_comes_after_what_is_live(void **state)
{
    (void)state;
    uint32_t a = stack(0x1000, 0x2000), b = stack(0x1100, 0x2000);
    context = 1;
    leak(a, 700, 0, CA_KIND_DEVICE);
    leak(b, 900, 1, CA_KIND_ASYNC);
    leak(a, 300, 0, CA_KIND_DEVICE);
    leak(0, 5, 0, CA_KIND_DEVICE);
    ca_registry_drop_context(1);
    context = 2;
    leak(b, 30, 0, CA_KIND_DEVICE);
    assert_int_equal(report(10, 1), 5);
    assert_string_equal(
        text, "LEAK SUMMARY: 30 bytes in 1 allocations, 1 stacks\n"
              "  device 0, device memory: 30 bytes in 1 allocations\n"
              "#1: 30 bytes in 1 allocations, device 0, device memory\n"
              "  sequence 5\n"
              "    0x1100\n"
              "    0x2000\n"
              "ALIVE WHEN THEIR CONTEXT WAS DESTROYED: 1905 bytes in 4 allocations, 2 stacks\n"
              "#1: 1000 bytes in 2 allocations, device 0, device memory\n"
              "  sizes 300 to 700, sequence 1 to 3\n"
              "    0x1000\n"
              "    0x2000\n"
              "(1 more groups, 900 bytes, not listed: leak_max:1)\n"
              "(1 more groups, 5 bytes, not listed: leak_min:10)\n");
}

static void what_destroyed_contexts_held_is_reported_alone(void **state)
{
    (void)state;
    context = 1;
    leak(stack(0x1000, 0x2000), 64, 0, CA_KIND_DEVICE);
    ca_registry_drop_context(1);
    assert_int_equal(report(0, 20), 1);
    assert_string_equal(
        text, "LEAK SUMMARY: 0 bytes in 0 allocations, 0 stacks\n"
              "ALIVE WHEN THEIR CONTEXT WAS DESTROYED: 64 bytes in 1 allocations, 1 stacks\n"
              "#1: 64 bytes in 1 allocations, device 0, device memory\n"
              "  sequence 1\n"
              "    0x1000\n"
              "    0x2000\n");
}

/* --- exit in the middle of something ---------------------------------------------------------- */

/* Called with the next memory that is mapped: tables grow under their locks. By another thread, as
 * where one of them exits right then, so that debug builds find no lock held by the one that
 * reports.
 */
static void (*at_next_map)(void);

static void *call_it(void *handler)
{
    ((void (*)(void))handler)();
    return NULL;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void (*handler)(void) = at_next_map;
    if (handler) {
        pthread_t thread;
        at_next_map = NULL;
        if (pthread_create(&thread, NULL, call_it, (void *)handler) == 0)
            pthread_join(thread, NULL);
    }
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

static long reported;

static void report_now(void)
{
    reported = report(0, 20);
}

/* Leaks that there were before the last one, amid which the report was written. */
static long leak_until_a_table_grows(long before)
{
    at_next_map = report_now;
    for (leak(0, 1, 0, CA_KIND_DEVICE); at_next_map; before++)
        leak(0, 1, 0, CA_KIND_DEVICE);
    return before;
}

static void a_report_amid_an_allocation_has_all_but_that(void **state)
{
    (void)state;
    enum { MANY = 6400 };
    for (int i = 0; i < MANY; i++)
        leak(0, 1, 0, CA_KIND_DEVICE);
    long before = leak_until_a_table_grows(MANY);
    assert_int_equal(reported, before);
    const char *second = strchr(text, '\n') + 1;
    const char *expected = "(incomplete: 1 of 17 stripes were in use)\n  device 0, device memory: ";
    assert_memory_equal(second, expected, strlen(expected));
    assert_int_equal(report(0, 20), before + 1);
    assert_null(strstr(text, "incomplete"));
}

static void unheard(void)
{
}

static void a_peak_found_amid_an_allocation_has_all_but_that(void **state)
{
    (void)state;
    enum { MANY = 640 };
    ca_peak_listen(unheard);
    with_peak = true;
    for (int i = 0; i < MANY; i++)
        leak(0, 1, 0, CA_KIND_DEVICE);
    long before = leak_until_a_table_grows(MANY);
    const char *peak = strstr(text, "PEAK: ");
    assert_non_null(peak);
    assert_int_equal(atol(peak + 6), before);
    const char *expected = "(incomplete: some of it could not be read: in use, or no memory)\n"
                           "  device 0, device memory: ";
    assert_memory_equal(strchr(peak, '\n') + 1, expected, strlen(expected));
}

static void a_report_amid_a_destroyed_context_has_its_total_alone(void **state)
{
    (void)state;
    ca_allocation_t record = {.address = next_address, .bytes = 64};
    ca_registry_total_t gone = {1, 64};
    at_next_map = report_now;
    ca_lost_add(gone, &record, 1);
    assert_int_equal(reported, 1);
    assert_non_null(strstr(text, "ALIVE WHEN THEIR CONTEXT WAS DESTROYED: "
                                 "64 bytes in 1 allocations, 0 stacks\n"
                                 "(incomplete: some of it could not be read: "));
}

static void *report_although_cancelled(void *arg)
{
    static ca_out_t out; /* as are the options: a cancelled thread's frames stay poisoned by ASan */
    static const ca_model_options_t options = {.leak_max = 20};
    ca_out_open(&out, STDERR_FILENO);
    pthread_cancel(pthread_self());
    ca_model_t *model = ca_model_make(&options);
    ca_format_text(&out, model); /* not flushed */
    reported = (long)model->sections[CA_SECTION_LEAKED].count;
    ca_model_free(model);
    *(bool *)arg = true;
    pthread_testcancel();
    return NULL;
}

static void a_report_is_not_cancelled(void **state)
{
    (void)state;
    bool finished = false;
    pthread_t thread;
    void *result;
    leak(stack((uintptr_t)fresh + 4, (uintptr_t)leak + 4), 64, 0, CA_KIND_DEVICE);
    assert_int_equal(pthread_create(&thread, NULL, report_although_cancelled, &finished), 0);
    pthread_join(thread, &result);
    assert_true(finished);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    assert_int_equal(reported, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_is_written_where_nothing_leaked, fresh),
        cmocka_unit_test_setup(one_leak_of_one_byte, fresh),
        cmocka_unit_test_setup(groups_are_by_stack_device_and_kind_largest_first, fresh),
        cmocka_unit_test_setup(the_rank_is_in_the_first_line, fresh),
        cmocka_unit_test_setup(sampled_stacks_are_said_to_be_so_in_the_first_line, fresh),
        cmocka_unit_test_setup(equal_groups_come_by_count_and_nameless_ones_by_age, fresh),
        cmocka_unit_test_setup(omitted_groups_are_totalled_with_the_reason, fresh),
        cmocka_unit_test_setup(groups_below_the_least_size_alone_are_still_totalled, fresh),
        cmocka_unit_test_setup(many_leaks_are_all_counted, fresh),
        cmocka_unit_test_setup(what_destroyed_contexts_held_comes_after_what_is_live, fresh),
        cmocka_unit_test_setup(what_destroyed_contexts_held_is_reported_alone, fresh),
        cmocka_unit_test_setup(a_report_amid_an_allocation_has_all_but_that, fresh),
        cmocka_unit_test_setup(a_peak_found_amid_an_allocation_has_all_but_that, fresh),
        cmocka_unit_test_setup(a_report_amid_a_destroyed_context_has_its_total_alone, fresh),
        cmocka_unit_test_setup(a_report_is_not_cancelled, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
