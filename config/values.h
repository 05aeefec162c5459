/* The values of options: reading and showing one value of each type. options.c reads items and
 * keys; this file knows sizes, durations, lists and what is accepted for each. */
#ifndef CA_CONFIG_VALUES_H
#define CA_CONFIG_VALUES_H

#include "config/options.h"
#include "base/text.h"

typedef enum {
    CA_TYPE_SIZE,
    CA_TYPE_SHARE,
    CA_TYPE_BOOL,
    CA_TYPE_UINT,
    CA_TYPE_DURATION,
    CA_TYPE_ENUM,
    CA_TYPE_SET,
    CA_TYPE_CHOICE, /* as an ENUM, of words that may have a size: `sample:512K` */
    CA_TYPE_STRING,
    CA_TYPE_PATH, /* a string that ca_path_check accepts */
    CA_TYPE_LIST,
    CA_TYPE_SIGNAL,
} ca_type_t;

/* What a user knows of an option: those to know first, those for special programs, and those that
 * measurements choose, which may change or end with any version. */
typedef enum { CA_LEVEL_BASIC, CA_LEVEL_ADVANCED, CA_LEVEL_EXPERIMENTAL, CA_LEVELS } ca_level_t;

/* One CA_OPTION of options.def. */
typedef struct ca_option {
    const char *name;
    ca_level_t level;
    ca_type_t type;
    size_t offset; /* in ca_options_t */
    const char *default_text;
    uint64_t least, most;
    const char *choices;
    const char *help;
    const char *when;    /* to change it, and to what */
    const char *example; /* a value that differs from the default */
} ca_option_t;

/* The table, in the order of options.def. */
extern const ca_option_t ca_option_table[];
extern const size_t ca_option_count;

/* One CA_RENAMED of options.def: a key of an earlier version, and what it is today; or one
 * CA_REMOVED. */
typedef struct ca_renamed {
    const char *old, *name; /* no name: it was removed */
    const char
        *choice;     /* `true` for the old key is this choice of a SET; "": the value is the same */
    const char *why; /* it was removed */
} ca_renamed_t;

extern const ca_renamed_t ca_renamed_table[];
extern const size_t ca_renamed_count;

/* The known key that was probably meant: at most two edits away, or one the beginning of the other;
 * NULL where there is none. */
const char *ca_option_nearest(const char *key, size_t key_length);

/* `basic`, `advanced` or `experimental`. */
const char *ca_level_name(ca_level_t level);

/* `size`, `bool`, ... */
const char *ca_value_type_name(ca_type_t type);

/* Reads `text` into `value`, which is left alone on failure. Returns 0 or
 *   -EINVAL        not understood
 *   -ERANGE        understood, but outside of least..most
 *   -ENAMETOOLONG  a string of CA_STRING_MAX bytes or more
 *   -EILSEQ        a string with control characters in it
 *   -E2BIG         a list of more than CA_LIST_MAX entries
 *   -EEXIST        a list that names a size twice, where `choices` is "distinct"
 *   -ENODATA       a choice without the size that it must have
 *   -ENOENT        a path without a character */
int ca_value_parse(const ca_option_t *option, const char *text, size_t length, void *value);

/* Appends the value as ca_value_parse reads it back. Strings come without quotes. */
void ca_value_print(const ca_option_t *option, const void *value, ca_text_t *out);

/* Appends what is accepted, in human units: `1M to inf`. */
void ca_value_accepted(const ca_option_t *option, ca_text_t *out);

#endif
