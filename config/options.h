/* Configuration: ALLOC_CONF=key:value,key:value, parsed once from the table in options.def.
 *
 * A bad item never stops the program: it is reported with what was wrong and what is accepted, and
 * the default stays. This file knows nothing of pools, registries or CUDA.
 */
#ifndef CA_CONFIG_OPTIONS_H
#define CA_CONFIG_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The variables of the environment that have it, the second read after the first. */
#define CA_OPTIONS_NAME "ALLOC_CONF"
#define CA_OPTIONS_ALIAS "CACHEALLOC_CONF"

#define CA_STRING_MAX 1024 /* bytes of a STRING or PATH option, its NUL included */
#define CA_LIST_MAX 64     /* entries of a LIST option */

/* An amount, or a share of something that is known only later. */
typedef struct ca_share {
    size_t bytes;    /* SIZE_MAX: without bound; 0 where it is a share */
    size_t part, of; /* so many of so many parts, of 100 where in percent; 0 where `bytes` counts */
} ca_share_t;

typedef struct ca_size_list {
    size_t count;
    size_t bytes[CA_LIST_MAX];
} ca_size_list_t;

/* One of some words, and its size where it has one. */
typedef struct ca_choice {
    size_t which; /* its position in `choices` */
    size_t bytes; /* 0 where it has none */
} ca_choice_t;

/* Positions in the `choices` of the ENUM and CHOICE options. */
enum { CA_BACKEND_POOL, CA_BACKEND_OFF, CA_BACKEND_ASYNC };
enum { CA_REUSE_AUTO, CA_REUSE_GROW, CA_REUSE_WAIT, CA_REUSE_ORDER };
/* Whether this value of `reuse` wants memory to be handed out in flight at all. */
static inline bool ca_reuse_wants_order(int reuse)
{
    return reuse == CA_REUSE_ORDER;
}
enum { CA_EXPANDABLE_AUTO, CA_EXPANDABLE_TRUE, CA_EXPANDABLE_FALSE };
enum { CA_STREAM_ORDERED_POOL, CA_STREAM_ORDERED_DRIVER };
enum { CA_CAPTURE_DRIVER, CA_CAPTURE_KEEP };
enum { CA_IPC_AUTO, CA_IPC_DEDICATED };
#define CA_ROUNDUP_STEPS(position) ((position) ? 1u << ((position)-1) : 0u)
enum { CA_STACKS_ALL, CA_STACKS_SAMPLE, CA_STACKS_OFF };
enum { CA_PEAK_LEAKS, CA_PEAK_ALWAYS, CA_PEAK_OFF };
enum { CA_NVTX_FALSE, CA_NVTX_TRUE, CA_NVTX_ALL };
enum { CA_STATS_OFF, CA_STATS_EXIT };
enum { CA_HELP_FALSE, CA_HELP_TRUE, CA_HELP_ALL };
/* A SET option has the bit 1 << position of each choice that was made. */
enum {
    CA_FORMAT_TEXT,
    CA_FORMAT_JSON,
    CA_FORMAT_PPROF,
    CA_FORMAT_FOLDED,
    CA_FORMAT_PYTORCH,
    CA_FORMATS
};
enum {
    CA_DEBUG_FREES = 1 << 1,
    CA_DEBUG_POISON = 1 << 2,
    CA_DEBUG_REDZONE = 1 << 3,
    CA_DEBUG_ZERO = 1 << 4
};
#define CA_DEBUG_ANY (CA_DEBUG_FREES | CA_DEBUG_POISON | CA_DEBUG_REDZONE | CA_DEBUG_ZERO)

#define CA_FIELD_SIZE(name) size_t name;
#define CA_FIELD_SHARE(name) ca_share_t name;
#define CA_FIELD_BOOL(name) bool name;
#define CA_FIELD_UINT(name) unsigned name;
#define CA_FIELD_DURATION(name) uint64_t name;
#define CA_FIELD_ENUM(name) int name;
#define CA_FIELD_SET(name) unsigned name;
#define CA_FIELD_CHOICE(name) ca_choice_t name;
#define CA_FIELD_STRING(name) char name[CA_STRING_MAX];
#define CA_FIELD_PATH(name) char name[CA_STRING_MAX];
#define CA_FIELD_LIST(name) ca_size_list_t name;
#define CA_FIELD_SIGNAL(name) int name; /* 0: off */

typedef struct ca_options {
#define CA_OPTION(name, level, type, ...) CA_FIELD_##type(name)
#include "config/options.def"
#undef CA_OPTION
} ca_options_t;

/* Called for each thing wrong in a configuration, with one line of text without a newline. */
typedef void (*ca_complain_t)(void *arg, const char *message);

/* Sets every option to its default. */
void ca_options_default(ca_options_t *options);

/* Parses `text` (may be NULL or empty), which the environment variable `name` has, over what
 * `options` holds. Returns the number of items that were refused; `complain` (may be NULL) gets
 * each with that name, its position, the key, the value and what is accepted, or the nearest known
 * key. After 16 of them one more message says that the rest is not listed. A key of an earlier
 * version is read as what it means today, and its first use gets a message of its own. Messages are
 * shorter than 768 bytes and escaped. Of a key given twice the last value wins; a value that is
 * refused leaves the earlier one. Allocates nothing. */
int ca_options_parse(ca_options_t *options, const char *name, const char *text,
                     ca_complain_t complain, void *arg);

/* Writes the options as one line that ca_options_parse reads back to the same values. Returns the
 * length it has or would have had, as snprintf does. Paths can make it longer than a line of
 * ca_log, which would cut and escape it: show it with ca_out_printf. */
int ca_options_print(const ca_options_t *options, char *buffer, size_t bytes);

/* Calls `line` for every line of the help table, current values included: of the basic options, or
 * of all by level where `help` is CA_HELP_ALL. */
void ca_options_help(const ca_options_t *options, void (*line)(void *arg, const char *text),
                     void *arg);

/* The same for one option, with its default in the place of a value, when to change it and an
 * example. Of a key that there is none of one line, which begins with `unknown key` and names those
 * that may be meant. */
void ca_options_help_key(const char *key, void (*line)(void *arg, const char *text), void *arg);

/* The process's options: set up once by the shim before first use, read-only afterwards. */
extern ca_options_t ca_options;

#endif
