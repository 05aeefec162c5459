/* Whether a live Python string is as it was copied. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "registry/python/known.h"

#define PAGE ((size_t)4096)
#define LENGTH_AT 16u
#define STATE_AT 32u
#define ASCII_AT 48u
#define ASCII (1u << CA_PY_KIND_SHIFT | CA_PY_COMPACT | CA_PY_ASCII)
#define LONGEST 250u

static const ca_py_layout_t layout = {
    .str = {.length = LENGTH_AT, .state = STATE_AT, .ascii = ASCII_AT, .compact = 72}};
static uint8_t *begin, *end; /* nothing can be read before, or from there on */

static int start(void **state)
{
    (void)state;
    uint8_t *pages =
        mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages, PAGE, PROT_NONE) != 0 ||
        mprotect(pages + 2 * PAGE, PAGE, PROT_NONE) != 0)
        return -1;
    begin = pages + PAGE;
    end = pages + 2 * PAGE;
    return 0;
}

/* An object there, of so many characters. */
static void write_string(uint8_t *object, size_t length)
{
    const uint64_t count = length;
    const uint32_t shape = ASCII;
    memset(object, 0xee, ASCII_AT);
    memcpy(object + LENGTH_AT, &count, sizeof count);
    memcpy(object + STATE_AT, &shape, sizeof shape);
    for (size_t i = 0; i < length; i++)
        object[ASCII_AT + i] = (uint8_t)('a' + i % 26);
}

static uint8_t copies[CA_PY_TAIL + LONGEST];

static ca_py_string_t copy_of(const uint8_t *object, size_t length)
{
    const ca_py_text_t live = {
        .width = 1,
        .length = (uint32_t)length,
        .data = object + ASCII_AT,
        .object = (uintptr_t)object,
        .shape = ASCII,
    };
    return ca_py_string_of(&live, memcpy(copies + CA_PY_TAIL, live.data, length));
}

static bool is_same(const ca_py_string_t *copy)
{
    return ca_py_is_same_string(&layout, copy);
}

/* Behind the last character nothing can be read. */
static void each_character_counts_and_nothing_behind_them(void **state)
{
    (void)state;
    for (size_t length = 1; length <= LONGEST; length++) {
        uint8_t *object = end - length - ASCII_AT;
        write_string(object, length);
        const ca_py_string_t copy = copy_of(object, length);
        assert_int_equal(copy.object, object);
        assert_true(is_same(&copy));
        for (size_t i = ASCII_AT; i < ASCII_AT + length; i++) {
            object[i] ^= 0x10;
            assert_false(is_same(&copy));
            object[i] ^= 0x10;
        }
    }
}

/* Before it nothing can be read, and of its head length and shape alone say what it is. */
static void nothing_before_the_characters_counts(void **state)
{
    (void)state;
    for (size_t length = 0; length <= LONGEST; length++) {
        write_string(begin, length);
        const ca_py_string_t copy = copy_of(begin, length);
        memset(begin, 0x11, LENGTH_AT);
        memset(begin + LENGTH_AT + 8, 0x22, STATE_AT - LENGTH_AT - 8);
        memset(begin + STATE_AT + 4, 0x33, ASCII_AT - STATE_AT - 4);
        begin[STATE_AT] |= 3; /* interned since */
        assert_true(is_same(&copy));
    }
}

static void one_that_would_be_read_before_its_object_has_none(void **state)
{
    (void)state;
    const ca_py_text_t live = {.width = 1,
                               .length = 7,
                               .data = begin + ASCII_AT - 8, /* as of 3.12 */
                               .object = (uintptr_t)begin,
                               .shape = ASCII};
    assert_int_equal(ca_py_string_of(&live, copies + CA_PY_TAIL).object, 0);
}

static void another_length_or_shape_is_told_before_characters_are_read(void **state)
{
    (void)state;
    uint8_t *object = end - LONGEST - ASCII_AT;
    write_string(object, LONGEST);
    ca_py_string_t copy = copy_of(object, LONGEST);
    copy.tail_at = (uintptr_t)end; /* where nothing is */
    object[LENGTH_AT]--;
    assert_false(is_same(&copy));
    object[LENGTH_AT]++;
    object[STATE_AT] ^= CA_PY_COMPACT;
    assert_false(is_same(&copy));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_character_counts_and_nothing_behind_them),
        cmocka_unit_test(nothing_before_the_characters_counts),
        cmocka_unit_test(one_that_would_be_read_before_its_object_has_none),
        cmocka_unit_test(another_length_or_shape_is_told_before_characters_are_read),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
