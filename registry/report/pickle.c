/* Only operations that memory_viz's own reader knows, which is less than Python's does. */
#include "registry/report/pickle.h"

#include <errno.h>
#include <string.h>

#include "base/text.h"

enum {
    PROTO = 0x80,
    TUPLE2 = 0x86,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    LONG1 = 0x8a,
    APPEND = 'a',
    BINUNICODE = 'X',
    BININT = 'J',
    BININT1 = 'K',
    EMPTY_DICT = '}',
    EMPTY_LIST = ']',
    LONG_BINGET = 'j',
    LONG_BINPUT = 'r',
    NONE = 'N',
    SETITEM = 's',
    STOP = '.',
};

static void operation(ca_pickle_t *pickle, unsigned char code)
{
    ca_out_bytes(pickle->out, &code, 1);
}

/* The lowest byte first. */
static void fixed(ca_pickle_t *pickle, uint64_t value, size_t count)
{
    unsigned char bytes[9] = {0};
    for (size_t i = 0; i < count && i < 8; i++)
        bytes[i] = (unsigned char)(value >> i * 8);
    ca_out_bytes(pickle->out, bytes, count);
}

static void with_argument(ca_pickle_t *pickle, unsigned char code, uint64_t argument)
{
    operation(pickle, code);
    fixed(pickle, argument, 4);
}

void ca_pickle_begin(ca_pickle_t *pickle, ca_out_t *out)
{
    pickle->out = out;
    pickle->texts.texts = true;
    operation(pickle, PROTO);
    fixed(pickle, 2, 1);
}

void ca_pickle_end(ca_pickle_t *pickle)
{
    operation(pickle, STOP);
    if (pickle->texts.failed || pickle->values.failed)
        ca_out_fail(pickle->out, -ENOMEM);
    ca_intern_free(&pickle->texts);
    ca_intern_free(&pickle->values);
}

void ca_pickle_dict(ca_pickle_t *pickle)
{
    operation(pickle, EMPTY_DICT);
}

void ca_pickle_list(ca_pickle_t *pickle)
{
    operation(pickle, EMPTY_LIST);
}

static void write_text(ca_pickle_t *pickle, const char *text)
{
    char shown[5];
    size_t length = strlen(text);
    uint64_t bytes = 0;
    for (size_t at = 0; at < length; bytes += strlen(shown))
        at += ca_text_escape_next(text + at, length - at, shown);
    with_argument(pickle, BINUNICODE, bytes);
    for (size_t at = 0; at < length;) {
        at += ca_text_escape_next(text + at, length - at, shown);
        ca_out_bytes(pickle->out, shown, strlen(shown));
    }
}

void ca_pickle_text(ca_pickle_t *pickle, const char *text)
{
    size_t known = pickle->texts.count;
    size_t number = ca_intern_text(&pickle->texts, text);
    if (number < known) {
        with_argument(pickle, LONG_BINGET, number * 2);
        return;
    }
    write_text(pickle, text);
    with_argument(pickle, LONG_BINPUT, number * 2);
}

/* As two's complement, so that a number whose top bit is set needs one byte more. */
void ca_pickle_number(ca_pickle_t *pickle, uint64_t number)
{
    size_t bytes = 1;
    if (number <= UINT8_MAX) {
        operation(pickle, BININT1);
        fixed(pickle, number, 1);
    } else if (number <= INT32_MAX) {
        with_argument(pickle, BININT, number);
    } else {
        while (bytes < 9 && number >> (bytes * 8 - 1) != 0)
            bytes++;
        operation(pickle, LONG1);
        fixed(pickle, bytes, 1);
        fixed(pickle, number, bytes);
    }
}

void ca_pickle_bool(ca_pickle_t *pickle, bool value)
{
    operation(pickle, value ? NEWTRUE : NEWFALSE);
}

void ca_pickle_none(ca_pickle_t *pickle)
{
    operation(pickle, NONE);
}

void ca_pickle_pair(ca_pickle_t *pickle)
{
    operation(pickle, TUPLE2);
}

void ca_pickle_set(ca_pickle_t *pickle)
{
    operation(pickle, SETITEM);
}

void ca_pickle_append(ca_pickle_t *pickle)
{
    operation(pickle, APPEND);
}

void ca_pickle_set_text(ca_pickle_t *pickle, const char *key, const char *text)
{
    ca_pickle_text(pickle, key);
    ca_pickle_text(pickle, text);
    ca_pickle_set(pickle);
}

void ca_pickle_set_number(ca_pickle_t *pickle, const char *key, uint64_t number)
{
    ca_pickle_text(pickle, key);
    ca_pickle_number(pickle, number);
    ca_pickle_set(pickle);
}

bool ca_pickle_again(ca_pickle_t *pickle, const void *identity)
{
    size_t known = pickle->values.count;
    size_t number = ca_intern(&pickle->values, (uintptr_t)identity, 0);
    if (number == known)
        return false;
    with_argument(pickle, LONG_BINGET, number * 2 + 1);
    return true;
}

void ca_pickle_keep(ca_pickle_t *pickle, const void *identity)
{
    size_t number = ca_intern(&pickle->values, (uintptr_t)identity, 0);
    with_argument(pickle, LONG_BINPUT, number * 2 + 1);
}
