/* The unwinder of our own against glibc's, and what it says that it read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "registry/stack/eh_frame.h"
#include "registry/stack/unload.h"
#include "registry/stack/unwind_words.h"

enum { FRAMES = 64 };

static ca_rules_t rules;
static ca_unwind_start_t stack; /* its bounds alone */
static ca_words_t words;
static size_t looked;

#define KEEP_FRAME __asm__ volatile("" ::: "memory")

/* Our frames from the caller of this on, which must be glibc's, up to the end. */
static __attribute__((noinline)) void look(void)
{
    void *ours[FRAMES], *theirs[FRAMES];
    ca_unwind_start_t start = stack;
    start.caller = (uintptr_t)__builtin_return_address(0);
    start.frame = (uintptr_t)__builtin_frame_address(0);
    size_t count = (size_t)backtrace(theirs, FRAMES), first = 0;
    while (first < count && (uintptr_t)theirs[first] != start.caller)
        first++;
    assert_true(first < count);
    ca_unwound_t unwound = {.ended = false};
    assert_int_equal(ca_words_frames(&start, &rules, ours, FRAMES, &unwound), count - first);
    assert_true(unwound.ended);
    assert_memory_equal(ours, theirs + first, (count - first) * sizeof *ours);
    assert_int_equal(ca_words_frames(&start, NULL, ours, 3, &unwound), 3);
    assert_memory_equal(ours, theirs + first, 3 * sizeof *ours);

    words.start = start;
    assert_true(ca_words_unwind(&words, &rules, ours, 3, false));
    assert_in_range(words.count, 2, 6);
    assert_true(ca_words_unwind(&words, NULL, theirs + first, count - first, true));
    assert_true(words.count >= count - first - 1);
    assert_false(ca_words_unwind(&words, &rules, theirs + first, 3, true));
    ours[2] = (char *)ours[2] + 1;
    assert_false(ca_words_unwind(&words, &rules, ours, 3, false));
    looked++;
    KEEP_FRAME;
}

static __attribute__((noinline)) void plain(int depth)
{
    volatile char room[100];
    room[0] = (char)depth;
    if (depth > 0)
        plain(depth - 1);
    else
        look();
    room[1] = room[0];
}

/* Its frame is found by the frame pointer. */
static __attribute__((noinline)) void of_any_size(size_t bytes)
{
    volatile char room[bytes];
    room[0] = 1;
    plain(2);
    room[bytes - 1] = room[0];
}

/* And of this one by a word beside it: its last arguments lie above what it aligns. */
static size_t of_any_size_aligned(size_t a, size_t b, size_t c, size_t d, size_t e, size_t f,
                                  size_t bytes, size_t h)
{
    volatile char room[256] __attribute__((aligned(128)));
    volatile char more[bytes];
    room[0] = more[0] = (char)(a + b + c + d + e + f);
    assert_int_equal((uintptr_t)&room[0] % 128, 0);
    of_any_size(bytes);
    room[1] = room[0];
    more[bytes - 1] = more[0];
    return bytes + h;
}

static size_t (*volatile called)(size_t a, size_t b, size_t c, size_t d, size_t e, size_t f,
                                 size_t bytes, size_t h) = of_any_size_aligned;

static __attribute__((noinline)) void aligned(size_t bytes)
{
    assert_int_equal(called(1, 2, 3, 4, 5, 6, bytes, 8), bytes + 8);
}

static int compare(const void *a, const void *b)
{
    aligned(300);
    return *(const int *)a - *(const int *)b;
}

static void every_kind_of_frame_is_unwound_as_glibc_does(void **state)
{
    (void)state;
    int numbers[] = {3, 1, 2};
    looked = 0;
    plain(0);
    plain(20);
    of_any_size(1000);
    aligned(77);
    qsort(numbers, 3, sizeof numbers[0], compare); /* through another library */
    assert_true(looked >= 6);
}

static void find_bounds(void)
{
    pthread_attr_t attributes;
    void *low;
    size_t bytes;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &low, &bytes), 0);
    pthread_attr_destroy(&attributes);
    stack = (ca_unwind_start_t){.stack_low = (uintptr_t)low, .stack_high = (uintptr_t)low + bytes};
}

static void *in_thread(void *unused)
{
    ca_unwind_start_t mains = stack;
    find_bounds();
    aligned(10);
    stack = mains;
    return unused;
}

static void a_thread_s_stack_has_its_end(void **state)
{
    (void)state;
    pthread_t thread;
    looked = 0;
    assert_int_equal(pthread_create(&thread, NULL, in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(looked, 1);
}

static void what_nobody_described_is_not_known(void **state)
{
    (void)state;
    ca_frame_rule_t rule;
    char *heap = malloc(64), on_stack;
    assert_false(ca_frame_rule((uintptr_t)heap, &rule));
    assert_false(ca_frame_rule((uintptr_t)&on_stack, &rule));
    assert_false(ca_frame_rule(0, &rule));
    assert_false(ca_frame_rule(1, &rule));
    assert_false(ca_frame_rule(UINTPTR_MAX, &rule));
    assert_true(ca_frame_rule((uintptr_t)look + 1, &rule));
    free(heap);
}

/* None of them may be read for, or taken, wherever in a function they point. */
static void every_instruction_of_the_c_library_has_a_rule_or_none(void **state)
{
    (void)state;
    ca_frame_rule_t rule;
    uintptr_t first = (uintptr_t)dlsym(RTLD_DEFAULT, "qsort") & ~(uintptr_t)0xffff;
    size_t known = 0;
    for (uintptr_t at = first; at < first + 0x30000; at++)
        known += ca_frame_rule(at, &rule) && !rule.outermost;
    assert_true(known > 0x20000);
}

/* The table of functions is still there, and leads out of the object. */
static void a_library_without_its_descriptions_ends_the_stack(void **state)
{
    (void)state;
    char path[] = "/tmp/test_unwind_words.XXXXXX", command[4096];
    Dl_info info;
    ca_frame_rule_t rule;
    void *whole = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!whole) {
        skip();
        return;
    }
    assert_int_not_equal(dladdr(dlsym(whole, "cudaMalloc"), &info), 0);
    assert_true(ca_frame_rule((uintptr_t)info.dli_saddr, &rule));
    assert_false(rule.outermost);

    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(command, sizeof command, "objcopy -R .eh_frame '%s' %s", info.dli_fname, path);
    void *stripped = system(command) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    unlink(path);
    assert_non_null(stripped);
    if (stripped) {
        assert_true(ca_frame_rule((uintptr_t)dlsym(stripped, "cudaMalloc"), &rule));
        assert_true(rule.outermost);
        dlclose(stripped);
    }
    dlclose(whole);
}

static ca_unwound_t within;

static __attribute__((noinline)) size_t frames_within(uintptr_t low, uintptr_t high)
{
    void *frames[FRAMES];
    const ca_unwind_start_t start = {.caller = (uintptr_t)__builtin_return_address(0),
                                     .frame = (uintptr_t)__builtin_frame_address(0),
                                     .stack_low = low,
                                     .stack_high = high};
    size_t count = ca_words_frames(&start, &rules, frames, FRAMES, &within);
    KEEP_FRAME;
    return count;
}

static void spoil_rules(uint64_t epoch)
{
    rules.epoch = epoch;
    for (size_t i = 0; i < CA_RULES; i++)
        rules.known[i / CA_RULE_WAYS][i % CA_RULE_WAYS].rule.cfa_offset += 8;
}

static void rules_are_known_until_something_is_unloaded(void **state)
{
    (void)state;
    size_t count = frames_within(stack.stack_low, stack.stack_high);
    spoil_rules(ca_unload_epoch());
    assert_int_not_equal(frames_within(stack.stack_low, stack.stack_high), count);
    spoil_rules(ca_unload_epoch() + 1);
    assert_int_equal(frames_within(stack.stack_low, stack.stack_high), count);
}

static uintptr_t called_from; /* where the last call of note_place returns to */

static __attribute__((noinline)) size_t note_place(void)
{
    called_from = (uintptr_t)__builtin_return_address(0);
    size_t count = frames_within(stack.stack_low, stack.stack_high);
    KEEP_FRAME;
    return count;
}

enum { PLACES = 128 };

/* Calls that lie at distances of all kinds: the hash spreads equal ones evenly. */
#define ONE(n)                                                                                     \
    case n:                                                                                        \
        count = note_place();                                                                      \
        __asm__ volatile(".skip " #n " * " #n " * 37 % 251, 0x90");                                \
        break;
#define EIGHT(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7)
#define SOME(n)                                                                                    \
    EIGHT(n##0) EIGHT(n##1) EIGHT(n##2) EIGHT(n##3) EIGHT(n##4) EIGHT(n##5) EIGHT(n##6) EIGHT(n##7)

/* A stack that goes through a place of its own; the numbers are octal. */
static __attribute__((noinline)) size_t by_place(int place)
{
    size_t count = 0;
    switch (place) {
        SOME(00)
        SOME(01)
    default:
        break;
    }
    return count;
}

static bool is_rule_known(uintptr_t returns)
{
    for (size_t i = 0; i < CA_RULES; i++)
        if (rules.known[i / CA_RULE_WAYS][i % CA_RULE_WAYS].returns == returns)
            return true;
    return false;
}

static void addresses_of_one_set_are_known_together(void **state)
{
    (void)state;
    uintptr_t returns[PLACES];
    int first = 0, second = 0;
    for (int place = 0; place < PLACES; place++) {
        assert_true(by_place(place) > 3);
        returns[place] = called_from;
        for (int other = 0; second == 0 && other < place; other++)
            if (ca_rules_set(returns[other]) == ca_rules_set(returns[place])) {
                assert_int_not_equal(returns[other], returns[place]);
                first = other;
                second = place;
            }
    }
    assert_int_not_equal(second, 0);
    memset(&rules, 0, sizeof rules);

    by_place(first);
    by_place(second);

    assert_true(is_rule_known(returns[first]));
    assert_true(is_rule_known(returns[second]));
}

/* As many as a stack has functions; so that none is put out again and again. */
static void addresses_at_even_distances_are_spread(void **state)
{
    (void)state;
    enum { SETS = 256, ADDRESSES = 24, IN_ONE_MOST = 4 };
    for (uintptr_t distance = 16; distance <= 4096; distance += 16) {
        uint8_t in[SETS] = {0};
        for (uintptr_t i = 0; i < ADDRESSES; i++) {
            uint64_t set = ca_hash_word(0x7fc358b77000 + i * distance) >> 56;
            assert_true(++in[set] <= IN_ONE_MOST);
        }
    }
}

static void nothing_is_read_outside_the_stack(void **state)
{
    (void)state;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    size_t count = frames_within(stack.stack_low, stack.stack_high);
    assert_true(count > 3);
    assert_true(within.ended);
    assert_in_range(frames_within(stack.stack_low, here + 64), 1, count - 1);
    assert_false(within.ended);
    assert_int_equal(frames_within(here, stack.stack_high), 0);
    assert_false(within.ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_frame_is_unwound_as_glibc_does),
        cmocka_unit_test(a_thread_s_stack_has_its_end),
        cmocka_unit_test(what_nobody_described_is_not_known),
        cmocka_unit_test(every_instruction_of_the_c_library_has_a_rule_or_none),
        cmocka_unit_test(a_library_without_its_descriptions_ends_the_stack),
        cmocka_unit_test(rules_are_known_until_something_is_unloaded),
        cmocka_unit_test(addresses_of_one_set_are_known_together),
        cmocka_unit_test(addresses_at_even_distances_are_spread),
        cmocka_unit_test(nothing_is_read_outside_the_stack),
    };
    if (!ca_words_usable())
        return 77;
    find_bounds();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
