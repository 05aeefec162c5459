/* What a report says, before it is written in one of its formats: text (report.c), JSON, pprof,
 * folded stacks, PyTorch's memory snapshot (format_*.c). A writer reads this and nothing else.
 *
 * Built from a snapshot (model.c); all of it lies in mapped memory that ca_model_free gives back.
 * Strings are UTF-8 or whatever the file system has, and may be any bytes but NUL: writers escape
 * them. Sizes are bytes. */
#ifndef CA_REGISTRY_REPORT_MODEL_H
#define CA_REGISTRY_REPORT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/history.h"
#include "registry/names/frame.h"
#include "registry/table/marks.h"
#include "registry/table/origin.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"

#define CA_MODEL_NAMES 4 /* threads of a group that are named */

/* Groups that are listed where `leak_max` is 0. */
#define CA_MODEL_GROUPS 100u
#define CA_MODEL_TEXT_GROUPS 20u

typedef struct ca_model_group {
    size_t frame_count;              /* 0: no call stack was recorded */
    const ca_frame_t *const *frames; /* innermost first */
    unsigned device;
    ca_kind_t kind;
    uint64_t count, bytes;      /* allocations, and what they asked for */
    uint64_t smallest, largest; /* bytes of one */
    uint64_t first, last;       /* sequence numbers of the earliest and the latest */
    uint64_t first_ns, last_ns; /* when, since the start (see ca_model_t); 0 where not known */
    uint64_t stream;            /* of the latest that was given one; 0 for none */
    size_t thread_count;        /* different threads that allocated it; */
    const char *threads[CA_MODEL_NAMES]; /* the names, or numbers, of the first of them */
    /* Allocations through its functions there ever were, freed or not, and of these the temporaries
     * (registry/table/allocated.h). 0 where the model has not counted. */
    uint64_t allocations, temporaries;
} ca_model_group_t;

/* All allocations of a section that are on one device and of one kind, listed or not. */
typedef struct ca_model_total {
    unsigned device;
    ca_kind_t kind;
    uint64_t count, bytes;
} ca_model_total_t;

/* Allocations of one sort, and which of their groups are listed. */
typedef struct ca_model_section {
    const char *name; /* "leaked", "destroyed", "suppressed", "peak", "allocated": JSON's keys */
    bool present;     /* without it the section says nothing */
    bool incomplete;  /* some could not be read; the totals are right where they can be */
    uint64_t count, bytes; /* of all, listed or not */
    size_t stacks;         /* different ones, by function */
    size_t total_count;
    const ca_model_total_t *totals; /* by device, then kind */
    size_t group_count; /* listed, largest first: by bytes, then count, then a stable order */
    const ca_model_group_t *groups;
    uint64_t omitted_most, omitted_most_bytes;   /* groups beyond leak_max, and their bytes */
    uint64_t omitted_small, omitted_small_bytes; /* groups below leak_min */
    uint64_t temporaries;                        /* of "allocated" */
} ca_model_section_t;

enum {
    CA_SECTION_LEAKED,
    CA_SECTION_DESTROYED,
    CA_SECTION_SUPPRESSED,
    CA_SECTION_PEAK,
    CA_SECTION_ALLOCATED,
    CA_SECTIONS
};

/* A rule for leaks that are known (suppress.h), and what it was for; all 0 where that is nothing.
 */
typedef struct ca_model_rule {
    const char *text; /* as in the file */
    unsigned line;    /* 0: built in */
    uint64_t groups, count, bytes;
} ca_model_rule_t;

/* What the pool holds beside live memory; bytes. */
typedef struct ca_model_pool {
    uint64_t live_blocks, pending, ready, reserved, reserved_peak, pinned_reserved;
    bool incomplete;
} ca_model_pool_t;

/* One of the last events (base/history.h). */
typedef struct ca_model_event {
    uint64_t ns; /* since the start */
    ca_event_kind_t event;
    int device; /* ordinal, or -1 where it is not known */
    ca_kind_t kind;
    uint64_t address;
    uint64_t bytes;
    uint64_t stream;    /* 0 for none */
    const char *thread; /* its name, or NULL */
    size_t frame_count;
    const ca_frame_t *const *frames; /* innermost first */
} ca_model_event_t;

typedef struct ca_model {
    const char *version; /* the library's */
    const char *cause;   /* "exit", "dump", "signal", "oom", "journal" */
    long pid;
    const char *program, *host, *rank; /* rank: empty where a launcher set none */
    uint64_t start_s; /* since 1970: when the library first served; other times count from there */
    uint64_t now_ns;  /* of the report, since the start: before names are looked up */
    const char *unwinder;
    unsigned stack_depth;
    size_t sampled; /* bytes from one sampled stack to the next; 0: all have one, or none */
    size_t leak_max, leak_min;
    size_t text_max; /* of those that are listed, in text */
    bool even_empty, print_rules;
    bool fold;                 /* a framework's inner frames make one line: see stack_text.h */
    size_t timed_out_names;    /* frames that have no function for want of time */
    const char *names_missing; /* ca_symbols_missing's */
    bool lacks_lines;          /* ca_symbols_lack_lines's */
    unsigned stripes_busy; /* in use where a signal interrupted them: see ca_registry_snapshot */
    ca_model_section_t sections[CA_SECTIONS];
    const char *rules_path; /* of the file with the rules, or NULL without one */
    size_t rule_count;
    const ca_model_rule_t *rules;    /* in the order of the file; built-in ones last, if used */
    bool counted;                    /* what was ever allocated is known by call stack */
    uint64_t peak_bytes;             /* most that were live: of "peak" where all of that is there */
    uint64_t peak_at_most;           /* ca_registry_peak_bytes */
    uint64_t peak_ns, peak_sequence; /* when "peak" was, and its latest allocation */
    ca_model_pool_t pool;
    size_t point_count;
    const ca_point_t *points; /* the timeline, oldest first */
    size_t event_count;
    const ca_model_event_t *events; /* oldest first */
    uint64_t events_dropped;        /* were before those, or were lost */
    size_t mark_count;
    const ca_mark_t *marks; /* oldest first */
    uint64_t marks_dropped; /* older ones */
    size_t asked_count;
    const ca_frame_t *const *asked; /* the stack of the call that ran out, innermost first */
    uint64_t unpooled;              /* of what it found held, bytes that the driver serves */
    uint64_t phase_peak; /* most live bytes since the last mark: a bound, as peak_at_most */
    bool one_thread;     /* no two threads ever allocated: then both bounds are exact */
} ca_model_t;

/* Of what an out-of-memory report is. */
typedef struct ca_model_held {
    unsigned device;
    bool host;      /* all pinned memory, not that of a device */
    uint32_t stack; /* of the call */
} ca_model_held_t;

struct ca_rules;

/* What decides what a report says. Strings must outlive the model. */
typedef struct ca_model_options {
    const char *cause, *version;
    const char *rank;     /* of the process; NULL or empty where it has none */
    size_t leak_min;      /* smaller groups are counted, not listed; bytes */
    unsigned leak_max;    /* groups listed at most, in each section; 0: as people want it */
    unsigned leak_depth;  /* innermost frames that tell groups apart and are shown; 0: all */
    unsigned stack_depth; /* most frames that were kept of a stack */
    size_t sampled;       /* as in ca_model_t */
    const struct ca_rules *rules; /* for leaks that are known, or NULL */
    bool quick;                   /* names without libdw, malloc and loader: see plain_names.h */
    bool fold;                    /* as in ca_model_t */
    bool peak, even_empty;        /* has the peak; is no empty one, though nothing leaked */
    bool print_rules;             /* as text with a rule for each group: suppressions_print */
    const ca_origin_t *origin;    /* NULL: this process */
    /* NULL: all there is. Else "leaked" is what this much of the live memory is, and there is no
     * other section, no rule and no past. */
    const ca_model_held_t *held;
} ca_model_options_t;

/* A model of what is live now, and of what destroyed contexts held. Its pool is 0: the caller
 * may set it. NULL without host memory. Names come by libdw, which uses the C library's heap. Needs
 * no CUDA, takes none of our locks for long; one at a time; cannot be cancelled. */
ca_model_t *ca_model_make(const ca_model_options_t *options);
void ca_model_free(ca_model_t *model); /* NULL is allowed */

/* Nothing leaked, and nothing was left out. */
bool ca_model_is_empty(const ca_model_t *model);

#endif
