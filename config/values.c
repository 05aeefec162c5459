/* Values of every type: reading, showing, and what is accepted. Numbers are in numbers.c. */
#include "config/values.h"

#include "config/numbers.h"
#include "base/path.h"
#include "config/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *const yes_words[] = {"true", "1", "on", "yes"};
static const char *const no_words[] = {"false", "0", "off", "no"};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int in_range(const ca_option_t *option, uint64_t value)
{
    return value < option->least || value > option->most ? -ERANGE : 0;
}

/* The first of the words that mean the same, or NULL. */
static const char *bool_word(const char *text, size_t length)
{
    for (size_t i = 0; i < COUNT(yes_words); i++) {
        if (ca_word_same(text, length, yes_words[i]))
            return yes_words[0];
        if (ca_word_same(text, length, no_words[i]))
            return no_words[0];
    }
    return NULL;
}

static int parse_bool(const char *text, size_t length, bool *value)
{
    const char *word = bool_word(text, length);
    if (!word)
        return -EINVAL;
    *value = word == yes_words[0];
    return 0;
}

/* The choice at `index` of `a|b|c`, or NULL. */
static const char *choice_at(const char *choices, int index, size_t *length)
{
    for (; index > 0; index--) {
        choices = strchr(choices, '|');
        if (!choices)
            return NULL;
        choices++;
    }
    *length = strcspn(choices, "|");
    return choices;
}

static bool same_choice(const char *choice, size_t bytes, const char *text, size_t length)
{
    char word[64];
    if (bytes >= sizeof word)
        return false;
    memcpy(word, choice, bytes);
    word[bytes] = '\0';
    return ca_word_same(text, length, word);
}

static int find_choice(const char *choices, const char *text, size_t length, int *value)
{
    const char *choice;
    size_t bytes;
    for (int i = 0; (choice = choice_at(choices, i, &bytes)) != NULL; i++)
        if (same_choice(choice, bytes, text, length)) {
            *value = i;
            return 0;
        }
    return -EINVAL;
}

/* Where true or false is a choice, the other words of a bool mean it too. */
static int parse_enum(const char *choices, const char *text, size_t length, int *value)
{
    const char *word = bool_word(text, length);
    int rc = find_choice(choices, text, length, value);
    return rc && word ? find_choice(choices, word, strlen(word), value) : rc;
}

/* Takes the entry at `*at` of a list joined with `+`, without the spaces around it. False where it
 * was the last. */
static bool take_entry(const char *text, size_t length, size_t *at, const char **entry,
                       size_t *bytes)
{
    size_t from = *at;
    size_t end = from;
    while (end < length && text[end] != '+')
        end++;
    *at = end + 1;
    size_t last = end;
    while (from < last && is_space(text[from]))
        from++;
    while (last > from && is_space(text[last - 1]))
        last--;
    *entry = text + from;
    *bytes = last - from;
    return end < length;
}

/* A choice that is named twice is meant once. */
static int parse_set(const char *choices, const char *text, size_t length, unsigned *value)
{
    unsigned chosen = 0;
    bool more = true;
    for (size_t at = 0; more;) {
        const char *entry;
        size_t bytes;
        int position;
        more = take_entry(text, length, &at, &entry, &bytes);
        int rc = find_choice(choices, entry, bytes, &position);
        if (rc)
            return rc;
        chosen |= 1u << position;
    }
    *value = chosen;
    return 0;
}

/* The size of a choice stands behind it; in `choices`, `sample:SIZE` is one that has a size. */
static int parse_choice(const ca_option_t *option, const char *text, size_t length,
                        ca_choice_t *value)
{
    const char *choice;
    size_t bytes, word = 0;
    while (word < length && text[word] != ':' && text[word] != '=')
        word++;
    for (int i = 0; (choice = choice_at(option->choices, i, &bytes)) != NULL; i++) {
        size_t name = strcspn(choice, "|:");
        uint64_t size = 0;
        int rc = name < bytes && word == length ? -ENODATA : 0;
        if (!same_choice(choice, name, text, word))
            continue;
        if (name == bytes && word != length)
            return -EINVAL;
        if (!rc && name < bytes)
            rc = ca_size_parse(text + word + 1, length - word - 1, &size);
        if (!rc && name < bytes)
            rc = in_range(option, size);
        if (!rc)
            *value = (ca_choice_t){(size_t)i, (size_t)size};
        return rc;
    }
    return -EINVAL;
}

static int parse_string(const char *text, size_t length, char *value)
{
    if (length >= CA_STRING_MAX)
        return -ENAMETOOLONG;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return -EILSEQ;
    memcpy(value, text, length);
    memset(value + length, 0, CA_STRING_MAX - length);
    return 0;
}

/* The words in the place of a path are read in any case, as those of other options are: OFF must
 * not become a file. One of that name is ./OFF. */
static int parse_path(const ca_option_t *option, const char *text, size_t length, char *value)
{
    const char *const words[] = {"off", option->default_text};
    for (size_t i = 0; i < COUNT(words); i++)
        if (ca_word_same(text, length, words[i]))
            return parse_string(words[i], strlen(words[i]), value);
    if (length == 0)
        return -ENOENT;
    int rc = option->type == CA_TYPE_PATH ? ca_path_check(text, length, NULL) : 0;
    return rc ? rc : parse_string(text, length, value);
}

/* A duration whose `choices` are "off": UINT64_MAX then. */
static bool may_be_off(const ca_option_t *option)
{
    return strcmp(option->choices, "off") == 0;
}

static bool is_distinct(const ca_option_t *option)
{
    return strcmp(option->choices, "distinct") == 0;
}

static bool holds(const ca_size_list_t *list, uint64_t bytes)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->bytes[i] == bytes)
            return true;
    return false;
}

static int parse_list(const ca_option_t *option, const char *text, size_t length,
                      ca_size_list_t *value)
{
    ca_size_list_t list = {0};
    bool more = length > 0 && !ca_word_same(text, length, "none");
    for (size_t at = 0; more;) {
        const char *entry;
        size_t entry_bytes;
        uint64_t bytes;
        more = take_entry(text, length, &at, &entry, &entry_bytes);
        int rc = ca_size_parse(entry, entry_bytes, &bytes);
        if (!rc)
            rc = in_range(option, bytes);
        if (!rc && list.count == CA_LIST_MAX)
            rc = -E2BIG;
        if (!rc && is_distinct(option) && holds(&list, bytes))
            rc = -EEXIST;
        if (rc)
            return rc;
        list.bytes[list.count++] = (size_t)bytes;
    }
    *value = list;
    return 0;
}

static int parse_share(const ca_option_t *option, const char *text, size_t length,
                       ca_share_t *value)
{
    ca_share_t share = {0};
    uint64_t bytes = 0;
    int rc;
    if (length > 0 && text[length - 1] == '%') {
        rc = ca_percent_parse(text, length, &share.part, &share.of);
    } else if (memchr(text, '/', length)) {
        rc = ca_fraction_parse(text, length, &share.part, &share.of);
    } else {
        rc = ca_size_parse(text, length, &bytes);
        if (!rc)
            rc = in_range(option, bytes);
        share.bytes = (size_t)bytes;
    }
    if (!rc)
        *value = share;
    return rc;
}

int ca_value_parse(const ca_option_t *option, const char *text, size_t length, void *value)
{
    uint64_t number = 0;
    int rc;

    switch (option->type) {
    case CA_TYPE_BOOL:
        return parse_bool(text, length, value);
    case CA_TYPE_ENUM:
        return parse_enum(option->choices, text, length, value);
    case CA_TYPE_SET:
        return parse_set(option->choices, text, length, value);
    case CA_TYPE_CHOICE:
        return parse_choice(option, text, length, value);
    case CA_TYPE_STRING:
    case CA_TYPE_PATH:
        return parse_path(option, text, length, value);
    case CA_TYPE_LIST:
        return parse_list(option, text, length, value);
    case CA_TYPE_SHARE:
        return parse_share(option, text, length, value);
    case CA_TYPE_SIGNAL:
        return ca_signal_parse(text, length, value);
    case CA_TYPE_SIZE:
        rc = ca_size_parse(text, length, &number);
        break;
    case CA_TYPE_DURATION:
        if (may_be_off(option) && ca_word_same(text, length, "off")) {
            *(uint64_t *)value = UINT64_MAX;
            return 0;
        }
        rc = ca_duration_parse(text, length, &number);
        break;
    default:
        rc = ca_uint_parse(text, length, &number);
        break;
    }
    if (!rc)
        rc = in_range(option, number);
    if (rc)
        return rc;
    if (option->type == CA_TYPE_SIZE)
        *(size_t *)value = (size_t)number;
    else if (option->type == CA_TYPE_DURATION)
        *(uint64_t *)value = number;
    else
        *(unsigned *)value = (unsigned)number;
    return 0;
}

/* --- showing ---------------------------------------------------------------------------------- */

static void print_as(ca_type_t type, uint64_t value, ca_text_t *out)
{
    if (type == CA_TYPE_UINT)
        ca_text_printf(out, "%llu", (unsigned long long)value);
    else if (type == CA_TYPE_DURATION)
        ca_duration_print(value, out);
    else
        ca_size_print(value, out);
}

static void print_choices(const char *choices, unsigned chosen, const char *between, ca_text_t *out)
{
    const char *choice;
    size_t bytes;
    bool first = true;
    for (int i = 0; (choice = choice_at(choices, i, &bytes)) != NULL; i++) {
        if (!(chosen >> i & 1))
            continue;
        ca_text_add(out, between, first ? 0 : strlen(between));
        ca_text_add(out, choice, bytes);
        first = false;
    }
}

static void print_share(const ca_share_t *share, ca_text_t *out)
{
    if (share->of == 100)
        ca_text_printf(out, "%zu%%", share->part);
    else if (share->of)
        ca_text_printf(out, "%zu/%zu", share->part, share->of);
    else
        print_as(CA_TYPE_SIZE, share->bytes, out);
}

static void print_choice(const char *choices, const ca_choice_t *made, ca_text_t *out)
{
    size_t bytes = 0;
    const char *choice = choice_at(choices, (int)made->which, &bytes);
    size_t name = choice ? strcspn(choice, "|:") : 0;
    ca_text_add(out, choice, name);
    if (name < bytes) {
        ca_text_add(out, ":", 1);
        print_as(CA_TYPE_SIZE, made->bytes, out);
    }
}

static void print_list(const ca_size_list_t *list, ca_text_t *out)
{
    if (list->count == 0)
        ca_text_add(out, "none", 4);
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            ca_text_add(out, "+", 1);
        print_as(CA_TYPE_SIZE, list->bytes[i], out);
    }
}

void ca_value_print(const ca_option_t *option, const void *value, ca_text_t *out)
{
    switch (option->type) {
    case CA_TYPE_SIZE:
        print_as(option->type, *(const size_t *)value, out);
        break;
    case CA_TYPE_SHARE:
        print_share(value, out);
        break;
    case CA_TYPE_UINT:
        print_as(option->type, *(const unsigned *)value, out);
        break;
    case CA_TYPE_DURATION:
        if (may_be_off(option) && *(const uint64_t *)value == UINT64_MAX)
            ca_text_printf(out, "off");
        else
            print_as(option->type, *(const uint64_t *)value, out);
        break;
    case CA_TYPE_SIGNAL:
        ca_signal_print(*(const int *)value, out);
        break;
    case CA_TYPE_BOOL:
        ca_text_printf(out, "%s", *(const bool *)value ? "true" : "false");
        break;
    case CA_TYPE_ENUM: {
        size_t bytes = 0;
        const char *choice = choice_at(option->choices, *(const int *)value, &bytes);
        ca_text_add(out, choice ? choice : "?", choice ? bytes : 1);
        break;
    }
    case CA_TYPE_SET:
        print_choices(option->choices, *(const unsigned *)value, "+", out);
        break;
    case CA_TYPE_CHOICE:
        print_choice(option->choices, value, out);
        break;
    case CA_TYPE_STRING:
    case CA_TYPE_PATH:
        ca_text_add(out, value, strnlen(value, CA_STRING_MAX));
        break;
    case CA_TYPE_LIST:
        print_list(value, out);
        break;
    }
}

static void print_range(const ca_option_t *option, ca_type_t type, ca_text_t *out)
{
    print_as(type, option->least, out);
    ca_text_add(out, " to ", 4);
    print_as(type, option->most, out);
}

void ca_value_accepted(const ca_option_t *option, ca_text_t *out)
{
    switch (option->type) {
    case CA_TYPE_SIZE:
    case CA_TYPE_UINT:
        print_range(option, option->type, out);
        break;
    case CA_TYPE_SHARE:
        print_range(option, CA_TYPE_SIZE, out);
        ca_text_printf(out, ", 1%% to 100%%, or a fraction such as 1/4");
        break;
    case CA_TYPE_DURATION:
        if (may_be_off(option))
            ca_text_printf(out, "off, or ");
        print_range(option, option->type, out);
        ca_text_printf(out, ", with its unit: ns, us, ms or s");
        break;
    case CA_TYPE_BOOL:
        ca_text_printf(out, "true, false");
        break;
    case CA_TYPE_ENUM:
        print_choices(option->choices, ~0u, ", ", out);
        break;
    case CA_TYPE_SET:
        print_choices(option->choices, ~0u, ", ", out);
        ca_text_printf(out, ", or several joined with +");
        break;
    case CA_TYPE_CHOICE: {
        const char *choice;
        size_t bytes;
        for (int i = 0; (choice = choice_at(option->choices, i, &bytes)) != NULL; i++) {
            ca_text_add(out, ", ", i ? 2 : 0);
            ca_text_add(out, choice, bytes);
            if (memchr(choice, ':', bytes)) {
                ca_text_printf(out, " with SIZE from ");
                print_range(option, CA_TYPE_SIZE, out);
            }
        }
        break;
    }
    case CA_TYPE_SIGNAL:
        ca_text_printf(out, "off, or a signal: HUP, USR1, USR2 and so on, or 34 to %d", NSIG - 1);
        break;
    case CA_TYPE_STRING:
    case CA_TYPE_PATH:
        ca_text_printf(out, "%s", option->choices[0] ? option->choices : "any text");
        break;
    case CA_TYPE_LIST:
        ca_text_printf(out, "none, or up to %d %ssizes joined with +, each ", CA_LIST_MAX,
                       is_distinct(option) ? "different " : "");
        print_range(option, CA_TYPE_SIZE, out);
        break;
    }
}

const char *ca_level_name(ca_level_t level)
{
    static const char *const names[CA_LEVELS] = {"basic", "advanced", "experimental"};
    return names[level];
}

const char *ca_value_type_name(ca_type_t type)
{
    static const char *const names[] = {"size",     "size or share", "bool",    "uint",
                                        "duration", "choice",        "choices", "choice",
                                        "string",   "path",          "list",    "signal"};
    return names[type];
}
