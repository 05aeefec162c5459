/* Capture, interning and naming of call stacks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/auxv.h>

#include "registry/stack/stack.h"
#include "registry/stack/unwind_words.h"
#include "registry/names/symbols.h"

#define DEPTH 16
#define NOINLINE __attribute__((noinline, noclone))

static atomic_int sink;         /* written after calls, so that none becomes a jump */
static volatile int passes = 2; /* a bound the compiler does not know: it would make two calls */
static atomic_int capture_line, middle_line, inlined_line, inlining_line;

static NOINLINE uint32_t innermost(void)
{
    capture_line = __LINE__ + 1;
    uint32_t id = ca_stack_capture();
    sink++;
    return id;
}

static NOINLINE uint32_t middle(void)
{
    middle_line = __LINE__ + 1;
    uint32_t id = innermost();
    sink++;
    return id;
}

static NOINLINE uint32_t other_middle(void)
{
    uint32_t id = innermost();
    sink += 2;
    return id;
}

static NOINLINE uint32_t recurse(unsigned levels)
{
    uint32_t id = levels == 0 ? innermost() : recurse(levels - 1);
    sink++;
    return id;
}

static inline __attribute__((always_inline)) uint32_t inlined(void)
{
    inlined_line = __LINE__ + 1;
    uint32_t id = ca_stack_capture();
    sink++;
    return id;
}

static NOINLINE uint32_t inlining(void)
{
    inlining_line = __LINE__ + 1;
    uint32_t id = inlined();
    sink++;
    return id;
}

/* --- the start -------------------------------------------------------------------------------- */

static atomic_uint early_id;
static atomic_bool early_done;

static void *capture_early(void *arg)
{
    early_id = middle();
    early_done = true;
    return arg;
}

/* Stands in for the loader's, as the start of other unwinders calls it: while armed, another thread
 * captures in the middle of the call. */
static bool early_armed;
static pthread_t early_thread;

void *dlopen(const char *name, int flags)
{
    static void *(*real)(const char *, int);
    if (!real)
        real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (early_armed) {
        early_armed = false;
        pthread_create(&early_thread, NULL, capture_early, NULL);
        /* Without the wait it is done at once. On a busy machine a yield may take long, and the
         * other thread does not wait for ever. */
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        do {
            sched_yield();
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (!early_done &&
                 (now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < 10000000);
    }
    return real(name, flags);
}

static int start(void **state)
{
    (void)state;
    ca_stack_start(DEPTH);
    return 0;
}

static bool have(const char *library)
{
    return dlopen(library, RTLD_NOW | RTLD_LOCAL) != NULL;
}

static void before_the_start_nothing_is_captured(void **state)
{
    (void)state;
    assert_int_equal(ca_stack_capture(), 0);
    assert_string_equal(ca_stack_unwinder(), "none");
}

static void the_start_opens_nothing_or_others_wait_for_it(void **state)
{
    (void)state;
    early_armed = true;
    ca_stack_start(DEPTH);
    bool opened = !early_armed;
    early_armed = false;
    if (opened)
        pthread_join(early_thread, NULL);
    else
        capture_early(NULL);
    if (ca_words_usable())
        assert_false(opened);
    assert_int_not_equal(early_id, 0);
}

static void our_own_unwinder_comes_first(void **state)
{
    (void)state;
    if (ca_words_usable())
        assert_string_equal(ca_stack_unwinder(), "eh_frame");
    else
        assert_string_not_equal(ca_stack_unwinder(), "none");
    assert_null(dlsym(RTLD_DEFAULT, "unw_backtrace"));
}

static void the_same_stack_has_the_same_id(void **state)
{
    (void)state;
    uint32_t ids[2] = {0, 0};
    for (int pass = 0; pass < passes; pass++)
        ids[pass] = middle();
    assert_int_not_equal(ids[0], 0);
    assert_int_equal(ids[0], ids[1]);
}

static void different_call_sites_differ(void **state)
{
    (void)state;
    uint32_t first = middle();
    uint32_t second = middle();
    uint32_t third = other_middle();
    assert_int_not_equal(first, second);
    assert_int_not_equal(first, third);
    assert_int_not_equal(second, third);
}

static void a_stack_is_cut_at_the_depth(void **state)
{
    (void)state;
    uintptr_t frames[CA_STACK_MAX];
    uint32_t id = recurse(50);
    assert_int_equal(ca_stack_frames(id, frames, CA_STACK_MAX), DEPTH);
    assert_int_equal(ca_stack_frames(id, frames, 5), 5);
    assert_int_equal(recurse(60), id); /* what differs lies outside the depth */
}

static void an_unknown_id_has_no_frames(void **state)
{
    (void)state;
    uintptr_t frames[1];
    assert_int_equal(ca_stack_frames(0, frames, 1), 0);
    assert_int_equal(ca_stack_frames((uint32_t)ca_stack_count() + 1, frames, 1), 0);
    assert_int_equal(ca_stack_frames(UINT32_MAX, frames, 1), 0);
    assert_int_equal(ca_stack_intern(frames, 0), 0);
}

/* One call site, so that the frames up to here can be compared. */
static NOINLINE size_t capture_frames(uintptr_t *frames)
{
    size_t count = ca_stack_frames(middle(), frames, CA_STACK_MAX);
    sink++;
    return count;
}

static void frames_of_our_own_range_are_left_out(void **state)
{
    (void)state;
    uintptr_t all[CA_STACK_MAX], cut[CA_STACK_MAX];
    size_t before = capture_frames(all);
    ca_stack_set_own_range(all[0] - 1, all[0] + 1);
    size_t after = capture_frames(cut);
    ca_stack_set_own_range(0, 0);
    assert_in_range(before, 4, DEPTH);
    assert_int_equal(after, before - 1);
    assert_memory_equal(cut, all + 1, 2 * sizeof *cut);
}

static void many_stacks_keep_their_ids(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    uint32_t *ids = malloc(MANY * sizeof *ids);
    uintptr_t frames[3], copy[4];
    size_t known = ca_stack_count();
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uintptr_t i = 0; i < MANY; i++) {
            frames[0] = 0x400000 + i % 7;
            frames[1] = 0x500000 + i;
            frames[2] = 0x600000;
            uint32_t id = ca_stack_intern(frames, 2 + i % 2);
            if (pass == 0)
                ids[i] = id;
            else
                assert_int_equal(id, ids[i]);
            assert_int_equal(ca_stack_frames(id, copy, 4), 2 + i % 2);
            assert_memory_equal(copy, frames, (2 + i % 2) * sizeof *frames);
        }
    }
    assert_int_equal(ca_stack_count(), known + MANY);
    free(ids);
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { THREADS = 8, STACKS = 3000, REPEATS = 3 };

static uint32_t seen[THREADS][STACKS];
static atomic_uint faults;
static pthread_barrier_t barrier;

static void *intern_all(void *arg)
{
    uint32_t *ids = arg;
    uintptr_t frames[8], copy[8];
    pthread_barrier_wait(&barrier);
    for (unsigned repeat = 0; repeat < REPEATS; repeat++) {
        for (uintptr_t i = 0; i < STACKS; i++) {
            for (uintptr_t f = 0; f < 8; f++)
                frames[f] = 0x10000000 + i * f * 16;
            uint32_t id = ca_stack_intern(frames, 8);
            faults += id == 0 || (repeat > 0 && id != ids[i]);
            faults += ca_stack_frames(id, copy, 8) != 8 || memcmp(copy, frames, sizeof copy) != 0;
            ids[i] = id;
        }
        faults += middle() == 0;
    }
    return NULL;
}

static void threads_agree_on_the_ids(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    faults = 0;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, intern_all, seen[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    assert_int_equal(faults, 0);
    for (size_t i = 1; i < THREADS; i++)
        assert_memory_equal(seen[0], seen[i], sizeof seen[0]);
}

/* --- names ------------------------------------------------------------------------------------ */

static ca_bump_t memory; /* of the names, for one test */

static const char *name_of(ca_symbols_t *symbols, uintptr_t address)
{
    return ca_symbols_frame(symbols, address, 0)->frame.text;
}

static void assert_name(ca_symbols_t *symbols, uintptr_t address, const char *expected)
{
    const char *first = name_of(symbols, address);
    assert_string_equal(first, expected);
    assert_ptr_equal(name_of(symbols, address), first); /* looked up once */
}

static void names_end(ca_symbols_t *symbols)
{
    ca_symbols_close(symbols);
    ca_bump_free(&memory);
}

static void frames_have_function_names_and_lines(void **state)
{
    (void)state;
    if (!have("libdw.so.1"))
        skip();
    uintptr_t frames[CA_STACK_MAX];
    char expected[256];
    assert_in_range(ca_stack_frames(middle(), frames, CA_STACK_MAX), 3, DEPTH);
    ca_symbols_t *symbols = ca_symbols_open(&memory);
    snprintf(expected, sizeof expected, "innermost at test_stack.c:%d", capture_line);
    assert_name(symbols, frames[0], expected);
    snprintf(expected, sizeof expected, "middle at test_stack.c:%d", middle_line);
    assert_name(symbols, frames[1], expected);
    names_end(symbols);
}

static void inlined_functions_are_named_before_their_caller(void **state)
{
    (void)state;
    if (!have("libdw.so.1"))
        skip();
    uintptr_t frames[CA_STACK_MAX];
    char expected[256];
    assert_in_range(ca_stack_frames(inlining(), frames, CA_STACK_MAX), 2, DEPTH);
    ca_symbols_t *symbols = ca_symbols_open(&memory);
    snprintf(expected, sizeof expected, "inlined at test_stack.c:%d < inlining at test_stack.c:%d",
             inlined_line, inlining_line);
    assert_name(symbols, frames[0], expected);
    *strchr(expected, '<') = '\0';
    const char *lines = ca_symbols_frame(symbols, frames[0], 0)->frame.lines;
    assert_memory_equal(lines, expected, strlen(expected) - 1);
    snprintf(expected, sizeof expected, "\ninlining at test_stack.c:%d", inlining_line);
    assert_string_equal(strchr(lines, '\n'), expected);
    names_end(symbols);
}

static void a_frame_says_what_its_text_says(void **state)
{
    (void)state;
    if (!have("libdw.so.1"))
        skip();
    uintptr_t frames[CA_STACK_MAX];
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    assert_in_range(ca_stack_frames(inlining(), frames, CA_STACK_MAX), 2, DEPTH);
    ca_symbols_t *symbols = ca_symbols_open(&memory);
    const ca_frame_t *frame = &ca_symbols_frame(symbols, frames[0], 0)->frame;
    assert_int_equal(frame->address, frames[0]);
    assert_string_equal(frame->module, self);
    assert_in_range(frame->offset, 1, 1 << 24);
    assert_int_equal(strlen(frame->build_id), 40); /* SHA-1, as ld makes it */
    assert_int_equal(strspn(frame->build_id, "0123456789abcdef"), 40);
    assert_int_equal(frame->place_count, 2);
    assert_string_equal(frame->places[0].function, "inlined");
    assert_string_equal(frame->places[1].function, "inlining");
    assert_int_equal(frame->places[0].line, inlined_line);
    assert_int_equal(frame->places[1].line, inlining_line);
    assert_non_null(strstr(frame->places[0].file, "unit/test_stack.c"));
    names_end(symbols);
}

static void a_module_without_debug_information_gives_function_and_offset(void **state)
{
    (void)state;
    uintptr_t inside_libc = (uintptr_t)dlsym(RTLD_DEFAULT, "qsort_r") + 5;
    ca_symbols_t *symbols = ca_symbols_open(&memory);
    /* with a line where libc's debug file is there */
    assert_non_null(strstr(name_of(symbols, inside_libc), "qsort_r"));
    names_end(symbols);
}

static void addresses_in_no_file_are_named_too(void **state)
{
    (void)state;
    ca_symbols_t *symbols = ca_symbols_open(&memory);
    assert_name(symbols, 0x1234, "0x1234");
    uintptr_t vdso = (uintptr_t)getauxval(AT_SYSINFO_EHDR);
    if (vdso)
        assert_non_null(strstr(name_of(symbols, vdso + 1), "vdso"));
    names_end(symbols);
    ca_symbols_close(NULL);
    assert_non_null(name_of(NULL, 0x1234));
}

/* --- processes -------------------------------------------------------------------------------- */

static void errno_survives(void **state)
{
    (void)state;
    errno = 77;
    middle();
    assert_int_equal(errno, 77);
}

/* In a child without any further memory: known stacks keep their ids, new ones get none. */
static bool survives_without_memory(void)
{
    struct rlimit none = {1, 1};
    uintptr_t frames[2] = {0x71000000, 0};
    uint32_t known = ca_stack_intern(frames, 2), refused = 0;
    setrlimit(RLIMIT_AS, &none);
    for (frames[1] = 1; frames[1] < 200000; frames[1]++)
        refused += ca_stack_intern(frames, 2) == 0;
    frames[1] = 0;
    return refused > 0 && ca_stack_intern(frames, 2) == known;
}

static void without_memory_known_stacks_stay_known(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizers need memory themselves */
#endif
    pid_t child = fork();
    if (child == 0)
        _exit(survives_without_memory() ? 0 : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void the_child_of_a_fork_captures_nothing(void **state)
{
    (void)state;
    middle();
    pid_t child = fork();
    if (child == 0) {
        ca_stack_reset_after_fork();
        uintptr_t frames[2] = {0x1000, 0x2000};
        bool right = ca_stack_count() == 0 && middle() == 0 && ca_stack_intern(frames, 2) == 1 &&
                     ca_stack_frames(1, frames, 2) == 2;
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_not_equal(middle(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_the_start_nothing_is_captured),
        cmocka_unit_test(the_start_opens_nothing_or_others_wait_for_it),
        cmocka_unit_test_setup(our_own_unwinder_comes_first, start),
        cmocka_unit_test(the_same_stack_has_the_same_id),
        cmocka_unit_test(different_call_sites_differ),
        cmocka_unit_test(a_stack_is_cut_at_the_depth),
        cmocka_unit_test(an_unknown_id_has_no_frames),
        cmocka_unit_test(frames_of_our_own_range_are_left_out),
        cmocka_unit_test(many_stacks_keep_their_ids),
        cmocka_unit_test(threads_agree_on_the_ids),
        cmocka_unit_test(frames_have_function_names_and_lines),
        cmocka_unit_test(inlined_functions_are_named_before_their_caller),
        cmocka_unit_test(a_frame_says_what_its_text_says),
        cmocka_unit_test(a_module_without_debug_information_gives_function_and_offset),
        cmocka_unit_test(addresses_in_no_file_are_named_too),
        cmocka_unit_test(errno_survives),
        cmocka_unit_test(without_memory_known_stacks_stay_known),
        cmocka_unit_test(the_child_of_a_fork_captures_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
