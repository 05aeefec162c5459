#include "registry/names/fold.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NAME_BYTES 512

/* --- names ------------------------------------------------------------------------------------ */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void add(ca_text_t *text, const char *piece)
{
    ca_text_add(text, piece, strlen(piece));
}

static void forget(ca_text_t *text, size_t length)
{
    text->length = length;
    if (length < text->bytes)
        text->buffer[length] = '\0';
}

/* The name of an operator ends where its arguments begin; it has any of <, > and ( in it. */
static void add_operator(const char *at, ca_text_t *text)
{
    size_t length = strlen("operator");
    length += begins(at + length, "()") ? 2 : 0;
    ca_text_add(text, at, length + strcspn(at + length, "("));
}

/* Passes over what stands in one pair of brackets, others in it. `->` closes none. */
static const char *behind_brackets(const char *at)
{
    for (size_t depth = 0; *at != '\0'; at++) {
        if (strchr("<({[", *at))
            depth++;
        else if (strchr(">)}]", *at) && at[-1] != '-' && --depth == 0)
            return at + 1;
    }
    return at;
}

/* As the demangler writes it: what it returns, a blank, the name with its scopes, `(`. */
static void add_demangled(const char *at, ca_text_t *text)
{
    static const char nameless[] = "(anonymous namespace)";
    size_t start = text->length;
    for (char before = ' '; *at != '\0' && *at != '['; before = at[-1]) {
        if (begins(at, nameless)) {
            add(text, nameless);
            at += strlen(nameless);
        } else if (begins(at, "operator") && !is_word(before) && !is_word(at[8])) {
            add_operator(at, text);
            return;
        } else if (*at == '<' || *at == '{') {
            add(text, *at == '<' ? "<...>" : "{...}");
            at = behind_brackets(at);
        } else if (*at == '(') {
            return;
        } else if (*at == ' ' && at[1] != '[' && at[1] != '\0') {
            forget(text, start); /* that was what it returns */
            at++;
        } else {
            ca_text_add(text, at, *at != ' ');
            at++;
        }
    }
}

/* The scopes of a mangled name, as far as they are plain: `<length><name>` each. */
static void add_mangled(const char *at, ca_text_t *text)
{
    size_t start = text->length;
    while (*at == 'Z') /* of what is in a function, that */
        at++;
    bool nested = *at == 'N';
    at += nested;
    at += nested ? strspn(at, "rVKRO") : 0;
    if (begins(at, "St")) {
        add(text, "std");
        at += 2;
    }
    for (bool more = true; more;) {
        size_t length = 0;
        at += *at == 'L'; /* of this file alone */
        for (; is_digit(*at) && length < NAME_BYTES; at++)
            length = length * 10 + (size_t)(*at - '0');
        if (length == 0 || length > strlen(at))
            break;
        if (text->length != start)
            add(text, "::");
        if (begins(at, "_GLOBAL__N"))
            add(text, "(anonymous namespace)");
        else
            ca_text_add(text, at, length);
        at += length;
        more = nested;
    }
    if (*at == 'I' && text->length != start)
        add(text, "<...>");
}

void ca_fold_name(const char *function, ca_text_t *text)
{
    size_t start = text->length;
    if (begins(function, "_Z"))
        add_mangled(function + 2, text);
    else if (strchr(function, '(') || strstr(function, "::"))
        add_demangled(function, text);
    if (text->length == start)
        add(text, function);
}

/* --- what is inner ---------------------------------------------------------------------------- */

enum { FUNCTION, PYTHON_FILE, MODULE };

static const struct {
    const char *text;
    int where;
    bool inner;
} rules[] = {
#define CA_FOLD(of, where, text, inner) {text, where, inner},
#include "registry/names/fold.def"
#undef CA_FOLD
};

static bool is_inner_name(const char *name)
{
    size_t longest = 0;
    bool inner = false;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        size_t length = strlen(rules[i].text);
        if (rules[i].where != FUNCTION || length <= longest || !begins(name, rules[i].text))
            continue;
        longest = length;
        inner = rules[i].inner;
    }
    return inner;
}

static bool is_inner_file(const char *path)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].where == PYTHON_FILE && strstr(path, rules[i].text))
            return true;
    return false;
}

static bool is_inner_module(const char *path)
{
    const char *slash = strrchr(path, '/');
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].where == MODULE && begins(slash ? slash + 1 : path, rules[i].text))
            return true;
    return false;
}

bool ca_fold_is_inner(const ca_frame_t *frame, const ca_place_t *place)
{
    char name[NAME_BYTES];
    ca_text_t text;
    if (frame->module && is_inner_module(frame->module))
        return true;
    if (!place || !place->function)
        return false;
    if (frame->python)
        return place->file && is_inner_file(place->file);
    ca_text_init(&text, name, sizeof name);
    ca_fold_name(place->function, &text);
    return is_inner_name(name);
}
