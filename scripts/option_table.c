/* Prints the options in Markdown, for the block of docs/options.md between `<!-- options -->` and
 * `<!-- /options -->`:
 *
 *   cc -std=c11 -D_GNU_SOURCE -I. -o option_table scripts/option_table.c config/options.c \
 *      config/values.c config/numbers.c config/nearest.c base/path.c base/text.c
 *   ./option_table                   prints what is in it
 *   ./option_table --check FILE      fails where the block in FILE differs from it
 *   ./option_table --update FILE     writes the block in FILE anew
 *   ./option_table --man             prints them for the manual page */
#include "config/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPENING "<!-- options -->\n"
#define CLOSING "<!-- /options -->"

/* The text as a sentence of its own. */
static void add_sentence(ca_text_t *page, const char *text)
{
    char first = text[0];
    if (first >= 'a' && first <= 'z')
        first = (char)(first - 'a' + 'A');
    ca_text_printf(page, "%c%s.\n", first, text + 1);
}

/* Whether `text` names the option, as `NAME` or `NAME:...`. */
static bool is_named(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (text = strchr(text, '`'); text != NULL; text = strchr(text + 1, '`'))
        if (strncmp(text + 1, name, length) == 0 &&
            (text[1 + length] == '`' || text[1 + length] == ':'))
            return true;
    return false;
}

static bool names(const ca_option_t *option, const ca_option_t *other)
{
    return option != other &&
           (is_named(option->help, other->name) || is_named(option->when, other->name));
}

/* Those that it names, and those that name it. */
static void add_neighbours(ca_text_t *page, const ca_option_t *option, bool man)
{
    const char *before = man ? ".br\nSee also: " : "- See also: ";
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *other = &ca_option_table[i];
        if (!names(option, other) && !names(other, option))
            continue;
        if (man)
            ca_text_printf(page, "%s%s", before, other->name);
        else
            ca_text_printf(page, "%s[`%s`](#%s)", before, other->name, other->name);
        before = ", ";
    }
    if (*before == ',')
        ca_text_printf(page, "\n");
}

static const char *const about[CA_LEVELS] = {
    "those to know first", "for programs with a special need",
    "what only measurements of the library can choose; they may change or end with any version"};

static void add_links(ca_text_t *page, ca_level_t level)
{
    const char *before = "";
    for (size_t i = 0; i < ca_option_count; i++) {
        const char *name = ca_option_table[i].name;
        if (ca_option_table[i].level != level)
            continue;
        ca_text_printf(page, "%s[`%s`](#%s)", before, name, name);
        before = ", ";
    }
}

static void add_option(ca_text_t *page, const ca_option_t *option)
{
    char buffer[1024];
    ca_text_t accepted;
    ca_text_init(&accepted, buffer, sizeof buffer);
    ca_value_accepted(option, &accepted);
    ca_text_printf(page, "\n### `%s`\n\n", option->name);
    add_sentence(page, option->help);
    ca_text_printf(page,
                   "\n- Default: `%s`. Accepted: %s.\n- When to change it: ", option->default_text,
                   buffer);
    ca_text_printf(page, "%s.\n", option->when);
    add_neighbours(page, option, false);
    ca_text_printf(page, "- Example: `ALLOC_CONF=%s:%s`\n", option->name, option->example);
}

/* "Basic" */
static void add_level(ca_text_t *page, ca_level_t level)
{
    const char *name = ca_level_name(level);
    ca_text_printf(page, "%c%s", name[0] - 'a' + 'A', name + 1);
}

static void make_page(ca_text_t *page)
{
    ca_text_printf(page, "| level | what for | options |\n|---|---|---|\n");
    for (ca_level_t level = 0; level < CA_LEVELS; level++) {
        ca_text_printf(page, "| %s | %s | ", ca_level_name(level), about[level]);
        add_links(page, level);
        ca_text_printf(page, " |\n");
    }
    for (ca_level_t level = 0; level < CA_LEVELS; level++) {
        ca_text_printf(page, "\n## ");
        add_level(page, level);
        ca_text_printf(page, "\n");
        for (size_t i = 0; i < ca_option_count; i++)
            if (ca_option_table[i].level == level)
                add_option(page, &ca_option_table[i]);
    }
    ca_text_printf(page, "\n## Old names\n\n"
                         "They work for one release, or are ignored where none is named; a line "
                         "on stderr says so.\n\n"
                         "| old | today |\n|---|---|\n");
    for (size_t i = 0; i < ca_renamed_count; i++) {
        const ca_renamed_t *renamed = &ca_renamed_table[i];
        if (!renamed->name)
            ca_text_printf(page, "| `%s` | none: %s |\n", renamed->old, renamed->why);
        else
            ca_text_printf(page, "| `%s` | [`%s%s%s`](#%s) |\n", renamed->old, renamed->name,
                           renamed->choice[0] ? ":" : "", renamed->choice, renamed->name);
    }
}

static void add_roff(ca_text_t *page, const char *text)
{
    for (; *text != '\0'; text++) {
        bool special = *text == '\\' || *text == '-';
        ca_text_add(page, special ? *text == '-' ? "\\-" : "\\e" : text, special ? 2 : 1);
    }
    ca_text_add(page, "\n", 1);
}

static void add_man_option(ca_text_t *page, const ca_option_t *option)
{
    char buffer[1024];
    ca_text_t accepted;
    ca_text_init(&accepted, buffer, sizeof buffer);
    ca_value_accepted(option, &accepted);
    ca_text_printf(page, ".TP\n.B %s\n", option->name);
    add_roff(page, option->help);
    ca_text_printf(page, ".br\nDefault ");
    add_roff(page, option->default_text);
    ca_text_printf(page, ".br\nAccepted: ");
    add_roff(page, buffer);
    ca_text_printf(page, ".br\nWhen to change it: ");
    add_roff(page, option->when);
    add_neighbours(page, option, true);
    ca_text_printf(page, ".br\nExample: %s:", option->name);
    add_roff(page, option->example);
}

/* No text begins with a dot or an apostrophe, which would be a request. */
static void make_man(ca_text_t *page)
{
    for (ca_level_t level = 0; level < CA_LEVELS; level++) {
        ca_text_printf(page, ".SS ");
        add_level(page, level);
        ca_text_printf(page, ": %s\n", about[level]);
        for (size_t i = 0; i < ca_option_count; i++)
            if (ca_option_table[i].level == level)
                add_man_option(page, &ca_option_table[i]);
    }
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t most = 4 << 20;
    char *text = malloc(most);
    if (!file || !text) {
        perror(path);
        exit(2);
    }
    size_t length = fread(text, 1, most - 1, file);
    text[length] = '\0';
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    static char buffer[1 << 17];
    ca_text_t table;
    ca_text_init(&table, buffer, sizeof buffer);
    bool man = argc == 2 && strcmp(argv[1], "--man") == 0;
    (man ? make_man : make_page)(&table);
    if (table.length >= sizeof buffer) {
        fprintf(stderr, "option_table: the page outgrew its buffer\n");
        return 2;
    }
    if (argc == 1 || man)
        return fputs(buffer, stdout) < 0;
    if (argc != 3 || (strcmp(argv[1], "--check") != 0 && strcmp(argv[1], "--update") != 0)) {
        fprintf(stderr, "usage: option_table [--man | --check FILE | --update FILE]\n");
        return 2;
    }

    char *file = read_file(argv[2]);
    char *opening = strstr(file, OPENING);
    char *block = opening ? opening + strlen(OPENING) : NULL;
    char *closing = block ? strstr(block, CLOSING) : NULL;
    if (!closing) {
        fprintf(stderr, "option_table: %s has no block between %.16s and %s\n", argv[2], OPENING,
                CLOSING);
        return 2;
    }
    int differs =
        (size_t)(closing - block) != table.length || memcmp(block, buffer, table.length) != 0;
    if (differs && strcmp(argv[1], "--update") == 0) {
        FILE *out = fopen(argv[2], "w");
        if (!out) {
            perror(argv[2]);
            return 2;
        }
        fprintf(out, "%.*s%s%s", (int)(block - file), file, buffer, closing);
        differs = fclose(out) != 0;
    } else if (differs) {
        fprintf(stderr, "option_table: %s: the options differ from config/options.def\n", argv[2]);
    }
    free(file);
    return differs;
}
