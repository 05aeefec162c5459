/* What a report says of the records, apart from how it is written. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include <errno.h>

#include "registry/report/glob.h"
#include "base/mem.h"
#include "registry/names/sort.h"
#include "registry/report/formats.h"
#include "registry/table/allocated.h"
#include "registry/table/groups.h"
#include "registry/stack/stack.h"
#include "registry/report/suppress.h"
#include "registry/table/threads.h"
#include "one_thread.h"

static uint64_t next_address;

static int fresh(void **state)
{
    (void)state;
    ca_registry_reset_after_fork();
    ca_stack_reset_after_fork();
    ca_threads_reset_after_fork();
    next_address = 0x7f0000000000;
    return 0;
}

static void leak(uint32_t stack, uint32_t thread, uint64_t bytes, uint64_t stream)
{
    ca_allocation_t record = {.address = next_address, .bytes = bytes, .kind = CA_KIND_ASYNC};
    record.stack = stack;
    record.thread = thread;
    record.stream = stream;
    record.context = 1;
    next_address += 512;
    assert_int_equal(ca_registry_insert(&record), 0);
}

static uint32_t stack_at(const void *code)
{
    uintptr_t frame = (uintptr_t)code;
    return ca_stack_intern(&frame, 1);
}

static ca_model_t *make(void)
{
    ca_model_options_t options = {.leak_max = 1000000, .cause = "dump", .version = "7"};
    ca_model_t *model = ca_model_make(&options);
    assert_non_null(model);
    return model;
}

static const ca_model_section_t *leaked(const ca_model_t *model)
{
    return &model->sections[CA_SECTION_LEAKED];
}

/* --- groups ----------------------------------------------------------------------------------- */

static void addresses_in_one_function_are_one_group(void **state)
{
    (void)state;
    const char *code = (const char *)(uintptr_t)make;
    leak(stack_at(code + 5), 2, 10, 0);
    leak(stack_at(code + 9), 3, 30, 0);
    leak(stack_at(code + 7), 1, 20, 0);
    leak(stack_at((const char *)(uintptr_t)stack_at + 5), 0, 5, 0);
    ca_model_t *model = make();
    assert_int_equal(leaked(model)->group_count, 2);
    assert_int_equal(leaked(model)->stacks, 2);
    const ca_model_group_t *group = &leaked(model)->groups[0];
    assert_int_equal(group->count, 3);
    assert_int_equal(group->thread_count, 3);
    assert_int_equal(group->smallest, 10);
    assert_int_equal(group->largest, 30);
    assert_int_equal(group->first, 1);
    assert_int_equal(group->last, 3);
    assert_int_equal(group->frames[0]->address, (uintptr_t)code + 5); /* the earliest's */
    ca_model_free(model);
}

static void addresses_without_a_name_are_told_apart(void **state)
{
    (void)state;
    leak(stack_at((void *)0x1000), 0, 10, 0);
    leak(stack_at((void *)0x1001), 0, 10, 0);
    ca_model_t *model = make();
    assert_int_equal(leaked(model)->group_count, 2);
    ca_model_free(model);
}

static void the_stream_is_that_of_the_latest_that_has_one(void **state)
{
    (void)state;
    leak(0, 1, 10, 0xa);
    leak(0, 2, 10, 0xb);
    leak(0, 1, 10, 0xc);
    leak(0, 2, 10, 0);
    ca_model_t *model = make();
    assert_int_equal(leaked(model)->group_count, 1);
    assert_int_equal(leaked(model)->groups[0].stream, 0xc);
    assert_int_equal(leaked(model)->groups[0].thread_count, 2);
    ca_model_free(model);
}

/* --- what was ever allocated ------------------------------------------------------------------ */

static ca_allocation_t allocate(const void *code, uint32_t thread, uint64_t bytes)
{
    ca_allocation_t record = {.address = next_address, .bytes = bytes, .kind = CA_KIND_DEVICE};
    record.stack = stack_at(code);
    record.thread = thread;
    next_address += 512;
    assert_int_equal(ca_registry_insert(&record), 0);
    ca_allocated_add(&record);
    return record;
}

static void release(ca_allocation_t record)
{
    assert_true(ca_registry_erase(record.address, &record));
    ca_allocated_freed(&record);
}

static void assert_group(const ca_model_group_t *group, uint64_t count, uint64_t allocations,
                         uint64_t temporaries)
{
    assert_int_equal(group->count, count);
    assert_int_equal(group->allocations, allocations);
    assert_int_equal(group->temporaries, temporaries);
}

static void groups_say_how_many_there_ever_were_and_how_many_were_temporary(void **state)
{
    (void)state;
    const char *code = (const char *)(uintptr_t)make;
    const char *other = (const char *)(uintptr_t)stack_at;
    ca_allocation_t kept = allocate(code + 5, 1, 100);
    for (unsigned i = 0; i < 7; i++) /* at another place of the function */
        release(allocate(code + 9, 1, 10));
    ca_allocation_t first = allocate(other + 5, 1, 1000), second = allocate(code + 9, 1, 10);
    release(second); /* the last that was allocated, */
    release(first);  /* which this one is not */
    release(kept);
    kept = allocate(code + 5, 1, 100);
    ca_model_t *model = make();
    const ca_model_section_t *all = &model->sections[CA_SECTION_ALLOCATED];
    assert_true(model->counted && all->present);
    assert_int_equal(leaked(model)->group_count, 1);
    assert_group(&leaked(model)->groups[0], 1, 10, 8);
    assert_int_equal(all->group_count, 2);
    assert_int_equal(all->count, 11);
    assert_int_equal(all->bytes, 1000 + 200 + 80);
    assert_int_equal(all->temporaries, 8);
    assert_group(&all->groups[0], 1, 1, 0);
    assert_group(&all->groups[1], 10, 10, 8);
    assert_int_equal(all->groups[1].first, 1);
    assert_int_equal(all->groups[1].last, 11);
    ca_model_free(model);
}

/* Another thread frees it, and is given the address. */
static void *take_over(void *argument)
{
    ca_allocation_t *record = argument;
    release(*record);
    record->thread = 2;
    assert_int_equal(ca_registry_insert(record), 0);
    ca_allocated_add(record);
    return NULL;
}

static void what_another_thread_frees_is_not_temporary(void **state)
{
    (void)state;
    const char *code = (const char *)(uintptr_t)make;
    pthread_t thread;
    ca_allocation_t record = allocate(code + 5, 1, 100);
    assert_int_equal(pthread_create(&thread, NULL, take_over, &record), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    release(record);
    ca_model_t *model = make();
    assert_int_equal(model->sections[CA_SECTION_ALLOCATED].temporaries, 0);
    assert_true(ca_model_is_empty(model));
    ca_model_free(model);
}

static void without_counts_a_model_has_none(void **state)
{
    (void)state;
    leak(stack_at((const char *)(uintptr_t)make + 5), 1, 10, 0);
    ca_model_t *model = make();
    assert_false(model->counted || model->sections[CA_SECTION_ALLOCATED].present);
    assert_group(&leaked(model)->groups[0], 1, 0, 0);
    ca_model_free(model);
}

static void what_a_model_says_of_the_process(void **state)
{
    (void)state;
    ca_model_t *model = make();
    assert_true(ca_model_is_empty(model));
    assert_int_equal(model->pid, getpid());
    assert_string_equal(model->program, "test_model");
    assert_string_equal(model->cause, "dump");
    assert_string_equal(model->version, "7");
    assert_true(leaked(model)->present);
    assert_string_equal(model->sections[CA_SECTION_PEAK].name, "peak");
    assert_false(model->sections[CA_SECTION_PEAK].present);
    ca_model_free(model);
    ca_model_free(NULL);
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { NO_THREAD = 0x7ffff000 }; /* beyond what the kernel gives */

static void threads_that_ended_keep_their_names(void **state)
{
    (void)state;
    char name[CA_THREAD_NAME], before[CA_THREAD_NAME], expected[CA_THREAD_NAME];
    prctl(PR_GET_NAME, before);
    for (unsigned i = 0; i < 3000; i++) {
        snprintf(expected, sizeof expected, "n%u", i);
        prctl(PR_SET_NAME, expected);
        ca_threads_note(NO_THREAD + i);
    }
    prctl(PR_SET_NAME, "again");
    ca_threads_note(NO_THREAD + 7);
    prctl(PR_SET_NAME, before);
    for (unsigned i = 0; i < 3000; i++) {
        snprintf(expected, sizeof expected, i == 7 ? "again" : "n%u", i);
        ca_threads_name(NO_THREAD + i, name);
        assert_string_equal(name, expected);
    }
    ca_threads_name(NO_THREAD + 3000, name);
    assert_int_equal(strtoul(name, NULL, 10), NO_THREAD + 3000);
}

static void names_of_threads_that_run_are_those_of_now(void **state)
{
    (void)state;
    char name[CA_THREAD_NAME], before[CA_THREAD_NAME];
    uint32_t self = (uint32_t)syscall(SYS_gettid);
    prctl(PR_GET_NAME, before);
    ca_threads_note(self);
    prctl(PR_SET_NAME, "fifteen letters"); /* the most */
    ca_threads_name(self, name);
    prctl(PR_SET_NAME, before);
    assert_string_equal(name, "fifteen letters");
}

static void four_names_are_told_of_many_threads(void **state)
{
    (void)state;
    for (uint32_t i = 9; i > 0; i--)
        leak(0, NO_THREAD + i, 10, 0);
    ca_model_t *model = make();
    const ca_model_group_t *group = &leaked(model)->groups[0];
    assert_int_equal(group->thread_count, 9);
    for (uint32_t i = 0; i < CA_MODEL_NAMES; i++) /* those that were first */
        assert_int_equal(strtoul(group->threads[i], NULL, 10), NO_THREAD + 9 - i);
    ca_model_free(model);
}

/* --- without memory --------------------------------------------------------------------------- */

enum { MANY = 1500 };

static long failing = -1; /* the map that fails, counted down */

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (failing >= 0 && failing-- == 0) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

/* One report in which the map number `at` fails. False where there was none left to fail. */
static bool report_with_failure(long at, const ca_rules_t *rules)
{
    static ca_out_t out;
    ca_model_options_t options = {.leak_max = 1000000, .rules = rules, .print_rules = true};
    failing = at;
    ca_model_t *model = ca_model_make(&options);
    if (model) {
        uint64_t bytes = 0, known = model->sections[CA_SECTION_SUPPRESSED].bytes;
        const ca_model_section_t *section = leaked(model);
        assert_int_equal(section->bytes + known, 5 * MANY * (MANY + 1) / 2);
        for (size_t i = 0; i < section->group_count; i++)
            bytes += section->groups[i].bytes;
        assert_true(section->incomplete ? bytes <= section->bytes : bytes == section->bytes);
        ca_out_open(&out, -1);
        ca_format_text(&out, model);
        ca_format_json(&out, model);
    }
    ca_model_free(model);
    bool failed = failing < 0;
    failing = -1;
    return failed;
}

static void any_map_may_fail(void **state)
{
    ONE_THREAD();
    (void)state;
    ca_rules_t rules = {.path = "rules"};
    const char *wrong;
    assert_int_equal(ca_suppress_add(&rules, "leak:stack_at", 13, 1, &wrong), 0);
    for (unsigned i = 1; i <= MANY; i++)
        for (unsigned j = 0; j < 5; j++)
            leak(stack_at(j ? (char *)(uintptr_t)stack_at + j : (char *)0x1000 + i), i, i, 0);
    size_t before = ca_mem_mapped();
    long at = 0;
    while (report_with_failure(at, &rules))
        at++;
    assert_in_range(at, 5, 10000);
    assert_int_equal(ca_mem_mapped(), before);
    ca_bump_free(&rules.memory);
}

/* Of one device: amid an out of memory of the device the host may lack some too. */
static void what_is_held_is_told_without_memory_or_said_to_be_incomplete(void **state)
{
    static ca_out_t out;
    const ca_model_held_t held = {.device = 0, .stack = stack_at((void *)0x1000)},
                          elsewhere = {.device = 1}, host = {.device = 0, .host = true};
    ca_model_options_t options = {.leak_max = 100, .cause = "oom", .quick = true, .held = &held};
    size_t whole = 0;
    bool failed = true;
    (void)state;
    for (unsigned i = 1; i <= 100; i++)
        leak(stack_at((char *)0x1000 + i), i, i, 0);
    for (long at = 0; failed; at++) {
        failing = at;
        ca_model_t *model = ca_model_make(&options);
        failed = failing < 0;
        failing = -1;
        if (model && !leaked(model)->incomplete) {
            assert_int_equal(leaked(model)->bytes, 5050);
            assert_int_equal(model->unpooled, 5050);
            assert_int_equal(model->asked_count, 1);
            whole++;
        }
        if (model) {
            ca_out_open(&out, -1);
            ca_format_asked(&out, model);
            ca_format_held(&out, model);
        }
        ca_model_free(model);
        assert_in_range(at, 0, 1000);
    }
    assert_true(whole > 0);
    options.held = &elsewhere;
    ca_model_t *model = ca_model_make(&options);
    assert_int_equal(leaked(model)->bytes, 0);
    ca_model_free(model);
    options.held = &host;
    model = ca_model_make(&options);
    assert_int_equal(leaked(model)->bytes, 0);
    ca_model_free(model);
}

/* --- what it is made with --------------------------------------------------------------------- */

static bool is_less(const void *a, const void *b)
{
    return *(const uint32_t *)a < *(const uint32_t *)b;
}

static void sorting_sorts(void **state)
{
    (void)state;
    static uint32_t numbers[1000];
    for (size_t count = 0; count < 1000; count += 1 + count / 3) {
        uint64_t sum = 0, after = 0;
        for (size_t i = 0; i < count; i++)
            sum += numbers[i] = (uint32_t)(i * 2654435761u) % 500;
        ca_sort(numbers, count, sizeof numbers[0], is_less);
        for (size_t i = 0; i < count; i++) {
            after += numbers[i];
            assert_true(i == 0 || numbers[i - 1] <= numbers[i]);
        }
        assert_int_equal(sum, after);
    }
}

static void pieces_are_zero_and_apart(void **state)
{
    (void)state;
    ca_bump_t bump = {NULL, 0};
    size_t before = ca_mem_mapped();
    unsigned char *last = NULL;
    size_t last_bytes = 0;
    for (size_t i = 1; i < 3000; i++) {
        size_t bytes = i % 100 == 0 ? i * 1000 : i;
        unsigned char *piece = ca_bump_take(&bump, bytes);
        assert_non_null(piece);
        assert_int_equal((uintptr_t)piece % 16, 0);
        assert_int_equal(piece[0] | piece[bytes / 2] | piece[bytes - 1], 0);
        memset(piece, 0xff, bytes);
        assert_true(!last || last + last_bytes <= piece || piece + bytes <= last);
        last = piece;
        last_bytes = bytes;
    }
    assert_null(ca_bump_take(&bump, 0));
    assert_null(ca_bump_take(&bump, SIZE_MAX));
    assert_string_equal(ca_bump_text(&bump, "text and more", 4), "text");
    ca_bump_free(&bump);
    assert_int_equal(ca_mem_mapped(), before);
}

static void patterns_are_looked_for(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool holds;
    } cases[] = {
        {"a", "bab", true},       {"^a", "bab", false},   {"a$", "bab", false},
        {"b$", "bab", true},      {"^bab$", "bab", true}, {"^ba$", "bab", false},
        {"b*b", "bab", true},     {"b*a*b", "bab", true}, {"^*$", "", true},
        {"", "", true},           {"x", "", false},       {"^ab*ab$", "abab", true},
        {"^ab*ab$", "ab", false}, {"aab", "aaab", true},  {"^a*ab$", "aaab", true},
        {"*", "any", true},       {"a*", "ba", true},     {"a^", "a^b", true},
        {"a$b", "a$b", true},     {"^$", "x", false},     {"b*$", "abc", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (ca_glob_holds(cases[i].pattern, cases[i].text) != cases[i].holds)
            fail_msg("%s in %s", cases[i].pattern, cases[i].text);
}

/* --- Python's frames -------------------------------------------------------------------------- */

static const ca_place_t allocate_place = {"c10::cuda::allocate(long)", NULL, 0},
                        call = {"_call_impl", "/t/torch/nn/modules/module.py", 9},
                        forward = {"Block.forward", "/src/train.py", 5},
                        script = {"<module>", "/src/train.py", 50};
static ca_named_t stack_of_python[] = {
    {.frame = {.address = 1,
               .place_count = 1,
               .places = &allocate_place,
               .module = "/t/c10.so",
               .text = "a",
               .lines = "a"}},
    {.frame = {.python = true, .place_count = 1, .places = &call, .text = "c", .lines = "c"}},
    {.frame = {.python = true, .place_count = 1, .places = &forward, .text = "f", .lines = "f"}},
    {.frame = {.python = true, .place_count = 1, .places = &script, .text = "s", .lines = "s"}},
};
static const ca_frame_t *const frames_of_python[] = {
    &stack_of_python[0].frame, &stack_of_python[1].frame, &stack_of_python[2].frame,
    &stack_of_python[3].frame};

static void a_rule_may_be_for_a_function_of_python_in_a_file(void **state)
{
    static const struct {
        const char *rule;
        bool fits;
    } cases[] = {
        {"leak:forward", true},
        {"leak:train.py", true},
        {"leak:train.py:Block.forward", true},
        {"leak:/train.py:Block.forward$", true},
        {"leak:^train.py:Block.forward$", false},
        {"leak:train.py:forward", false},
        {"leak:src/train.py:Block.forward", true},
        {"leak:^/src/train.py$", true},
        {"leak:train.py:<module>$", true},
        {"leak:c10.so:c10", false},
    };
    const ca_model_group_t group = {.frame_count = 4, .frames = frames_of_python};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ca_rules_t rules = {0};
        ca_bump_t memory = {0};
        const char *wrong;
        assert_int_equal(ca_suppress_add(&rules, cases[i].rule, strlen(cases[i].rule), 1, &wrong),
                         0);
        for (size_t k = 0; k < 4; k++)
            stack_of_python[k].rules = NULL; /* what an earlier case found */
        if ((ca_suppress_find(&rules, &group, &memory) == 0) != cases[i].fits)
            fail_msg("%s", cases[i].rule);
        ca_bump_free(&rules.memory);
        ca_bump_free(&memory);
    }
}

static void assert_rule_for(size_t first, size_t count, const char *rule)
{
    static ca_out_t out;
    char text[4096];
    const ca_model_group_t group = {
        .frame_count = count, .frames = frames_of_python + first, .count = 1, .bytes = 1};
    ca_model_t model = {.cause = "exit", .rank = "", .even_empty = true, .print_rules = true};
    model.text_max = 1;
    model.sections[CA_SECTION_LEAKED] =
        (ca_model_section_t){.name = "leaked", .present = true, .group_count = 1, .groups = &group};
    int fd = memfd_create("report", 0);
    ca_out_open(&out, fd);
    ca_format_text(&out, &model);
    assert_int_equal(ca_out_flush(&out), 0);
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    assert_true(length > 0);
    text[length] = '\0';
    const char *shown = strstr(text, "leak:");
    assert_non_null(shown);
    assert_string_equal(shown, rule);
}

static void the_rule_for_a_group_has_the_innermost_function_of_the_program(void **state)
{
    (void)state;
    assert_rule_for(0, 4, "leak:train.py:Block.forward$ kind=device\n");
    assert_rule_for(0, 2, "leak:module.py:_call_impl$ kind=device\n");
    assert_rule_for(0, 1, "leak:^c10::cuda::allocate(long)$ kind=device\n");
    assert_rule_for(3, 1, "leak:train.py:<module>$ kind=device\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(addresses_in_one_function_are_one_group, fresh),
        cmocka_unit_test_setup(addresses_without_a_name_are_told_apart, fresh),
        cmocka_unit_test_setup(the_stream_is_that_of_the_latest_that_has_one, fresh),
        cmocka_unit_test_setup(groups_say_how_many_there_ever_were_and_how_many_were_temporary,
                               fresh),
        cmocka_unit_test_setup(what_another_thread_frees_is_not_temporary, fresh),
        cmocka_unit_test_setup(without_counts_a_model_has_none, fresh),
        cmocka_unit_test_setup(what_a_model_says_of_the_process, fresh),
        cmocka_unit_test_setup(threads_that_ended_keep_their_names, fresh),
        cmocka_unit_test_setup(names_of_threads_that_run_are_those_of_now, fresh),
        cmocka_unit_test_setup(four_names_are_told_of_many_threads, fresh),
        cmocka_unit_test_setup(any_map_may_fail, fresh),
        cmocka_unit_test_setup(what_is_held_is_told_without_memory_or_said_to_be_incomplete, fresh),
        cmocka_unit_test(sorting_sorts),
        cmocka_unit_test(pieces_are_zero_and_apart),
        cmocka_unit_test(patterns_are_looked_for),
        cmocka_unit_test(a_rule_may_be_for_a_function_of_python_in_a_file),
        cmocka_unit_test(the_rule_for_a_group_has_the_innermost_function_of_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
