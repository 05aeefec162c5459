/* `print:true`, `help:true` and `help:all`, and what `cachealloc help options` shows. */
#include "config/options.h"
#include "base/text.h"
#include "config/values.h"

#include <string.h>

#define LINE_MAX_BYTES 512 /* of stack: the longest line has about 300 */
#define SHOWN_VALUE 128    /* bytes of a value in the help */
#define SHOWN_KEY 64

static bool is_text(const ca_option_t *option)
{
    return option->type == CA_TYPE_STRING || option->type == CA_TYPE_PATH;
}

static bool needs_quotes(const char *value)
{
    if (*value == '\0')
        return true;
    for (; *value != '\0'; value++) {
        char c = *value;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && !strchr("-_./%+@:~", c))
            return true;
    }
    return false;
}

static void print_string(const char *value, ca_text_t *out)
{
    if (!needs_quotes(value)) {
        ca_text_add(out, value, strlen(value));
        return;
    }
    ca_text_add(out, "'", 1);
    for (; *value != '\0'; value++)
        ca_text_add(out, *value == '\'' ? "''" : value, *value == '\'' ? 2 : 1);
    ca_text_add(out, "'", 1);
}

int ca_options_print(const ca_options_t *options, char *buffer, size_t bytes)
{
    ca_text_t out;
    ca_text_init(&out, buffer, bytes);
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        const char *value = (const char *)options + option->offset;
        ca_text_printf(&out, "%s%s:", i ? "," : "", option->name);
        if (is_text(option))
            print_string(value, &out);
        else
            ca_value_print(option, value, &out);
    }
    return (int)out.length;
}

/* Straight into the line: a buffer of its own would be more stack. */
static void show_value(const ca_option_t *option, const char *value, ca_text_t *out)
{
    size_t start = out->length;
    if (is_text(option)) {
        ca_text_escape(out, value, strlen(value), SHOWN_VALUE);
        return;
    }
    ca_value_print(option, value, out);
    if (out->length - start > SHOWN_VALUE) {
        out->length = start + SHOWN_VALUE - 3;
        ca_text_add(out, "...", 3);
    }
}

typedef void (*line_t)(void *arg, const char *text);

static void show_text(const char *before, const char *text, line_t line, void *arg)
{
    char buffer[LINE_MAX_BYTES];
    ca_text_t out;
    ca_text_init(&out, buffer, sizeof buffer);
    ca_text_printf(&out, "%s%s", before, text);
    ca_text_mark_cut(&out);
    line(arg, buffer);
}

/* Ends a line that is in parentheses. */
static void show_accepted(const ca_option_t *option, ca_text_t *out, line_t line, void *arg)
{
    ca_text_printf(out, "default %s; accepted: ", option->default_text);
    ca_value_accepted(option, out);
    ca_text_add(out, ")", 1);
    ca_text_mark_cut(out);
    line(arg, out->buffer);
}

static void show_level(const ca_options_t *options, ca_level_t level, line_t line, void *arg)
{
    char buffer[LINE_MAX_BYTES];
    ca_text_t out;

    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        if (option->level != level)
            continue;

        ca_text_init(&out, buffer, sizeof buffer);
        ca_text_printf(&out, "  %s:", option->name);
        show_value(option, (const char *)options + option->offset, &out);
        ca_text_printf(&out, "  (%s; ", ca_value_type_name(option->type));
        show_accepted(option, &out, line, arg);
        show_text("      ", option->help, line, arg);
    }
}

void ca_options_help(const ca_options_t *options, line_t line, void *arg)
{
    static const char *const about[CA_LEVELS] = {
        "Basic:", "Advanced, for special programs:", "Experimental; they may change or end:"};
    line(arg, "ALLOC_CONF=key:value,key:value");
    for (ca_level_t level = 0; level < CA_LEVELS; level++) {
        if (options->help == CA_HELP_ALL)
            line(arg, about[level]);
        if (options->help == CA_HELP_ALL || level == CA_LEVEL_BASIC)
            show_level(options, level, line, arg);
    }
    if (options->help != CA_HELP_ALL)
        line(arg, "help:all lists all options");
}

/* One option without a value of a process. */
static void show_option(const ca_option_t *option, line_t line, void *arg)
{
    char buffer[LINE_MAX_BYTES];
    ca_text_t out;
    ca_text_init(&out, buffer, sizeof buffer);
    ca_text_printf(&out, "%s  (%s, %s; ", option->name, ca_level_name(option->level),
                   ca_value_type_name(option->type));
    show_accepted(option, &out, line, arg);
    show_text("  ", option->help, line, arg);
    show_text("  when to change it: ", option->when, line, arg);
    ca_text_init(&out, buffer, sizeof buffer);
    ca_text_printf(&out, "  example: ALLOC_CONF=%s:%s", option->name, option->example);
    ca_text_mark_cut(&out);
    line(arg, buffer);
}

static const ca_option_t *find(const char *name)
{
    for (size_t i = 0; i < ca_option_count; i++)
        if (strcmp(ca_option_table[i].name, name) == 0)
            return &ca_option_table[i];
    return NULL;
}

static void show_unknown(const char *key, line_t line, void *arg)
{
    char buffer[LINE_MAX_BYTES];
    ca_text_t out;
    const char *nearest = ca_option_nearest(key, strlen(key));
    const char *before = "; near ones: ";
    ca_text_init(&out, buffer, sizeof buffer);
    ca_text_printf(&out, "unknown key \"");
    ca_text_escape(&out, key, strlen(key), SHOWN_KEY);
    ca_text_add(&out, "\"", 1);
    for (size_t i = 0; i < ca_option_count; i++) {
        const char *name = ca_option_table[i].name;
        if (name != nearest && (*key == '\0' || !strstr(name, key)))
            continue;
        ca_text_printf(&out, "%s%s", before, name);
        before = ", ";
    }
    if (*before == ';' && !nearest)
        ca_text_printf(&out, "; no key is near it");
    ca_text_mark_cut(&out);
    line(arg, buffer);
}

void ca_options_help_key(const char *key, line_t line, void *arg)
{
    char buffer[LINE_MAX_BYTES];
    ca_text_t out;
    const ca_option_t *option = find(key);
    for (size_t i = 0; !option && i < ca_renamed_count; i++) {
        const ca_renamed_t *renamed = &ca_renamed_table[i];
        if (strcmp(renamed->old, key) != 0)
            continue;
        ca_text_init(&out, buffer, sizeof buffer);
        if (!renamed->name)
            ca_text_printf(&out, "%s is an option no more: %s", key, renamed->why);
        else
            ca_text_printf(&out, "%s is now %s%s%s", key, renamed->name,
                           renamed->choice[0] ? ":" : "", renamed->choice);
        ca_text_mark_cut(&out);
        line(arg, buffer);
        if (!renamed->name)
            return;
        option = find(renamed->name);
    }
    if (option)
        show_option(option, line, arg);
    else
        show_unknown(key, line, arg);
}
