/* A parser that prints while it reads. A back reference goes on reading at an earlier place, so
 * that a short name may stand for a very long one: what is printed is bounded, and so are the steps
 * that print nothing. */
#include "registry/names/demangle_rust.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"

#define SHOWN_MOST 4096
#define STEPS_MOST 20000
#define IDENTIFIER_MOST 128 /* characters of one that is not ASCII */

typedef struct parser {
    const char *begin, *at; /* behind the `_R`; a NUL ends it */
    ca_text_t *shown;
    unsigned deepest, depth, steps;
    unsigned silent;    /* nothing is printed */
    uint64_t lifetimes; /* that binders around have named */
    bool failed;
} parser_t;

typedef struct identifier {
    const char *bytes;
    size_t length;
    bool is_punycode;
} identifier_t;

static void path(parser_t *parser, bool is_value);
static void type(parser_t *parser);
static void constant(parser_t *parser);

static void fail(parser_t *parser)
{
    static const char none[] = "";
    parser->failed = true;
    parser->at = none; /* every loop ends */
}

static void print_bytes(parser_t *parser, const char *bytes, size_t length)
{
    if (parser->silent || parser->failed)
        return;
    ca_text_add(parser->shown, bytes, length);
    if (parser->shown->length >= parser->shown->bytes)
        fail(parser);
}

static void print(parser_t *parser, const char *text)
{
    print_bytes(parser, text, strlen(text));
}

static void print_number(parser_t *parser, uint64_t value)
{
    char digits[24];
    ca_text_t text;
    ca_text_init(&text, digits, sizeof digits);
    ca_text_printf(&text, "%llu", (unsigned long long)value);
    print(parser, digits);
}

static bool take(parser_t *parser, char c)
{
    if (*parser->at != c)
        return false;
    parser->at++;
    return true;
}

static char next(parser_t *parser)
{
    char c = *parser->at;
    if (c == '\0')
        fail(parser);
    else
        parser->at++;
    return c;
}

/* Whether one level more is allowed; then `leave` ends it. */
static bool enter(parser_t *parser)
{
    if (parser->failed || ++parser->depth > parser->deepest || ++parser->steps > STEPS_MOST)
        fail(parser);
    return !parser->failed;
}

static void leave(parser_t *parser)
{
    parser->depth--;
}

/* --- numbers and identifiers ------------------------------------------------------------------ */

static uint64_t base_62(parser_t *parser)
{
    uint64_t value = 0;
    if (take(parser, '_'))
        return 0;
    while (!parser->failed) {
        char c = next(parser);
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'z' ? (unsigned)(c - 'a') + 10
                         : c >= 'A' && c <= 'Z' ? (unsigned)(c - 'A') + 36
                                                : 62;
        if (c == '_' && value < UINT64_MAX)
            return value + 1;
        if (digit == 62 || value > (UINT64_MAX - digit) / 62)
            fail(parser);
        value = value * 62 + digit;
    }
    return 0;
}

/* 0 where the tag is not there, otherwise at least 1. */
static uint64_t tagged_base_62(parser_t *parser, char tag)
{
    uint64_t value = take(parser, tag) ? base_62(parser) : UINT64_MAX;
    return value + 1;
}

static identifier_t identifier(parser_t *parser)
{
    identifier_t found = {.is_punycode = take(parser, 'u')};
    size_t digits = strspn(parser->at, "0123456789");
    digits = *parser->at == '0' ? 1 : digits; /* those behind it are no part of the number */
    if (digits == 0 || digits > 5) {
        fail(parser);
        return found;
    }
    for (size_t i = 0; i < digits; i++)
        found.length = found.length * 10 + (size_t)(next(parser) - '0');
    take(parser, '_');
    if (found.length > strlen(parser->at)) {
        fail(parser);
        found.length = 0;
        return found;
    }
    found.bytes = parser->at;
    parser->at += found.length;
    return found;
}

static size_t utf_8(uint32_t code, char bytes[4])
{
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--, code >>= 6)
        bytes[i] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)(0xf00u >> count | code);
    return count;
}

static bool is_character(uint32_t code)
{
    return code < 0xd800 || (code >= 0xe000 && code < 0x110000);
}

/* RFC 3492. Returns how many characters there are in `codes`, or 0. */
static size_t punycode(const identifier_t *name, uint32_t codes[IDENTIFIER_MOST])
{
    enum { BASE = 36, LEAST = 1, MOST = 26, SKEW = 38, DAMP = 700, FIRST_BIAS = 72, FIRST = 128 };
    size_t count = 0, at = 0;
    uint32_t code = FIRST, bias = FIRST_BIAS, index = 0;
    for (size_t i = name->length; i-- > 0;)
        if (name->bytes[i] == '_') { /* before it are those that are ASCII */
            for (; count < i && count < IDENTIFIER_MOST; count++)
                codes[count] = (unsigned char)name->bytes[count];
            at = i + 1;
            break;
        }
    while (at < name->length) {
        uint32_t before = index, weight = 1;
        for (uint32_t k = BASE;; k += BASE) {
            char c = at < name->length ? name->bytes[at++] : '\0';
            uint32_t digit = c >= 'a' && c <= 'z'   ? (uint32_t)(c - 'a')
                             : c >= '0' && c <= '9' ? (uint32_t)(c - '0') + 26
                                                    : BASE;
            uint32_t least = k <= bias ? LEAST : k >= bias + MOST ? MOST : k - bias;
            if (digit == BASE || weight > UINT32_MAX / BASE ||
                digit > (UINT32_MAX - index) / weight)
                return 0;
            index += digit * weight;
            if (digit < least)
                break;
            weight *= BASE - least;
        }
        if (++count > IDENTIFIER_MOST)
            return 0;
        uint32_t delta =
            before == 0 && code == FIRST ? (index - before) / DAMP : (index - before) / 2;
        delta += delta / (uint32_t)count;
        for (bias = 0; delta > (BASE - LEAST) * MOST / 2; bias += BASE)
            delta /= BASE - LEAST;
        bias += (BASE - LEAST + 1) * delta / (delta + SKEW);
        uint32_t step = index / (uint32_t)count;
        if (step > 0x10ffff - code || !is_character(code + step))
            return 0;
        code += step;
        index %= (uint32_t)count;
        memmove(codes + index + 1, codes + index, (count - 1 - index) * sizeof *codes);
        codes[index++] = code;
    }
    return count;
}

static void print_identifier(parser_t *parser, const identifier_t *name)
{
    static uint32_t codes[IDENTIFIER_MOST];
    char bytes[4];
    size_t count = name->is_punycode ? punycode(name, codes) : 0;
    if (count == 0)
        print_bytes(parser, name->bytes, name->length);
    for (size_t i = 0; i < count; i++)
        print_bytes(parser, bytes, utf_8(codes[i], bytes));
}

/* --- what is called by what was there before -------------------------------------------------- */

/* Reads with `read` at an earlier place. Where nothing is printed there is no need to. */
static void back_reference(parser_t *parser, void (*read)(parser_t *parser))
{
    const char *tag = parser->at - 1;
    uint64_t place = base_62(parser);
    if (parser->failed || place >= (uint64_t)(tag - parser->begin)) {
        fail(parser);
        return;
    }
    const char *back = parser->at;
    if (parser->silent)
        return;
    parser->at = parser->begin + place;
    read(parser);
    if (!parser->failed)
        parser->at = back;
}

static void print_lifetime(parser_t *parser, uint64_t index)
{
    uint64_t depth = parser->lifetimes - index;
    char name = (char)('a' + depth % 26);
    if (index > parser->lifetimes) {
        fail(parser);
        return;
    }
    print(parser, "'");
    if (index == 0) {
        print(parser, "_");
    } else if (depth < 26) {
        print_bytes(parser, &name, 1);
    } else {
        print(parser, "_");
        print_number(parser, depth);
    }
}

/* `for<'a, 'b> `. Returns how many there are, which end with what they are of. */
static uint64_t binder(parser_t *parser)
{
    uint64_t count = tagged_base_62(parser, 'G');
    if (count > STEPS_MOST) {
        fail(parser);
        return 0;
    }
    for (uint64_t i = 0; i < count && !parser->failed; i++) {
        print(parser, i ? ", " : "for<");
        parser->lifetimes++;
        print_lifetime(parser, 1);
    }
    if (count != 0)
        print(parser, "> ");
    return count;
}

/* --- paths ------------------------------------------------------------------------------------ */

static void path_as_type(parser_t *parser)
{
    path(parser, false);
}

static void path_as_value(parser_t *parser)
{
    path(parser, true);
}

static void generic_argument(parser_t *parser)
{
    if (take(parser, 'L'))
        print_lifetime(parser, base_62(parser));
    else if (take(parser, 'K'))
        constant(parser);
    else
        type(parser);
}

/* Up to the `E`. Returns how many. */
static size_t list(parser_t *parser, const char *between, void (*read)(parser_t *parser))
{
    size_t count = 0;
    for (; !parser->failed && !take(parser, 'E'); count++) {
        if (count != 0)
            print(parser, between);
        read(parser);
    }
    return count;
}

/* Names do not show which of a type's implementations it is in. */
static void skip_implementation(parser_t *parser)
{
    parser->silent++;
    (void)tagged_base_62(parser, 's');
    path(parser, false);
    parser->silent--;
}

static void nested(parser_t *parser, bool is_value)
{
    char space = next(parser);
    path(parser, is_value);
    uint64_t number = tagged_base_62(parser, 's');
    identifier_t name = identifier(parser);
    if (space >= 'A' && space <= 'Z') {
        print(parser, "::{");
        if (space == 'C')
            print(parser, "closure");
        else if (space == 'S')
            print(parser, "shim");
        else
            print_bytes(parser, &space, 1);
        print(parser, name.length ? ":" : "");
        print_identifier(parser, &name);
        print(parser, "#");
        print_number(parser, number);
        print(parser, "}");
    } else if (name.length != 0) {
        print(parser, "::");
        print_identifier(parser, &name);
    }
}

static void implemented(parser_t *parser, char tag)
{
    if (tag != 'Y')
        skip_implementation(parser);
    print(parser, "<");
    type(parser);
    if (tag != 'M') {
        print(parser, " as ");
        path(parser, false);
    }
    print(parser, ">");
}

static void path(parser_t *parser, bool is_value)
{
    if (!enter(parser))
        return;
    char tag = next(parser);
    identifier_t name;
    switch (tag) {
    case 'C':
        (void)tagged_base_62(parser, 's');
        name = identifier(parser);
        print_identifier(parser, &name);
        break;
    case 'M':
    case 'X':
    case 'Y':
        implemented(parser, tag);
        break;
    case 'N':
        nested(parser, is_value);
        break;
    case 'I':
        path(parser, is_value);
        print(parser, is_value ? "::<" : "<");
        list(parser, ", ", generic_argument);
        print(parser, ">");
        break;
    case 'B':
        back_reference(parser, is_value ? path_as_value : path_as_type);
        break;
    default:
        fail(parser);
    }
    leave(parser);
}

/* --- types ------------------------------------------------------------------------------------ */

static const char *basic_type(char tag)
{
    static const char *const names[26] = {"i8",   "bool",  "char",  "f64", "str", "f32", NULL,
                                          "u8",   "isize", "usize", NULL,  "i32", "u32", "i128",
                                          "u128", "_",     NULL,    NULL,  "i16", "u16", "()",
                                          "...",  NULL,    "i64",   "u64", "!"};
    return tag >= 'a' && tag <= 'z' ? names[tag - 'a'] : NULL;
}

static void function_type(parser_t *parser)
{
    uint64_t lifetimes = binder(parser);
    if (take(parser, 'U'))
        print(parser, "unsafe ");
    if (take(parser, 'K')) {
        print(parser, "extern \"");
        if (take(parser, 'C')) {
            print(parser, "C");
        } else {
            identifier_t name = identifier(parser);
            for (size_t i = 0; i < name.length; i++)
                print_bytes(parser, name.bytes[i] == '_' ? "-" : name.bytes + i, 1);
        }
        print(parser, "\" ");
    }
    print(parser, "fn(");
    list(parser, ", ", type);
    print(parser, ")");
    if (!take(parser, 'u')) {
        print(parser, " -> ");
        type(parser);
    }
    parser->lifetimes -= parser->failed ? 0 : lifetimes;
}

/* A trait without the bracket that ends its arguments. Whether there is one. */
static bool open_trait(parser_t *parser)
{
    bool is_open = false;
    if (!enter(parser))
        return false;
    if (take(parser, 'B')) {
        const char *tag = parser->at - 1;
        uint64_t place = base_62(parser);
        const char *back = parser->at;
        if (parser->failed || place >= (uint64_t)(tag - parser->begin)) {
            fail(parser);
        } else if (!parser->silent) {
            parser->at = parser->begin + place;
            is_open = open_trait(parser);
            parser->at = parser->failed ? parser->at : back;
        }
    } else if (take(parser, 'I')) {
        path(parser, false);
        print(parser, "<");
        list(parser, ", ", generic_argument);
        is_open = true;
    } else {
        path(parser, false);
    }
    leave(parser);
    return is_open;
}

static void trait(parser_t *parser)
{
    bool is_open = open_trait(parser);
    while (!parser->failed && take(parser, 'p')) {
        print(parser, is_open ? ", " : "<");
        is_open = true;
        identifier_t name = identifier(parser);
        print_identifier(parser, &name);
        print(parser, " = ");
        type(parser);
    }
    if (is_open)
        print(parser, ">");
}

static void object_type(parser_t *parser)
{
    print(parser, "dyn ");
    uint64_t lifetimes = binder(parser);
    list(parser, " + ", trait);
    parser->lifetimes -= parser->failed ? 0 : lifetimes;
    if (!take(parser, 'L')) {
        fail(parser);
        return;
    }
    uint64_t lifetime = base_62(parser);
    if (lifetime != 0) {
        print(parser, " + ");
        print_lifetime(parser, lifetime);
    }
}

static void reference_type(parser_t *parser, bool is_mutable)
{
    print(parser, "&");
    if (take(parser, 'L')) {
        uint64_t lifetime = base_62(parser);
        if (lifetime != 0) {
            print_lifetime(parser, lifetime);
            print(parser, " ");
        }
    }
    if (is_mutable)
        print(parser, "mut ");
    type(parser);
}

static void array_type(parser_t *parser, bool has_length)
{
    print(parser, "[");
    type(parser);
    if (has_length) {
        print(parser, "; ");
        constant(parser);
    }
    print(parser, "]");
}

static void named_type(parser_t *parser, char tag)
{
    const char *basic = basic_type(tag);
    if (basic) {
        print(parser, basic);
    } else if (!parser->failed) {
        parser->at--;
        path(parser, false);
    }
}

static void type(parser_t *parser)
{
    if (!enter(parser))
        return;
    char tag = next(parser);
    switch (tag) {
    case 'A':
    case 'S':
        array_type(parser, tag == 'A');
        break;
    case 'T':
        print(parser, "(");
        print(parser, list(parser, ", ", type) == 1 ? ",)" : ")");
        break;
    case 'R':
    case 'Q':
        reference_type(parser, tag == 'Q');
        break;
    case 'P':
    case 'O':
        print(parser, tag == 'P' ? "*const " : "*mut ");
        type(parser);
        break;
    case 'F':
        function_type(parser);
        break;
    case 'D':
        object_type(parser);
        break;
    case 'B':
        back_reference(parser, type);
        break;
    default:
        named_type(parser, tag);
    }
    leave(parser);
}

/* --- constants -------------------------------------------------------------------------------- */

/* Digits up to the `_`. False where that is no 64-bit number; `*digits` is then what there is. */
static bool hexadecimal(parser_t *parser, uint64_t *value, identifier_t *digits)
{
    *value = 0;
    while (take(parser, '0'))
        continue;
    digits->bytes = parser->at;
    digits->length = strspn(parser->at, "0123456789abcdef");
    for (size_t i = 0; i < digits->length; i++) {
        char c = next(parser);
        *value = *value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (!take(parser, '_'))
        fail(parser);
    return digits->length <= 16;
}

static void print_character(parser_t *parser, uint64_t code)
{
    char bytes[4];
    print(parser, "'");
    if (code >= 0x20 && code != 0x7f && code != '\'' && code != '\\' && code < 0x110000 &&
        is_character((uint32_t)code)) {
        print_bytes(parser, bytes, utf_8((uint32_t)code, bytes));
    } else {
        ca_text_t text;
        char shown[32];
        ca_text_init(&text, shown, sizeof shown);
        ca_text_printf(&text, "\\u{%llx}", (unsigned long long)code);
        print(parser, shown);
    }
    print(parser, "'");
}

/* Those of strings and structures are not read: such a name stays as it is. */
static void constant(parser_t *parser)
{
    uint64_t value;
    identifier_t digits;
    if (!enter(parser))
        return;
    char tag = next(parser);
    if (tag == 'B') {
        back_reference(parser, constant);
    } else if (tag == 'p') {
        print(parser, "_");
    } else if (tag != '\0' && strchr("hijlmnostxyabc", tag)) {
        bool is_negative = strchr("ailnsx", tag) && take(parser, 'n');
        bool fits = hexadecimal(parser, &value, &digits);
        if ((tag == 'b' && value > 1) || (strchr("bc", tag) && !fits))
            fail(parser);
        else if (tag == 'b')
            print(parser, value ? "true" : "false");
        else if (tag == 'c')
            print_character(parser, value);
        else
            print(parser, is_negative ? "-" : "");
        if (!strchr("bc", tag) && fits) {
            print_number(parser, value);
        } else if (!strchr("bc", tag)) {
            print(parser, "0x");
            print_bytes(parser, digits.bytes, digits.length);
        }
    } else {
        fail(parser);
    }
    leave(parser);
}

/* --- both schemes ----------------------------------------------------------------------------- */

static bool is_end(const char *at)
{
    return *at == '\0' || *at == '.' || *at == '$';
}

static bool present_scheme(const char *name, unsigned deepest, ca_text_t *shown)
{
    parser_t parser = {.begin = name + 2, .at = name + 2, .shown = shown, .deepest = deepest};
    path(&parser, true);
    if (!parser.failed && !is_end(parser.at)) { /* the crate that made it of a generic one */
        parser.silent++;
        path(&parser, false);
    }
    return !parser.failed && is_end(parser.at);
}

/* What is written between dollar signs. */
static bool add_escape(const char *at, size_t length, ca_text_t *shown)
{
    static const char *const escapes[][2] = {{"SP", "@"}, {"BP", "*"}, {"RF", "&"}, {"LT", "<"},
                                             {"GT", ">"}, {"LP", "("}, {"RP", ")"}, {"C", ","}};
    char bytes[4];
    uint32_t code = 0;
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++)
        if (strlen(escapes[i][0]) == length && memcmp(escapes[i][0], at, length) == 0) {
            ca_text_add(shown, escapes[i][1], 1);
            return true;
        }
    if (length < 2 || length > 7 || *at != 'u')
        return false;
    for (size_t i = 1; i < length; i++) {
        char c = at[i];
        bool is_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        if (!is_digit)
            return false;
        code = code << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (code < 0x20 || !is_character(code))
        return false;
    ca_text_add(shown, bytes, utf_8(code, bytes));
    return true;
}

static bool add_part(const char *at, size_t length, ca_text_t *shown)
{
    const char *end = at + length;
    at +=
        length > 1 && at[0] == '_' && at[1] == '$'; /* a name begins with a letter for the linker */
    while (at < end) {
        if (*at == '$') {
            const char *second = memchr(at + 1, '$', (size_t)(end - at) - 1);
            if (!second || !add_escape(at + 1, (size_t)(second - at) - 1, shown))
                return false;
            at = second + 1;
        } else if (*at == '.' && at + 1 < end && at[1] == '.') {
            ca_text_add(shown, "::", 2);
            at += 2;
        } else {
            ca_text_add(shown, at++, 1);
        }
    }
    return true;
}

/* A part of a name of the scheme before, which begins with its length; NULL where there is none. */
static const char *next_part(const char *at, size_t *length)
{
    *length = 0;
    size_t digits = strspn(at, "0123456789");
    if (digits == 0 || digits > 5)
        return NULL;
    for (; digits != 0; digits--)
        *length = *length * 10 + (size_t)(*at++ - '0');
    return *length <= strlen(at) ? at : NULL;
}

static bool is_hash(const char *at, size_t length)
{
    return length == 17 && *at == 'h' && strspn(at + 1, "0123456789abcdef") >= 16;
}

static bool scheme_before(const char *name, ca_text_t *shown)
{
    const char *at = name + 3;
    size_t length;
    for (unsigned parts = 0;; parts++) {
        const char *part = next_part(at, &length);
        if (!part)
            return false;
        at = part + length;
        if (is_hash(part, length) && *at == 'E')
            return parts != 0 && is_end(at + 1);
        if (parts != 0)
            ca_text_add(shown, "::", 2);
        if (!add_part(part, length, shown))
            return false;
    }
}

const char *ca_demangle_rust(const char *name, unsigned deepest)
{
    static char buffer[SHOWN_MOST];
    ca_text_t shown;
    bool is_read = false;
    ca_text_init(&shown, buffer, sizeof buffer);
    if (strncmp(name, "_R", 2) == 0)
        is_read = present_scheme(name, deepest, &shown);
    else if (strncmp(name, "_ZN", 3) == 0)
        is_read = scheme_before(name, &shown);
    return is_read && shown.length != 0 && shown.length < sizeof buffer ? buffer : NULL;
}
