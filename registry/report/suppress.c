#include "registry/report/suppress.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/report/glob.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "config/numbers.h"

#define FILE_MOST ((off_t)16 << 20)
#define COMPLAINTS_MAX 16
#define SHOWN 200 /* bytes of a line in a message */
#define PYTHON_NAME_BYTES 1024

static const char accepted[] = "leak:PATTERN, after it dev=N, kind=NAME, max_bytes=SIZE, "
                               "max_count=N, or a comment that begins with #";

/* --- lines ------------------------------------------------------------------------------------ */

typedef struct span {
    const char *at;
    size_t length;
} span_t;

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static span_t trimmed(const char *at, size_t length)
{
    while (length > 0 && is_space(at[length - 1]))
        length--;
    while (length > 0 && is_space(*at)) {
        at++;
        length--;
    }
    return (span_t){at, length};
}

static bool is_word(span_t word, const char *text)
{
    return word.length == strlen(text) && memcmp(word.at, text, word.length) == 0;
}

static bool read_kind(span_t text, ca_kind_t *kind)
{
    for (unsigned i = 0; i < CA_KIND_COUNT; i++) {
        if (is_word(text, ca_kind_name((ca_kind_t)i))) {
            *kind = (ca_kind_t)i;
            return true;
        }
    }
    return false;
}

/* One of the conditions behind a pattern. What is wrong with it, or NULL. */
static const char *read_condition(ca_rule_t *rule, span_t key, span_t value)
{
    uint64_t number = 0;
    if (is_word(key, "dev")) {
        rule->any_device = false;
        if (ca_uint_parse(value.at, value.length, &number) != 0 || number > 255)
            return "dev= must be a number up to 255";
        rule->device = (unsigned)number;
    } else if (is_word(key, "kind")) {
        rule->any_kind = false;
        if (!read_kind(value, &rule->kind))
            return "kind= must be one that reports name, device or pinned for instance";
    } else if (is_word(key, "max_bytes")) {
        if (ca_size_parse(value.at, value.length, &rule->max_bytes) != 0)
            return "max_bytes= must be a size, 64M for instance";
    } else if (is_word(key, "max_count")) {
        if (ca_uint_parse(value.at, value.length, &rule->max_count) != 0)
            return "max_count= must be a number";
    } else {
        return "an unknown condition follows the pattern";
    }
    return NULL;
}

/* Splits key=value off the end of `rest`. False where no such word is there: all is pattern.
 * `operator=` is a function. */
static bool split_condition(span_t *rest, span_t *key, span_t *value)
{
    size_t start = rest->length;
    while (start > 0 && !is_space(rest->at[start - 1]))
        start--;
    const char *word = rest->at + start;
    size_t length = rest->length - start;
    size_t letters = 0;
    while (letters < length &&
           ((word[letters] >= 'a' && word[letters] <= 'z') || word[letters] == '_'))
        letters++;
    *key = (span_t){word, letters};
    if (letters == 0 || letters == length || word[letters] != '=' || is_word(*key, "operator"))
        return false;
    *value = (span_t){word + letters + 1, length - letters - 1};
    *rest = trimmed(rest->at, start);
    return true;
}

int ca_suppress_add(ca_rules_t *rules, const char *line, size_t length, unsigned number,
                    const char **wrong)
{
    static const char prefix[] = "leak:";
    ca_rule_t read = {.line = number, .any_device = true, .any_kind = true};
    span_t whole = trimmed(line, length), key, value;
    read.max_bytes = read.max_count = UINT64_MAX;
    *wrong = NULL;
    if (whole.length == 0 || whole.at[0] == '#')
        return 0;
    if (whole.length < strlen(prefix) || memcmp(whole.at, prefix, strlen(prefix)) != 0) {
        *wrong = "it does not begin with leak:";
        return -EINVAL;
    }
    span_t rest = trimmed(whole.at + strlen(prefix), whole.length - strlen(prefix));
    while (!*wrong && split_condition(&rest, &key, &value))
        *wrong = read_condition(&read, key, value);
    if (!*wrong && (rest.length == 0 || memchr(rest.at, '\0', rest.length)))
        *wrong = "there is no pattern";
    if (*wrong)
        return -EINVAL;
    ca_rule_t *rule = ca_bump_take(&rules->memory, sizeof *rule);
    read.text = ca_bump_text(&rules->memory, whole.at, whole.length);
    read.pattern = ca_bump_text(&rules->memory, rest.at, rest.length);
    if (!rule || !read.text || !read.pattern) {
        *wrong = "there is no memory for it";
        return -EINVAL;
    }
    *rule = read;
    if (!rules->first)
        rules->end = &rules->first;
    *rules->end = rule;
    rules->end = &rule->next;
    rules->count++;
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

static void complain(const ca_rules_t *rules, span_t line, unsigned number, const char *wrong,
                     unsigned before)
{
    span_t shown = trimmed(line.at, line.length);
    if (before == COMPLAINTS_MAX)
        ca_warn("suppressions: more lines of %s are wrong; they are not listed", rules->path);
    if (before >= COMPLAINTS_MAX)
        return;
    ca_warn("suppressions: %s:%u: \"%.*s%s\" is no rule: %s; accepted: %s", rules->path, number,
            (int)(shown.length < SHOWN ? shown.length : SHOWN), shown.at,
            shown.length > SHOWN ? "..." : "", wrong, accepted);
}

static void read_lines(ca_rules_t *rules, const char *text, size_t length)
{
    unsigned number = 0, refused = 0;
    const char *wrong;
    for (const char *at = text, *end = text + length; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        span_t line = {at, (size_t)((newline ? newline : end) - at)};
        if (ca_suppress_add(rules, line.at, line.length, ++number, &wrong) != 0)
            complain(rules, line, number, wrong, refused++);
        at += line.length + 1;
    }
}

/* All of a file, in mapped memory. 0 or a negative errno. */
static int read_file(int fd, char **text, size_t *bytes, size_t *length)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return -errno;
    if (!S_ISREG(status.st_mode)) /* a pipe could hold up the program */
        return -EINVAL;
    if (status.st_size > FILE_MOST)
        return -EFBIG;
    *bytes = (size_t)status.st_size + 1;
    *text = ca_mem_map(*bytes);
    if (!*text)
        return -ENOMEM;
    while (*length < *bytes) {
        ssize_t got = read(fd, *text + *length, *bytes - *length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        *length += (size_t)got;
    }
    return 0;
}

int ca_suppress_read(ca_rules_t *rules, const char *path)
{
    char *text = NULL;
    size_t bytes = 0, length = 0;
    int saved = errno;
    memset(rules, 0, sizeof *rules);
    rules->path = path;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int error = fd < 0 ? -errno : read_file(fd, &text, &bytes, &length);
    if (fd >= 0)
        close(fd);
    if (error)
        ca_warn("suppressions: cannot read %s (%s), so no leak is suppressed; accepted: off, or "
                "the path of a plain file of up to 16 MiB",
                path, strerror(-error));
    else
        read_lines(rules, text, length);
    ca_mem_unmap(text, bytes);
    errno = saved;
    return error;
}

/* --- built in --------------------------------------------------------------------------------- */

/* PyTorch's own sources say so of each: DeviceThreadHandles.h of the pools of handles ("never
 * destroyed until the end of the process"), whose destruction some builds leave out altogether;
 * CublasHandlePool.cpp of the workspaces, which are kept in maps that are never destroyed; and both
 * caching allocators, of device and of pinned memory, leave what they cache to the end of the
 * process. A rule names the class or function that keeps the memory, not what lies around it: with
 * PYTORCH_NO_CUDA_MEMORY_CACHING=1 tensors come through the namespace CUDACachingAllocator too, and
 * are leaks. The names are in the linker's names as well, which is all that a report after _exit
 * has. */
static const char *const builtin[] = {
    "leak:DeviceCachingAllocator",       "leak:CachingHostAllocator",
    "leak:getCurrentCUDABlasHandle",     "leak:getCurrentCUDABlasLtHandle",
    "leak:getCUDABlasLtWorkspace",       "leak:getCurrentCUDASparseHandle",
    "leak:getCurrentCUDASolverDnHandle", "leak:getCudnnHandle",
};

void ca_suppress_add_builtin(ca_rules_t *rules)
{
    const char *wrong;
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++)
        ca_suppress_add(rules, builtin[i], strlen(builtin[i]), 0, &wrong);
}

/* --- matching --------------------------------------------------------------------------------- */

/* As FILE:FUNCTION, which says which of a program's many functions of that name. */
static bool is_in_python(const ca_rule_t *rule, const ca_place_t *place)
{
    char both[PYTHON_NAME_BYTES];
    ca_text_t text;
    ca_text_init(&text, both, sizeof both);
    ca_text_printf(&text, "%s:%s", place->file, place->function);
    return ca_glob_holds(rule->pattern, both);
}

static bool is_in(const ca_rule_t *rule, const ca_frame_t *frame)
{
    if (frame->module && ca_glob_holds(rule->pattern, frame->module))
        return true;
    for (size_t i = 0; i < frame->place_count; i++) {
        const ca_place_t *place = &frame->places[i];
        if (frame->python && is_in_python(rule, place))
            return true;
        if ((place->function && ca_glob_holds(rule->pattern, place->function)) ||
            (place->file && ca_glob_holds(rule->pattern, place->file)))
            return true;
    }
    return false;
}

/* A bit for each rule whose pattern is in the frame. NULL for none. */
static const uint64_t *bits_of(const ca_rules_t *rules, ca_named_t *named, ca_bump_t *memory)
{
    if ((!named->frame.module && !named->frame.python) || named->rules) /* nothing to match */
        return named->rules;
    uint64_t *bits = ca_bump_take(memory, (rules->count + 63) / 64 * sizeof *bits);
    size_t i = 0;
    for (const ca_rule_t *rule = rules->first; bits && rule; rule = rule->next, i++)
        bits[i / 64] |= (uint64_t)is_in(rule, &named->frame) << i % 64;
    return named->rules = bits;
}

static bool fits(const ca_rule_t *rule, const ca_model_group_t *group)
{
    return (rule->any_device || rule->device == group->device) &&
           (rule->any_kind || rule->kind == group->kind) && group->bytes <= rule->max_bytes &&
           group->count <= rule->max_count;
}

long ca_suppress_find(const ca_rules_t *rules, const ca_model_group_t *group, ca_bump_t *memory)
{
    size_t i = 0;
    uint64_t bits = 0;
    for (const ca_rule_t *rule = rules->first; rule; rule = rule->next, i++) {
        for (size_t f = 0; i % 64 == 0 && f < group->frame_count; f++) {
            /* Frames of a model are those of symbols.h. */
            const uint64_t *its = bits_of(rules, (ca_named_t *)group->frames[f], memory);
            bits = (f == 0 ? 0 : bits) | (its ? its[i / 64] : 0);
        }
        if (bits >> i % 64 & 1 && fits(rule, group))
            return (long)i;
    }
    return -1;
}
