/* What stands for the characters of a Python string. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "registry/python/known.h"

#define PAGE ((size_t)4096)
#define ASCII_AT 40u
#define STATE_AT 32u
#define ONE_BYTE (1u << CA_PY_KIND_SHIFT)

static const ca_py_layout_t layout = {.str = {.state = STATE_AT, .ascii = ASCII_AT, .compact = 56}};
static uint8_t *end; /* nothing can be read from here on */

static int start(void **state)
{
    (void)state;
    uint8_t *pages =
        mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE) != 0)
        return -1;
    end = pages + PAGE;
    return 0;
}

/* A string whose object ends where nothing can be read any more, as far as it rounds up to words.
 */
static uintptr_t string(uint32_t shape, const char *text)
{
    uint8_t *object = end - ASCII_AT - (strlen(text) + 8) / 8 * 8;
    memset(object, 0xee, (size_t)(end - object));
    memcpy(object + STATE_AT, &shape, sizeof shape);
    memcpy(object + ASCII_AT, text, strlen(text) + 1);
    return (uintptr_t)object;
}

/* Not known to the compiler. */
static volatile size_t none = 0, many = 60000;

static uint64_t mark_of(const char *text)
{
    return ca_py_mark(&layout, string(ONE_BYTE | CA_PY_COMPACT | CA_PY_ASCII, text), strlen(text));
}

static void each_character_counts_and_nothing_behind_them(void **state)
{
    (void)state;
    char text[] = "Outer.method.<locals>.inner";
    for (size_t length = sizeof text - 1; length > 0; text[--length] = 0) {
        uint64_t mark = mark_of(text);
        assert_true(mark == mark_of(text));
        for (size_t i = 0; i < length; i++) {
            text[i] ^= 1;
            assert_true(mark != mark_of(text));
            text[i] ^= 1;
        }
    }
}

static void of_one_without_characters_none_is_read(void **state)
{
    (void)state;
    uintptr_t object = string(ONE_BYTE | CA_PY_COMPACT | CA_PY_ASCII, "");
    uint64_t mark = ca_py_mark(&layout, object, none);
    memset((uint8_t *)object + ASCII_AT, 0x55, 8);
    assert_true(ca_py_mark(&layout, object, none) == mark);
}

static void characters_that_are_elsewhere_are_not_read_behind_the_object(void **state)
{
    (void)state;
    uint64_t mark = ca_py_mark(&layout, string(ONE_BYTE | CA_PY_ASCII, ""), many);
    assert_true(mark != mark_of("x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_character_counts_and_nothing_behind_them),
        cmocka_unit_test(of_one_without_characters_none_is_read),
        cmocka_unit_test(characters_that_are_elsewhere_are_not_read_behind_the_object),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
