/* Numbers with units.
 *
 * ASCII is folded by hand and fractions are scaled integers: the host's locale must not change what
 * an option means. */
#include "config/numbers.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide_t;

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit_t;

/* Largest first; the last one is the plain unit. */
static const unit_t size_units[] = {
    {"T", 1ull << 40}, {"G", 1ull << 30}, {"M", 1ull << 20}, {"K", 1ull << 10}, {"", 1},
};
static const unit_t time_units[] = {
    {"s", 1000000000},
    {"ms", 1000000},
    {"us", 1000},
    {"ns", 1},
};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool ca_word_same(const char *text, size_t length, const char *word)
{
    size_t i = 0;
    while (i < length && word[i] != '\0' && lower(text[i]) == lower(word[i]))
        i++;
    return i == length && word[i] == '\0';
}

/* whole + fraction / scale, and the bytes of text that they took. */
typedef struct number {
    uint64_t whole, fraction, scale;
    size_t used;
} number_t;

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int scan_hex(const char *text, size_t length, number_t *number)
{
    size_t i = 2;
    for (; i < length && hex_digit(text[i]) >= 0; i++) {
        if (number->whole >> 60)
            return -ERANGE;
        number->whole = number->whole << 4 | (uint64_t)hex_digit(text[i]);
    }
    number->used = i;
    return i > 2 ? 0 : -EINVAL;
}

static int scan_number(const char *text, size_t length, number_t *number)
{
    *number = (number_t){.scale = 1};
    if (length > 1 && text[0] == '0' && lower(text[1]) == 'x')
        return scan_hex(text, length, number);

    size_t i = 0;
    for (; i < length && is_digit(text[i]); i++)
        if (__builtin_mul_overflow(number->whole, 10u, &number->whole) ||
            __builtin_add_overflow(number->whole, (uint64_t)(text[i] - '0'), &number->whole))
            return -ERANGE;
    if (i == 0)
        return -EINVAL;
    if (i < length && text[i] == '.') {
        size_t first = ++i;
        for (; i < length && is_digit(text[i]); i++) {
            if (i - first >= 18) /* below any unit's resolution, and all that `scale` can hold */
                continue;
            number->fraction = number->fraction * 10 + (uint64_t)(text[i] - '0');
            number->scale *= 10;
        }
        if (i == first)
            return -EINVAL;
    }
    number->used = i;
    return 0;
}

static int apply_unit(const number_t *number, uint64_t factor, uint64_t *value)
{
    if (factor == 1 && number->scale != 1)
        return -EINVAL; /* there is no half byte */
    wide_t wide =
        (wide_t)number->whole * factor + (wide_t)number->fraction * factor / number->scale;
    if (wide > UINT64_MAX)
        return -ERANGE;
    *value = (uint64_t)wide;
    return 0;
}

static bool size_suffix(const char *text, size_t length, const char *unit)
{
    size_t skip = strlen(unit);
    if (length < skip || !ca_word_same(text, skip, unit))
        return false;
    text += skip;
    length -= skip;
    return length == 0 || ca_word_same(text, length, "B") ||
           (skip && ca_word_same(text, length, "iB"));
}

int ca_size_parse(const char *text, size_t length, uint64_t *value)
{
    if (ca_word_same(text, length, "inf")) {
        *value = SIZE_MAX;
        return 0;
    }
    number_t number;
    int rc = scan_number(text, length, &number);
    if (rc)
        return rc;
    for (size_t i = 0; i < COUNT(size_units); i++)
        if (size_suffix(text + number.used, length - number.used, size_units[i].name))
            return apply_unit(&number, size_units[i].factor, value);
    return -EINVAL;
}

int ca_percent_parse(const char *text, size_t length, size_t *part, size_t *of)
{
    number_t number;
    int rc = scan_number(text, length, &number);
    if (rc)
        return rc;
    if (number.used + 1 != length || text[number.used] != '%' || number.scale != 1)
        return -EINVAL;
    if (number.whole < 1 || number.whole > 100)
        return -ERANGE;
    *part = (size_t)number.whole;
    *of = 100;
    return 0;
}

static bool is_whole(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!is_digit(text[i]))
            return false;
    return length > 0;
}

int ca_fraction_parse(const char *text, size_t length, size_t *part, size_t *of)
{
    const char *slash = memchr(text, '/', length);
    size_t before = slash ? (size_t)(slash - text) : 0, after = slash ? length - before - 1 : 0;
    if (!is_whole(text, before) || !is_whole(text + length - after, after))
        return -EINVAL;
    number_t parts, all;
    if (scan_number(text, before, &parts) || scan_number(slash + 1, after, &all) ||
        parts.whole < 1 || parts.whole > all.whole || all.whole > CA_PARTS_MAX)
        return -ERANGE;
    *part = (size_t)parts.whole;
    *of = (size_t)all.whole;
    return 0;
}

int ca_duration_parse(const char *text, size_t length, uint64_t *value)
{
    if (ca_word_same(text, length, "inf")) {
        *value = UINT64_MAX;
        return 0;
    }
    number_t number;
    int rc = scan_number(text, length, &number);
    if (rc)
        return rc;
    for (size_t i = 0; i < COUNT(time_units); i++)
        if (ca_word_same(text + number.used, length - number.used, time_units[i].name))
            return apply_unit(&number, time_units[i].factor, value);
    return -EINVAL;
}

int ca_uint_parse(const char *text, size_t length, uint64_t *value)
{
    number_t number;
    int rc = scan_number(text, length, &number);
    if (rc)
        return rc;
    if (number.used != length || number.scale != 1)
        return -EINVAL;
    *value = number.whole;
    return *value > UINT_MAX ? -ERANGE : 0;
}

static void print_number(uint64_t value, const unit_t *units, size_t count, ca_text_t *out)
{
    size_t i = value ? 0 : count - 1;
    while (i < count - 1 && value % units[i].factor)
        i++;
    ca_text_printf(out, "%llu%s", (unsigned long long)(value / units[i].factor), units[i].name);
}

void ca_size_print(uint64_t bytes, ca_text_t *out)
{
    if (bytes == SIZE_MAX)
        ca_text_add(out, "inf", 3);
    else
        print_number(bytes, size_units, COUNT(size_units), out);
}

void ca_duration_print(uint64_t nanoseconds, ca_text_t *out)
{
    if (nanoseconds == UINT64_MAX)
        ca_text_add(out, "inf", 3);
    else
        print_number(nanoseconds, time_units, COUNT(time_units), out);
}
