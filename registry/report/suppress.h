/* Rules for leaks that are known, in a file like LeakSanitizer's:
 *
 *   # a comment
 *   leak:load_tile_*
 *   leak:libfoo.so dev=0 kind=pinned max_bytes=64M max_count=10
 *
 * A rule is for a group, by whole stacks, one of whose frames has a function, a source file or a
 * module that the pattern is in (registry/report/glob.h), and that fits all else that the rule
 * says. A function of Python is looked at as FILE:FUNCTION too. Of several rules the first
 * counts. */
#ifndef CA_REGISTRY_REPORT_SUPPRESS_H
#define CA_REGISTRY_REPORT_SUPPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "registry/report/model.h"
#include "registry/names/symbols.h"

typedef struct ca_rule {
    struct ca_rule *next;
    const char *text; /* the whole line, without spaces around it */
    const char *pattern;
    unsigned line; /* 0: built in */
    bool any_device, any_kind;
    unsigned device;
    ca_kind_t kind;
    uint64_t max_bytes, max_count; /* UINT64_MAX: any */
} ca_rule_t;

typedef struct ca_rules {
    const char *path; /* NULL without a file */
    size_t count;     /* of rules that are understood */
    ca_rule_t *first;
    ca_rule_t **end; /* where the next one is added */
    ca_bump_t memory;
} ca_rules_t;

/* Reads the rules in the file `path`, which must stay valid. What is wrong in it is reported in
 * warnings with file, line and what is accepted; the rest counts. No heap. 0 or a negative errno,
 * with no rules. */
int ca_suppress_read(ca_rules_t *rules, const char *path);

/* Adds the rules for what is known to be kept until the process ends, behind all others. */
void ca_suppress_add_builtin(ca_rules_t *rules);

/* Reads one line of `length` bytes, for ca_suppress_read and tests. 0, or -EINVAL with what is
 * wrong in `*wrong`. A comment or an empty line is no rule, and fine. */
int ca_suppress_add(ca_rules_t *rules, const char *line, size_t length, unsigned number,
                    const char **wrong);

/* The number, from 0, of the rule for a group with these frames; -1 for none. Notes with each frame
 * which patterns are in it, in `memory`, which lives as long as the frames. */
long ca_suppress_find(const ca_rules_t *rules, const ca_model_group_t *group, ca_bump_t *memory);

#endif
