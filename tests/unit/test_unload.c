/* What is known of code is forgotten when the code goes, and only then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>

#include "registry/stack/stack_cache.h"
#include "registry/stack/stack.h"
#include "registry/stack/unload.h"
#include "registry/stack/unwind_words.h"

/* Small, of the C library's package, and needed by nobody. */
static const char *const names[] = {"libBrokenLocale.so.1", "libanl.so.1"};

static volatile int sink;

static __attribute__((noinline)) uint32_t captured(void)
{
    uint32_t id = ca_stack_capture();
    sink++;
    return id;
}

/* How many of ten captures of one stack were found again. */
static __attribute__((noinline)) size_t found_again(void)
{
    size_t hits = ca_stack_cache_hits();
    for (volatile int i = 0; i < 10; i++)
        captured();
    return ca_stack_cache_hits() - hits;
}

/* Whether the stack that is captured here is forgotten over what `act` does. */
static bool forgotten(void (*act)(void))
{
    size_t found = 0;
    for (volatile int i = 0; i < 3; i++) {
        if (i == 2)
            act();
        found = found_again();
        if (i == 1 && found != 10)
            fail_msg("%zu of ten were remembered", found);
    }
    return found != 10;
}

static int start(void **state)
{
    (void)state;
    ca_stack_start(16);
    for (volatile int i = 0; i < 10; i++) /* a thread's first stacks are not kept */
        captured();
    return 0;
}

/* A library that nobody else has open, or NULL. */
static void *open_one(void)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *there = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
        struct link_map *map = there ? NULL : dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (there)
            dlclose(there);
        if (map)
            return map;
    }
    return NULL;
}

static void *opened;

static void close_what_is_opened(void)
{
    assert_int_equal(ca_unload(dlclose, opened), 0);
}

static void a_closing_that_unloads_nothing_changes_nothing(void **state)
{
    uint64_t epoch = ca_unload_epoch();
    (void)state;
    void *handle = open_one();
    if (!ca_words_usable() || !handle)
        skip();
    opened = dlopen(((struct link_map *)handle)->l_name, RTLD_NOW);
    assert_ptr_equal(opened, handle);
    assert_false(forgotten(close_what_is_opened));
    assert_int_equal(ca_unload_epoch(), epoch);
    dlclose(handle);
}

static void an_unloading_is_another_epoch(void **state)
{
    uint64_t epoch = ca_unload_epoch();
    (void)state;
    opened = open_one();
    if (!ca_words_usable() || !opened)
        skip();
    assert_int_not_equal(epoch, CA_UNLOAD_UNDER_WAY);
    assert_true(forgotten(close_what_is_opened));
    assert_int_equal(ca_unload_epoch(), epoch + 1);
}

static size_t found_meanwhile;
static uint64_t epoch_meanwhile;

static void *look_from_thread(void *arg)
{
    epoch_meanwhile = ca_unload_epoch();
    return arg;
}

/* As destructors of the library do, and other threads. */
static int close_and_capture(void *handle)
{
    pthread_t thread;
    found_meanwhile = found_again();
    assert_int_equal(pthread_create(&thread, NULL, look_from_thread, NULL), 0);
    pthread_join(thread, NULL);
    errno = EXDEV;
    return handle ? 7 : 0;
}

static void close_nothing(void)
{
    errno = 0;
    assert_int_equal(ca_unload(close_and_capture, (void *)start), 7);
    assert_int_equal(errno, EXDEV);
}

static void meanwhile_nothing_is_remembered(void **state)
{
    uint64_t epoch = ca_unload_epoch();
    (void)state;
    if (!ca_words_usable())
        skip();
    assert_false(forgotten(close_nothing));
    assert_int_equal(found_meanwhile, 0);
    assert_int_equal(epoch_meanwhile, CA_UNLOAD_UNDER_WAY);
    assert_int_equal(ca_unload_epoch(), epoch);
}

static int close_within(void *handle)
{
    int result = ca_unload(close_and_capture, handle);
    found_meanwhile += found_again();
    return result;
}

static void close_nothing_twice(void)
{
    assert_int_equal(ca_unload(close_within, (void *)start), 7);
}

static void one_closing_within_another_ends_with_the_outer(void **state)
{
    uint64_t epoch = ca_unload_epoch();
    (void)state;
    if (!ca_words_usable())
        skip();
    assert_false(forgotten(close_nothing_twice));
    assert_int_equal(found_meanwhile, 0);
    assert_int_equal(ca_unload_epoch(), epoch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_closing_that_unloads_nothing_changes_nothing, start),
        cmocka_unit_test_setup(an_unloading_is_another_epoch, start),
        cmocka_unit_test_setup(meanwhile_nothing_is_remembered, start),
        cmocka_unit_test_setup(one_closing_within_another_ends_with_the_outer, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
