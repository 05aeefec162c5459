/* A program that has taken all keys for data of threads: its own data stay what they are, and call
 * stacks are captured without what a thread remembers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "registry/stack/stack.h"

static pthread_key_t first;
static int value;

static void *capture(void *arg)
{
    uintptr_t frames[CA_STACK_MAX];
    (void)arg;
    assert_int_equal(pthread_setspecific(first, &value), 0);
    for (int i = 0; i < 3; i++)
        assert_true(ca_stack_frames(ca_stack_capture(), frames, CA_STACK_MAX) > 1);
    assert_ptr_equal(pthread_getspecific(first), &value);
    return NULL;
}

static void another_s_key_is_not_taken(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, capture, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    capture(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(another_s_key_is_not_taken)};
    pthread_key_t key;
    if (pthread_key_create(&first, NULL) != 0)
        return 1;
    while (pthread_key_create(&key, NULL) == 0)
        continue;
    ca_stack_start(20);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
