/* Names of C++ and of Rust as demanglers print them. Angle brackets are template arguments behind
 * an identifier, and behind the `::` of Rust; elsewhere, as in `<T as Trait>::run`, `<impl A for
 * B>` and
 * `<lambda(int)>`, they hold what is called so, in which there may be arguments again. */
#include "registry/names/frame_lines.h"

#include <stdbool.h>
#include <string.h>

#define LONG_NAME 80
#define LONG_ARGUMENTS 8
#define SHOWN_MOST 2048 /* bytes of a name */

static bool is_identifier(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || (unsigned char)c >= 0x80;
}

static bool begins(const char *at, const char *word)
{
    return strncmp(at, word, strlen(word)) == 0;
}

/* The bytes at `at` that have an angle bracket which is none: an arrow, or an operator's name,
 * which demanglers separate from its arguments by a blank. */
static size_t plain_bytes(const char *name, const char *at)
{
    static const char *const signs[] = {
        "<<=", "<=>", ">>=", "->*", "<<", "<=", ">>", ">=", "->", "<", ">"};
    const size_t word = strlen("operator");
    if (begins(at, "->"))
        return 2;
    if (!begins(at, "operator") || (at > name && is_identifier(at[-1])))
        return 0;
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (begins(at + word, signs[i]))
            return word + strlen(signs[i]);
    return 0;
}

/* Behind the `>` that belongs to the `<` at `at`; NULL where there is none. What parentheses hold
 * may be an expression. */
static const char *behind(const char *name, const char *at)
{
    unsigned angles = 0, parentheses = 0;
    for (size_t plain; *at != '\0'; at += plain ? plain : 1) {
        plain = plain_bytes(name, at);
        if (plain)
            continue;
        if (*at == '(') {
            parentheses++;
        } else if (*at == ')') {
            if (parentheses-- == 0)
                return NULL;
        } else if (parentheses == 0 && *at == '<') {
            angles++;
        } else if (parentheses == 0 && *at == '>' && --angles == 0) {
            return at + 1;
        }
    }
    return NULL;
}

/* Whether the bytes before `at` may have template arguments: an identifier, with the ABI's tag or
 * not, `operator()`, an operator with a blank behind it, Rust's `::`. */
static bool ends_name(const char *name, const char *at)
{
    size_t before = (size_t)(at - name);
    if (before >= 2 &&
        ((at[-2] == '(' && at[-1] == ')') || (at[-1] == ' ' && strchr("<>=", at[-2]))))
        return true;
    return before != 0 && (is_identifier(at[-1]) || at[-1] == ']' || at[-1] == ':');
}

static bool opens_arguments(const char *name, const char *at)
{
    return *at == '<' && ends_name(name, at) && !begins(at, "<lambda") && !begins(at, "<impl ");
}

/* False where the brackets do not match. */
static bool shorten(const char *name, ca_text_t *shown)
{
    const char *at = name;
    while (*at != '\0') {
        size_t plain = plain_bytes(name, at);
        if (!plain && opens_arguments(name, at)) {
            const char *end = behind(name, at);
            if (!end)
                return false;
            if ((size_t)(end - at) > LONG_ARGUMENTS + 2)
                ca_text_add(shown, "<...>", 5);
            else
                ca_text_add(shown, at, (size_t)(end - at));
            at = end;
        } else {
            ca_text_add(shown, at, plain ? plain : 1);
            at += plain ? plain : 1;
        }
    }
    return true;
}

void ca_frame_add_function(ca_text_t *text, const char *function)
{
    static char buffer[SHOWN_MOST]; /* the caller's stack may be small, and it is one at a time */
    ca_text_t shown;
    ca_text_init(&shown, buffer, sizeof buffer);
    bool is_short =
        strlen(function) > LONG_NAME && shorten(function, &shown) && shown.length < sizeof buffer;
    const char *name = is_short ? buffer : function;
    ca_text_escape(text, name, strlen(name), SHOWN_MOST);
}

void ca_frame_write(ca_out_t *out, const char *indent, const char *lines)
{
    size_t length;
    for (const char *at = lines;; at += length + 1) {
        length = strcspn(at, "\n");
        ca_out_printf(out, "%s%.*s\n", indent, (int)length, at);
        if (at[length] == '\0')
            return;
    }
}
