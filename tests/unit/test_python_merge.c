/* Where Python frames stand among native ones. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "registry/python/merge.h"
#include "registry/stack/modules.h"

#define STACK 0x7000
#define SITE(n) (CA_PYTHON_WORD | (n))

static const ca_py_code_range_t interpreter = {0x1000, 0x2000};
static const uint32_t sites[] = {11, 12, 13};

/* Of a module of the program's, of the interpreter, of that again, of another. */
static const uintptr_t frames[] = {0x5000, 0x1100, 0x1200, 0x6000};
static const uintptr_t sps[] = {STACK, STACK + 0x100, STACK + 0x200, STACK + 0x300, STACK + 0x400};
static const ca_native_part_t native = {frames, sps, 4, 5};

static ca_py_walk_t walk;
static uintptr_t words[16];

static void walk_is(unsigned count, const ca_py_run_t *runs, unsigned run_count)
{
    walk = (ca_py_walk_t){.frame_count = count, .run_count = run_count, .whole = true};
    for (unsigned i = 0; i < run_count; i++)
        walk.runs[i] = runs[i];
}

static void check(const ca_native_part_t *part, size_t count, const uintptr_t *expected)
{
    assert_int_equal(ca_py_merge(part, &walk, sites, interpreter, words), count);
    assert_memory_equal(words, expected, count * sizeof *words);
}

static void a_run_takes_the_place_of_the_frame_that_runs_it(void **state)
{
    (void)state;
    const ca_py_run_t runs[] = {{STACK + 0x110, 2}, {STACK + 0x3f8, 3}};
    walk_is(3, runs, 2);
    check(&native, 4, (uintptr_t[]){0x5000, SITE(11), SITE(12), SITE(13)});
}

static void without_places_all_stand_where_the_innermost_does(void **state)
{
    (void)state;
    const ca_py_run_t run = {0, 3};
    walk_is(3, &run, 1);
    check(&native, 5, (uintptr_t[]){0x5000, SITE(11), SITE(12), SITE(13), 0x6000});
}

static void what_lies_beyond_the_native_part_follows(void **state)
{
    (void)state;
    const ca_py_run_t runs[] = {{STACK + 0x110, 1}, {STACK + 0x1000, 3}};
    const ca_native_part_t part = {frames, sps, 2, 3};
    walk_is(3, runs, 2);
    check(&part, 4, (uintptr_t[]){0x5000, SITE(11), SITE(12), SITE(13)});
}

/* Its part of the stack ends where the next one's begins, which is not known. */
static void the_last_frame_has_no_run(void **state)
{
    (void)state;
    const ca_py_run_t run = {STACK + 0x110, 1};
    const ca_native_part_t part = {frames, sps, 2, 2};
    walk_is(1, &run, 1);
    check(&part, 2, (uintptr_t[]){0x5000, SITE(11)});
    const uintptr_t others[] = {0x5000, 0x5100};
    const ca_native_part_t own = {others, sps, 2, 2};
    check(&own, 3, (uintptr_t[]){0x5000, 0x5100, SITE(11)});
}

static void python_alone(void **state)
{
    (void)state;
    const ca_py_run_t runs[] = {{STACK + 0x110, 2}, {STACK + 0x3f8, 3}};
    walk_is(3, runs, 2);
    check(NULL, 3, (uintptr_t[]){SITE(11), SITE(12), SITE(13)});
}

/* A state may have a frame of its own, which is a run without frames and on no C stack. */
static void nothing_of_the_c_library_is_behind_the_outermost(void **state)
{
    (void)state;
    const uintptr_t start = (uintptr_t)dlsym(RTLD_DEFAULT, "getpid") + 4;
    const uintptr_t started[] = {start, 0x1100, start};
    const ca_native_part_t part = {started, sps, 3, 4};
    const ca_py_run_t runs[] = {{STACK + 0x110, 1}, {0x100, 1}};
    ca_modules_note();
    walk_is(1, runs, 2);
    check(&part, 2, (uintptr_t[]){start, SITE(11)});
    walk.whole = false;
    check(&part, 3, (uintptr_t[]){start, SITE(11), start});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_takes_the_place_of_the_frame_that_runs_it),
        cmocka_unit_test(without_places_all_stand_where_the_innermost_does),
        cmocka_unit_test(what_lies_beyond_the_native_part_follows),
        cmocka_unit_test(the_last_frame_has_no_run),
        cmocka_unit_test(python_alone),
        cmocka_unit_test(nothing_of_the_c_library_is_behind_the_outermost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
