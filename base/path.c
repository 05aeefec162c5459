#include "base/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define VARIABLE_MAX 256 /* bytes of an environment variable's name, its NUL included */
#define SHOWN_NAME 64    /* bytes of it in a message */

/* RANK is torchrun's, and comes first: a program that starts Python's processes under another
 * launcher means theirs. The others are set by Open MPI, PMIx, MPICH and Intel MPI, and Slurm. */
static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                         "SLURM_PROCID"};
static const char *const local_rank_names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
                                               "MPI_LOCALRANKID", "LOCAL_RANK"};

static const ca_path_process_t *other; /* NULL: paths are this process's */

void ca_path_set_process(const ca_path_process_t *process)
{
    other = process;
}

long ca_path_pid(void)
{
    return other ? other->pid : (long)getpid();
}

static bool is_rank(const char *value)
{
    size_t digits = strspn(value, "0123456789");
    return digits > 0 && digits <= 10 && value[digits] == '\0';
}

/* A name like RANK may be anything's: one without a number in it is passed over. */
static const char *first_number(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *value = secure_getenv(names[i]);
        if (value && is_rank(value))
            return value;
    }
    return NULL;
}

const char *ca_path_rank(void)
{
    if (other)
        return is_rank(other->rank) ? other->rank : NULL;
    return first_number(rank_names, COUNT(rank_names));
}

static const char *local_rank(void)
{
    return other ? NULL : first_number(local_rank_names, COUNT(local_rank_names));
}

bool ca_path_speaks_for_host(void)
{
    const char *rank = local_rank();
    if (!rank)
        rank = ca_path_rank();
    return !rank || rank[strspn(rank, "0")] == '\0';
}

/* The value of the variable that `name` begins with, up to `length`; NULL where it is not set. */
static const char *variable(const char *name, size_t length)
{
    char word[VARIABLE_MAX];
    if (length >= sizeof word)
        return NULL;
    memcpy(word, name, length);
    word[length] = '\0';
    return secure_getenv(word);
}

/* --- checking --------------------------------------------------------------------------------- */

/* Bytes of the %q{VARIABLE} at `at`, 0 where it is none. */
static size_t variable_bytes(const char *at, size_t left)
{
    const char *close = left > 3 && at[2] == '{' ? memchr(at, '}', left) : NULL;
    return close && close > at + 3 ? (size_t)(close - at) + 1 : 0;
}

static int wrong(ca_text_t *why, const char *text, const char *piece, size_t length,
                 const char *after)
{
    if (why) {
        ca_text_add(why, text, strlen(text));
        ca_text_escape(why, piece, length, SHOWN_NAME);
        ca_text_add(why, after, strlen(after));
    }
    return -EINVAL;
}

int ca_path_check(const char *pattern, size_t length, ca_text_t *why)
{
    for (size_t i = 0; i < length; i++) {
        const char *at = pattern + i;
        size_t left = length - i;
        if (*at != '%')
            continue;
        if (left == 1)
            return wrong(why, "ends in a lone ", at, 1, "");
        i++;
        if (at[1] == 'q') {
            size_t bytes = variable_bytes(at, left);
            if (bytes == 0)
                return wrong(why, "has a %q without its {VARIABLE}", "", 0, "");
            if (!variable(at + 3, bytes - 4))
                return wrong(why, "names a variable that is not set, ", at + 3, bytes - 4, "");
            i += bytes - 2;
        } else if (!strchr("prlhetn%", at[1])) {
            size_t shown = 2; /* all of a character of several bytes */
            while (shown < left && ((unsigned char)at[shown] & 0xc0) == 0x80)
                shown++;
            return wrong(why, "has an unknown pattern ", at, shown, "");
        }
    }
    return 0;
}

/* --- putting in ------------------------------------------------------------------------------- */

/* Appends a value so that it is one name, or with `slashes` a path, and never a pattern. */
static void add_value(ca_text_t *out, const char *value, bool slashes)
{
    for (; *value != '\0'; value++) {
        unsigned char c = (unsigned char)*value;
        if (c == '%')
            ca_text_add(out, "%%", 2);
        else if (c < 0x20 || c == 0x7f || (c == '/' && !slashes))
            ca_text_add(out, "_", 1);
        else
            ca_text_add(out, value, 1);
    }
}

static void add_rank(ca_text_t *out, const char *rank)
{
    ca_text_add(out, rank ? rank : "%p", rank ? strlen(rank) : 2);
}

static void add_host(ca_text_t *out)
{
    char host[256];
    if (other) {
        add_value(out, other->host, false);
        return;
    }
    if (gethostname(host, sizeof host) != 0)
        host[0] = '\0';
    host[sizeof host - 1] = '\0';
    add_value(out, host, false);
}

void ca_path_expand(const char *pattern, ca_text_t *expanded)
{
    for (const char *at = pattern; *at != '\0'; at++) {
        if (*at != '%' || at[1] == '\0') {
            ca_text_add(expanded, at, 1);
            continue;
        }
        size_t bytes;
        switch (*++at) {
        case 'r':
            add_rank(expanded, ca_path_rank());
            break;
        case 'l':
            add_rank(expanded, local_rank());
            break;
        case 'h':
            add_host(expanded);
            break;
        case 'e':
            add_value(expanded, other ? other->program : program_invocation_short_name, false);
            break;
        case 'q':
            bytes = variable_bytes(at - 1, strlen(at - 1));
            if (bytes) {
                const char *value = variable(at + 2, bytes - 4);
                add_value(expanded, value ? value : "", true);
                at += bytes - 2;
            }
            break;
        default:
            ca_text_add(expanded, at - 1, 2);
            break;
        }
    }
}

/* The working folder with a slash behind it, as a pattern, in an empty text; nothing where it
 * is not known: "(unreachable)/x" is no path. */
static void add_folder(ca_text_t *out)
{
    char *folder = out->buffer;
    if (!getcwd(folder, out->bytes) || folder[0] != '/')
        return;
    size_t from = strlen(folder), percents = 0;
    for (size_t i = 0; i < from; i++)
        percents += folder[i] == '%';
    size_t to = from + percents;
    if (to + 1 >= out->bytes)
        return;
    out->length = to;
    folder[to] = '\0';
    while (from > 0) {
        char c = folder[--from];
        folder[--to] = c;
        if (c == '%')
            folder[--to] = c;
    }
    if (out->length > 1)
        ca_text_add(out, "/", 1);
}

void ca_path_expand_here(const char *pattern, ca_text_t *expanded)
{
    add_folder(expanded);
    size_t length = expanded->length;
    if (length != 0)
        ca_path_expand(pattern, expanded);
    bool fits = length != 0 && expanded->length < expanded->bytes;
    if (!fits || expanded->buffer[length] == '/') {
        ca_text_init(expanded, expanded->buffer, expanded->bytes);
        ca_path_expand(pattern, expanded);
    }
}

bool ca_path_is_numbered(const char *expanded)
{
    for (const char *at = expanded; (at = strchr(at, '%')) != NULL && at[1] != '\0'; at += 2)
        if (at[1] == 'n')
            return true;
    return false;
}

void ca_path_finish(const char *expanded, unsigned number, ca_text_t *path)
{
    for (const char *at = expanded; *at != '\0'; at++) {
        if (*at != '%' || at[1] == '\0') {
            ca_text_add(path, at, 1);
            continue;
        }
        at++;
        if (*at == 'p')
            ca_text_printf(path, "%ld", ca_path_pid());
        else if (*at == 't')
            ca_text_printf(path, "%lld", (long long)time(NULL));
        else if (*at == 'n')
            ca_text_printf(path, "%u", number);
        else
            ca_text_add(path, at, 1);
    }
}
