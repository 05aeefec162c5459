/* ALLOC_CONF and CACHEALLOC_CONF: items, keys and quotes, around the values of values.c.
 *
 *   text  = item { "," item }          empty items and spaces around anything are tolerated
 *   item  = key (":" | "=") value
 *   value = plain text up to "," | 'quoted' | "quoted", the quote itself doubled inside
 *
 * Errors are local to one item. An unclosed quote ends with its item too: it must not silently
 * swallow the settings after it. */
#include "config/options.h"
#include "base/path.h"
#include "base/text.h"
#include "config/values.h"

#include <errno.h>
#include <string.h>

#define CA_OPTION(name_, level_, type_, default_, least_, most_, choices_, help_, when_, example_) \
    {                                                                                              \
        .name = #name_,                                                                            \
        .level = CA_LEVEL_##level_,                                                                \
        .type = CA_TYPE_##type_,                                                                   \
        .offset = offsetof(ca_options_t, name_),                                                   \
        .default_text = (default_),                                                                \
        .least = (least_),                                                                         \
        .most = (most_),                                                                           \
        .choices = (choices_),                                                                     \
        .help = (help_),                                                                           \
        .when = (when_),                                                                           \
        .example = (example_),                                                                     \
    },
const ca_option_t ca_option_table[] = {
#include "config/options.def"
};
#undef CA_OPTION
const size_t ca_option_count = sizeof ca_option_table / sizeof ca_option_table[0];

#define CA_OPTION(...)
#define CA_RENAMED(old_, name_, choice_) {.old = #old_, .name = #name_, .choice = (choice_)},
#define CA_REMOVED(old_, why_) {.old = #old_, .why = (why_)},
const ca_renamed_t ca_renamed_table[] = {
#include "config/options.def"
};
#undef CA_OPTION
#define RENAMED_COUNT (sizeof ca_renamed_table / sizeof ca_renamed_table[0])
const size_t ca_renamed_count = RENAMED_COUNT;

/* A message shows that much of what the user wrote. */
#define SHOWN_KEY 64
#define SHOWN_VALUE 128
#define MESSAGE_MAX 768

/* An environment full of noise must not become a screen full of warnings. */
#define COMPLAINTS_MAX 16

typedef struct span {
    const char *at;
    size_t length;
} span_t;

/* A value as written and as meant. */
typedef struct value {
    span_t written;
    const char *end;   /* of the item: at its comma or the NUL */
    const char *wrong; /* what is wrong with the quotes, or NULL */
    bool quoted;
    const char *meant; /* in the text or, where it was quoted, in `undoubled` */
    size_t length;     /* more than `undoubled` holds where it is too long */
    char undoubled[CA_STRING_MAX];
} value_t;

typedef struct parser {
    const char *name; /* of the variable */
    const char *text;
    ca_options_t *options;
    ca_complain_t complain;
    void *arg;
    int refused;
    bool named[RENAMED_COUNT];                                   /* the old key was used */
    enum { NOT_SET, SET_TRUE, SET_FALSE } choice[RENAMED_COUNT]; /* by an old key with a choice */
} parser_t;

void ca_options_default(ca_options_t *options)
{
    memset(options, 0, sizeof *options);
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        ca_value_parse(option, option->default_text, strlen(option->default_text),
                       (char *)options + option->offset);
    }
}

/* --- complaints ------------------------------------------------------------------------------- */

/* Inlined, the buffers of the complaints would lie on the stack all through the reading. */
#define COMPLAINT __attribute__((noinline)) static void

/* Characters, not bytes: what an editor shows as the column. */
static size_t position(const parser_t *parser, const char *at)
{
    size_t count = 1;
    for (const char *c = parser->text; c < at; c++)
        count += ((unsigned char)*c & 0xc0) != 0x80;
    return count;
}

COMPLAINT no_more_are_listed(const parser_t *parser)
{
    char buffer[MESSAGE_MAX];
    ca_text_t message;
    ca_text_init(&message, buffer, MESSAGE_MAX);
    ca_text_printf(&message, "%s: more items are wrong; they are not listed", parser->name);
    parser->complain(parser->arg, message.buffer);
}

/* Counts one refused item; true where it gets a message. */
static bool refuse(parser_t *parser)
{
    parser->refused++;
    if (!parser->complain)
        return false;
    if (parser->refused == COMPLAINTS_MAX + 1)
        no_more_are_listed(parser);
    return parser->refused <= COMPLAINTS_MAX;
}

static void message_start(const parser_t *parser, ca_text_t *message, char *buffer, const char *at)
{
    ca_text_init(message, buffer, MESSAGE_MAX);
    ca_text_printf(message, "%s character %zu: ", parser->name, position(parser, at));
}

static void message_end(const parser_t *parser, ca_text_t *message)
{
    ca_text_mark_cut(message);
    parser->complain(parser->arg, message->buffer);
}

COMPLAINT unknown_key(parser_t *parser, span_t key)
{
    char buffer[MESSAGE_MAX];
    ca_text_t message;
    if (!refuse(parser))
        return;
    message_start(parser, &message, buffer, key.at);
    ca_text_printf(&message, "unknown key \"");
    ca_text_escape(&message, key.at, key.length, SHOWN_KEY);
    const char *nearest = ca_option_nearest(key.at, key.length);
    if (nearest)
        ca_text_printf(&message, "\", did you mean \"%s\"?", nearest);
    else
        ca_text_printf(&message, "\"; help:true lists the keys");
    message_end(parser, &message);
}

/* Once for each key: it is no mistake. */
COMPLAINT renamed_key(parser_t *parser, const ca_renamed_t *renamed, span_t key)
{
    char buffer[MESSAGE_MAX];
    ca_text_t message;
    bool *named = &parser->named[renamed - ca_renamed_table];
    if (*named || !parser->complain)
        return;
    *named = true;
    message_start(parser, &message, buffer, key.at);
    if (!renamed->name)
        ca_text_printf(&message, "\"%s\" is an option no more: %s; its value is ignored",
                       renamed->old, renamed->why);
    else
        ca_text_printf(&message, "\"%s\" is now \"%s%s%s\"; the old name still works", renamed->old,
                       renamed->name, renamed->choice[0] ? ":" : "", renamed->choice);
    message_end(parser, &message);
}

COMPLAINT missing_key(parser_t *parser, const char *at)
{
    char buffer[MESSAGE_MAX];
    ca_text_t message;
    if (!refuse(parser))
        return;
    message_start(parser, &message, buffer, at);
    ca_text_printf(&message, "a key is missing; items are key:value");
    message_end(parser, &message);
}

COMPLAINT bad_value(parser_t *parser, const ca_option_t *option, span_t value, const char *why)
{
    char buffer[MESSAGE_MAX];
    char kept[SHOWN_VALUE * 2]; /* more than is shown, so that it shows that it was cut */
    ca_text_t message, kept_text;
    if (!refuse(parser))
        return;
    message_start(parser, &message, buffer, value.at);
    ca_text_printf(&message, "%s:", option->name);
    ca_text_escape(&message, value.at, value.length, SHOWN_VALUE);
    ca_text_printf(&message, " %s; accepted: ", why);
    ca_value_accepted(option, &message);
    ca_text_printf(&message, "; stays ");
    ca_text_init(&kept_text, kept, sizeof kept);
    ca_value_print(option, (const char *)parser->options + option->offset, &kept_text);
    ca_text_escape(&message, kept, strlen(kept), SHOWN_VALUE);
    message_end(parser, &message);
}

/* What is wrong in a path's patterns has a name. */
COMPLAINT bad_path(parser_t *parser, const ca_option_t *option, const value_t *value)
{
    char buffer[SHOWN_VALUE];
    ca_text_t why;
    ca_text_init(&why, buffer, sizeof buffer);
    ca_path_check(value->meant, value->length, &why);
    bad_value(parser, option, value->written, buffer);
}

static const char *reason(int error)
{
    switch (error) {
    case -ERANGE:
        return "is out of range";
    case -ENAMETOOLONG:
        return "is too long";
    case -E2BIG:
        return "has too many entries";
    case -EEXIST:
        return "names a size twice";
    case -ENODATA:
        return "lacks its size";
    case -ENOENT:
        return "has no value";
    case -EILSEQ:
        return "holds control characters";
    default:
        return "is not understood";
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static const char *skip_spaces(const char *at)
{
    while (is_space(*at))
        at++;
    return at;
}

static span_t trimmed(const char *from, const char *to)
{
    while (to > from && is_space(to[-1]))
        to--;
    return (span_t){from, (size_t)(to - from)};
}

static const ca_option_t *find_option(span_t key)
{
    for (size_t i = 0; i < ca_option_count; i++) {
        const char *name = ca_option_table[i].name;
        if (*name == *key.at && strlen(name) == key.length && memcmp(name, key.at, key.length) == 0)
            return &ca_option_table[i];
    }
    return NULL;
}

static const ca_renamed_t *find_renamed(span_t key)
{
    for (size_t i = 0; i < RENAMED_COUNT; i++) {
        const char *name = ca_renamed_table[i].old;
        if (strlen(name) == key.length && memcmp(name, key.at, key.length) == 0)
            return &ca_renamed_table[i];
    }
    return NULL;
}

static const ca_option_t *option_of(const ca_renamed_t *renamed)
{
    return find_option((span_t){renamed->name, strlen(renamed->name)});
}

static void read_quoted(const char *at, value_t *value)
{
    char quote = *at;
    const char *c = at + 1;
    value->quoted = true;
    value->meant = value->undoubled;
    while (*c != '\0' && (*c != quote || c[1] == quote)) {
        if (*c == quote)
            c++;
        if (value->length < sizeof value->undoubled)
            value->undoubled[value->length] = *c;
        value->length++;
        c++;
    }
    if (*c == '\0') {
        value->wrong = "lacks its closing quote";
        value->end = at + strcspn(at, ",");
    } else {
        const char *after = skip_spaces(c + 1);
        value->end = after + strcspn(after, ",");
        if (value->end != after)
            value->wrong = "goes on after its closing quote";
    }
    value->written = trimmed(at, value->end);
}

static void read_value(const char *at, value_t *value)
{
    at = skip_spaces(at);
    value->wrong = NULL;
    value->quoted = false;
    value->length = 0;
    if (*at == '\'' || *at == '"') {
        read_quoted(at, value);
        return;
    }
    value->end = at + strcspn(at, ",");
    value->written = trimmed(at, value->end);
    value->meant = value->written.at;
    value->length = value->written.length;
}

static void set_option(parser_t *parser, const ca_option_t *option, const value_t *value)
{
    if (value->wrong) {
        bad_value(parser, option, value->written, value->wrong);
    } else if (value->length == 0 && !value->quoted) {
        bad_value(parser, option, value->written, "has no value");
    } else if (value->quoted && value->length > sizeof value->undoubled) {
        bad_value(parser, option, value->written, "is too long");
    } else {
        int rc = ca_value_parse(option, value->meant, value->length,
                                (char *)parser->options + option->offset);
        if (rc == -EINVAL && option->type == CA_TYPE_PATH)
            bad_path(parser, option, value);
        else if (rc)
            bad_value(parser, option, value->written, reason(rc));
    }
}

/* `true` or `false` of an old key that is a choice of a SET today; anything else is read as that
 * SET's value, so that a message says what is accepted there. */
static bool set_choice(parser_t *parser, const ca_renamed_t *renamed, const value_t *value)
{
    static const ca_option_t old = {.type = CA_TYPE_BOOL};
    bool on;
    if (!renamed->choice[0] || value->wrong || value->length > sizeof value->undoubled ||
        ca_value_parse(&old, value->meant, value->length, &on))
        return false;
    parser->choice[renamed - ca_renamed_table] = on ? SET_TRUE : SET_FALSE;
    return true;
}

static void set_renamed(parser_t *parser, const ca_renamed_t *renamed, span_t key,
                        const value_t *value)
{
    renamed_key(parser, renamed, key);
    if (renamed->name && !set_choice(parser, renamed, value))
        set_option(parser, option_of(renamed), value);
}

/* After all items: the old key and the option that it is a choice of may stand in any order. */
static void apply_choices(parser_t *parser)
{
    for (size_t i = 0; i < RENAMED_COUNT; i++) {
        if (parser->choice[i] == NOT_SET)
            continue;
        const ca_renamed_t *renamed = &ca_renamed_table[i];
        const ca_option_t *option = option_of(renamed);
        unsigned *chosen = (unsigned *)((char *)parser->options + option->offset);
        unsigned off, choice;
        ca_value_parse(option, "off", strlen("off"), &off);
        ca_value_parse(option, renamed->choice, strlen(renamed->choice), &choice);
        *chosen &= ~(off | choice);
        if (parser->choice[i] == SET_TRUE)
            *chosen |= choice;
        if (*chosen == 0)
            *chosen = off;
    }
}

/* Reads the item at `at`; returns where it ends. */
static const char *read_item(parser_t *parser, const char *at)
{
    const char *start = skip_spaces(at);
    const char *stop = start + strcspn(start, ":=,");
    span_t key = trimmed(start, stop);
    bool has_value = *stop == ':' || *stop == '=';

    if (key.length == 0 && !has_value)
        return stop;

    value_t value;
    read_value(has_value ? stop + 1 : stop, &value);
    const ca_option_t *option = find_option(key);
    const ca_renamed_t *renamed = option ? NULL : find_renamed(key);
    if (key.length == 0)
        missing_key(parser, start);
    else if (option)
        set_option(parser, option, &value);
    else if (renamed)
        set_renamed(parser, renamed, key, &value);
    else
        unknown_key(parser, key);
    return value.end;
}

int ca_options_parse(ca_options_t *options, const char *name, const char *text,
                     ca_complain_t complain, void *arg)
{
    parser_t parser = {name, text, options, complain, arg, 0, {false}, {NOT_SET}};
    while (text && *text != '\0') {
        text = read_item(&parser, text);
        if (*text == ',')
            text++;
    }
    apply_choices(&parser);
    return parser.refused;
}
