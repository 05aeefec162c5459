/* From records to what a report says.
 *
 * Records are counted in groups by stack, thread, device and kind (groups.c). Here stacks get
 * their functions' names (classes.c), and what has the same names, device and kind becomes one
 * group, whatever its addresses and threads are. All of it lies in mapped memory: thousands of
 * leaks must not go through the host's heap at exit. */
#include "registry/report/model.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/thread_state.h"
#include "base/mem.h"
#include "registry/report/sort.h"
#include "registry/report/classes.h"
#include "registry/table/groups.h"
#include "registry/table/lost.h"
#include "registry/report/moments.h"
#include "registry/table/peak.h"
#include "registry/table/marks.h"
#include "registry/stack/stack.h"
#include "registry/report/suppress.h"
#include "registry/table/threads.h"
#include "registry/table/timeline.h"

/* A counted group and the functions of its stack. */
typedef struct part {
    ca_group_t group;
    ca_class_t *class;
    ca_named_t *const *frames; /* at least as many as the class has */
} part_t;

/* A group of the model, and the parts that it was made of. */
typedef struct whole {
    ca_model_group_t group;
    const ca_class_t *class;
    part_t *parts;
    size_t part_count;
} whole_t;

/* The groups of one section on their way. */
typedef struct making {
    whole_t *wholes;
    size_t count;
} making_t;

typedef struct maker {
    ca_model_t model; /* first: a pointer to it is one to the maker */
    ca_model_options_t options;
    ca_bump_t memory;
    ca_classes_t classes;
} maker_t;

_Static_assert(sizeof(whole_t) <= CA_SORT_MOST && sizeof(part_t) <= CA_SORT_MOST, "can be sorted");

/* --- orders ----------------------------------------------------------------------------------- */

static bool by_bytes(const void *a, const void *b)
{
    const part_t *x = a, *y = b;
    return x->group.bytes > y->group.bytes;
}

static bool by_stack(const void *a, const void *b)
{
    const part_t *x = a, *y = b;
    return x->group.stack < y->group.stack;
}

/* Parts of one group, and in it of one thread, come together. */
static bool by_group(const void *a, const void *b)
{
    const part_t *x = a, *y = b;
    if (x->class->number != y->class->number)
        return x->class->number < y->class->number;
    if (x->group.device != y->group.device)
        return x->group.device < y->group.device;
    if (x->group.kind != y->group.kind)
        return x->group.kind < y->group.kind;
    return x->group.thread < y->group.thread;
}

static bool by_age(const void *a, const void *b)
{
    const part_t *x = a, *y = b;
    return x->group.first < y->group.first;
}

static bool by_device(const void *a, const void *b)
{
    const ca_model_group_t *x = &((const whole_t *)a)->group, *y = &((const whole_t *)b)->group;
    return x->device != y->device ? x->device < y->device : x->kind < y->kind;
}

/* Among equals the order is by names, which two runs of a program share; addresses and the ids of
 * stacks are not. */
static bool is_larger(const void *a, const void *b)
{
    const whole_t *v = a, *w = b;
    const ca_model_group_t *x = &v->group, *y = &w->group;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes;
    if (x->count != y->count)
        return x->count > y->count;
    if (v->class->names != w->class->names)
        return v->class->names < w->class->names;
    return by_device(a, b) || (!by_device(b, a) && x->first < y->first);
}

/* --- groups ----------------------------------------------------------------------------------- */

static bool in_one_group(const part_t *a, const part_t *b)
{
    return a->class == b->class && a->group.device == b->group.device &&
           a->group.kind == b->group.kind;
}

static void add_part(whole_t *whole, const ca_group_t *part, uint64_t *stream_at)
{
    ca_model_group_t *group = &whole->group;
    group->count += part->count;
    group->bytes += part->bytes;
    if (part->smallest < group->smallest)
        group->smallest = part->smallest;
    if (part->largest > group->largest)
        group->largest = part->largest;
    if (part->first < group->first)
        group->first = part->first;
    if (part->last > group->last)
        group->last = part->last;
    if (part->stream != 0 && part->stream_at >= *stream_at) {
        group->stream = part->stream;
        *stream_at = part->stream_at;
    }
}

/* The group that the parts from `parts` on make, `left` at most. */
static void make_whole(whole_t *whole, part_t *parts, size_t left)
{
    uint64_t stream_at = 0;
    const ca_class_t *class = parts->class;
    *whole = (whole_t){.class = class, .parts = parts};
    whole->group.frame_count = class->frame_count;
    whole->group.device = parts->group.device;
    whole->group.kind = (ca_kind_t)parts->group.kind;
    whole->group.smallest = whole->group.first = UINT64_MAX;
    for (size_t i = 0; i < left && in_one_group(parts, &parts[i]); i++) {
        if (parts[i].group.first < whole->group.first) /* its lines are the group's */
            whole->group.frames = (const ca_frame_t *const *)parts[i].frames;
        add_part(whole, &parts[i].group, &stream_at);
        whole->part_count++;
        bool again = i > 0 && parts[i].group.thread == parts[i - 1].group.thread;
        whole->group.thread_count += parts[i].group.thread != 0 && !again;
    }
}

/* Makes groups of `count` parts, which it sorts. 0 or -ENOMEM. */
static int join(maker_t *maker, part_t *parts, size_t count, making_t *making)
{
    ca_sort(parts, count, sizeof *parts, by_group);
    for (size_t i = 0; i < count; i++)
        making->count += i == 0 || !in_one_group(&parts[i - 1], &parts[i]);
    making->wholes = ca_bump_take(&maker->memory, making->count * sizeof(whole_t));
    if (!making->wholes) {
        making->count = 0;
        return -ENOMEM;
    }
    size_t at = 0;
    for (size_t i = 0; i < making->count; at += making->wholes[i++].part_count)
        make_whole(&making->wholes[i], parts + at, count - at);
    return 0;
}

/* Makes the model's groups of counted ones, by whole stacks. 0 or -ENOMEM. */
static int make_wholes(maker_t *maker, const ca_groups_t *groups, making_t *making)
{
    memset(making, 0, sizeof *making);
    if (groups->count == 0)
        return 0;
    part_t *parts = ca_bump_take(&maker->memory, groups->count * sizeof *parts);
    if (!parts)
        return -ENOMEM;
    for (size_t i = 0; i < groups->count; i++)
        parts[i].group = groups->entries[i];
    /* The largest are named first where there may be no time for all. */
    if (maker->options.quick)
        ca_sort(parts, groups->count, sizeof *parts, by_bytes);
    for (size_t i = 0; maker->options.quick && i < groups->count; i++)
        ca_classes_of(&maker->classes, parts[i].group.stack, &parts[i].frames);
    ca_sort(parts, groups->count, sizeof *parts, by_stack);
    for (size_t i = 0; i < groups->count; i++) {
        bool again = i > 0 && parts[i].group.stack == parts[i - 1].group.stack;
        if (again) {
            parts[i].class = parts[i - 1].class;
            parts[i].frames = parts[i - 1].frames;
        } else {
            parts[i].class = ca_classes_of(&maker->classes, parts[i].group.stack, &parts[i].frames);
        }
    }
    return join(maker, parts, groups->count, making);
}

/* Makes one group of those that differ beyond leak_depth alone. After the rules, which are for
 * whole stacks. Without memory they stay as they are. */
static void cut(maker_t *maker, making_t *making)
{
    making_t joined = {.count = 0};
    size_t count = 0;
    for (size_t i = 0; i < making->count; i++)
        count += making->wholes[i].part_count;
    part_t *parts =
        maker->classes.depth ? ca_bump_take(&maker->memory, count * sizeof *parts) : NULL;
    if (!parts)
        return;
    part_t *part = parts;
    for (size_t i = 0; i < making->count; i++)
        for (size_t j = 0; j < making->wholes[i].part_count; j++, part++) {
            *part = making->wholes[i].parts[j];
            part->class = ca_classes_cut(&maker->classes, part->class);
        }
    if (join(maker, parts, count, &joined) == 0)
        *making = joined;
}

/* --- sections --------------------------------------------------------------------------------- */

static void add_totals(maker_t *maker, ca_model_section_t *section, making_t *making)
{
    size_t count = 0;
    ca_sort(making->wholes, making->count, sizeof(whole_t), by_device);
    for (size_t i = 0; i < making->count; i++)
        count += i == 0 || by_device(&making->wholes[i - 1], &making->wholes[i]);
    ca_model_total_t *totals = ca_bump_take(&maker->memory, count * sizeof *totals);
    if (!totals)
        return;
    ca_model_total_t *total = totals - 1;
    for (size_t i = 0; i < making->count; i++) {
        const ca_model_group_t *group = &making->wholes[i].group;
        if (i == 0 || by_device(&making->wholes[i - 1], &making->wholes[i]))
            *++total = (ca_model_total_t){.device = group->device, .kind = group->kind};
        total->count += group->count;
        total->bytes += group->bytes;
    }
    section->totals = totals;
    section->total_count = count;
}

static void count_stacks(ca_model_section_t *section, unsigned number, const making_t *making)
{
    for (size_t i = 0; i < making->count; i++) {
        ca_class_t *class = making->wholes[i].parts->class;
        section->stacks += class->frame_count != 0 && !(class->sections >> number & 1);
        class->sections |= 1u << number;
    }
}

/* The names of the threads that were first, different ones. */
static void name_threads(maker_t *maker, whole_t *whole)
{
    size_t named = 0;
    char name[CA_THREAD_NAME];
    ca_sort(whole->parts, whole->part_count, sizeof(part_t), by_age);
    for (size_t i = 0; i < whole->part_count && named < CA_MODEL_NAMES; i++) {
        uint32_t thread = whole->parts[i].group.thread;
        bool known = thread == 0;
        if (!known)
            ca_threads_name(thread, name);
        for (size_t j = 0; j < named; j++)
            known |= strcmp(name, whole->group.threads[j]) == 0;
        if (!known &&
            (whole->group.threads[named] = ca_bump_text(&maker->memory, name, strlen(name))))
            named++;
    }
}

/* Lists the largest groups, and totals the others. */
static void list_groups(maker_t *maker, ca_model_section_t *section, making_t *making)
{
    size_t listed = 0;
    ca_sort(making->wholes, making->count, sizeof(whole_t), is_larger);
    for (size_t i = 0; i < making->count; i++) {
        const ca_model_group_t *group = &making->wholes[i].group;
        if (group->bytes < maker->options.leak_min) {
            section->omitted_small++;
            section->omitted_small_bytes += group->bytes;
        } else if (listed == maker->options.leak_max) {
            section->omitted_most++;
            section->omitted_most_bytes += group->bytes;
        } else {
            listed++;
        }
    }
    ca_model_group_t *groups = ca_bump_take(&maker->memory, listed * sizeof *groups);
    section->group_count = groups ? listed : 0;
    section->incomplete |= !groups && listed != 0;
    section->groups = groups;
    for (size_t i = 0; groups && i < listed; i++) {
        const ca_model_t *model = &maker->model;
        name_threads(maker, &making->wholes[i]);
        groups[i] = making->wholes[i].group;
        groups[i].first_ns = ca_timeline_when(model->points, model->point_count, groups[i].first);
        groups[i].last_ns = ca_timeline_when(model->points, model->point_count, groups[i].last);
    }
}

static void fill_section(maker_t *maker, unsigned number, making_t *making)
{
    ca_model_section_t *section = &maker->model.sections[number];
    cut(maker, making);
    add_totals(maker, section, making);
    count_stacks(section, number, making);
    list_groups(maker, section, making);
}

/* Notes the amount of a section, and makes its groups of what was counted. */
static void begin_section(maker_t *maker, unsigned number, const ca_groups_t *groups, int error,
                          making_t *making)
{
    ca_model_section_t *section = &maker->model.sections[number];
    section->count = groups->total.count;
    section->bytes = groups->total.bytes;
    section->incomplete = error != 0 || make_wholes(maker, groups, making) != 0;
    uint64_t counted = 0;
    for (size_t i = 0; i < making->count; i++)
        counted += making->wholes[i].group.count;
    section->incomplete |= counted != section->count; /* no memory for some groups */
}

/* --- leaks that are known --------------------------------------------------------------------- */

static void move_whole(maker_t *maker, const whole_t *whole, ca_model_rule_t *rule,
                       ca_model_section_t *from, making_t *suppressed)
{
    ca_model_section_t *to = &maker->model.sections[CA_SECTION_SUPPRESSED];
    suppressed->wholes[suppressed->count++] = *whole;
    to->count += whole->group.count;
    to->bytes += whole->group.bytes;
    from->count -= whole->group.count;
    from->bytes -= whole->group.bytes;
    rule->groups++;
    rule->count += whole->group.count;
    rule->bytes += whole->group.bytes;
}

/* Moves the groups of `making` that a rule is for. */
static void suppress(maker_t *maker, unsigned number, making_t *making, ca_model_rule_t *rules,
                     making_t *suppressed)
{
    size_t kept = 0;
    for (size_t i = 0; i < making->count; i++) {
        whole_t *whole = &making->wholes[i];
        long rule = ca_suppress_find(maker->options.rules, &whole->group, &maker->memory);
        if (rule >= 0)
            move_whole(maker, whole, &rules[rule], &maker->model.sections[number], suppressed);
        else
            making->wholes[kept++] = *whole;
    }
    making->count = kept;
}

/* Built-in rules that matched nothing are left out. */
static size_t drop_unused_builtin(ca_model_rule_t *rules, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (rules[i].line != 0 || rules[i].groups != 0)
            rules[kept++] = rules[i];
    return kept;
}

static void apply_rules(maker_t *maker, making_t *leaked, making_t *destroyed)
{
    const ca_rules_t *source = maker->options.rules;
    making_t suppressed = {.count = 0};
    if (!source || source->count == 0)
        return;
    ca_model_rule_t *rules = ca_bump_take(&maker->memory, source->count * sizeof *rules);
    size_t most = leaked->count + destroyed->count;
    suppressed.wholes = ca_bump_take(&maker->memory, (most + 1) * sizeof(whole_t));
    if (!rules || !suppressed.wholes)
        return;
    size_t i = 0;
    for (const ca_rule_t *rule = source->first; rule; rule = rule->next, i++)
        rules[i] = (ca_model_rule_t){.text = rule->text, .line = rule->line};
    suppress(maker, CA_SECTION_LEAKED, leaked, rules, &suppressed);
    suppress(maker, CA_SECTION_DESTROYED, destroyed, rules, &suppressed);
    maker->model.rules_path = source->path;
    maker->model.rules = rules;
    maker->model.rule_count = drop_unused_builtin(rules, source->count);
    maker->model.sections[CA_SECTION_SUPPRESSED].present = maker->model.rule_count != 0;
    fill_section(maker, CA_SECTION_SUPPRESSED, &suppressed);
}

/* --- what there is ---------------------------------------------------------------------------- */

/* Counts what is live. Where that cannot be read, its total is known all the same. */
static int count_live(ca_groups_t *groups, unsigned *busy)
{
    ca_allocation_t *records;
    size_t count;
    memset(groups, 0, sizeof *groups);
    int error = ca_registry_snapshot(&records, &count, busy);
    for (size_t i = 0; i < count; i++)
        ca_groups_add(groups, &records[i]);
    ca_registry_snapshot_free(records, count);
    if (error)
        groups->total = ca_registry_total();
    return error;
}

static int count_lost(ca_groups_t *groups)
{
    int error = ca_lost_copy(groups);
    if (error)
        groups->total = ca_registry_lost();
    return error;
}

static void make_sections(maker_t *maker)
{
    ca_groups_t live, lost;
    making_t leaked = {.count = 0}, destroyed = {.count = 0};
    int live_error = count_live(&live, &maker->model.stripes_busy);
    int lost_error = count_lost(&lost);
    ca_groups_pack(&live);
    ca_groups_pack(&lost);
    begin_section(maker, CA_SECTION_LEAKED, &live, live_error, &leaked);
    begin_section(maker, CA_SECTION_DESTROYED, &lost, lost_error, &destroyed);
    maker->model.sections[CA_SECTION_LEAKED].present = true;
    apply_rules(maker, &leaked, &destroyed);
    maker->model.sections[CA_SECTION_DESTROYED].present =
        maker->model.sections[CA_SECTION_DESTROYED].count != 0;
    fill_section(maker, CA_SECTION_LEAKED, &leaked);
    fill_section(maker, CA_SECTION_DESTROYED, &destroyed);
    ca_groups_free(&live);
    ca_groups_free(&lost);
}

/* The holders at the peak: listed beside what is left, and where nothing is. */
static void make_peak(maker_t *maker)
{
    ca_groups_t held;
    ca_peak_moment_t moment;
    making_t peak = {.count = 0};
    ca_model_section_t *section = &maker->model.sections[CA_SECTION_PEAK];
    int error = ca_peak_groups(&held, &moment);
    ca_groups_pack(&held);
    begin_section(maker, CA_SECTION_PEAK, &held, error, &peak);
    section->present = section->count != 0;
    section->incomplete |= moment.busy != 0;
    /* The copy is made later: before the next free, or for this report. */
    uint64_t ns = ca_timeline_when(maker->model.points, maker->model.point_count, moment.sequence);
    maker->model.peak_ns = ns ? ns : moment.ns;
    maker->model.peak_sequence = moment.sequence;
    fill_section(maker, CA_SECTION_PEAK, &peak);
    ca_groups_free(&held);
}

static void describe_process(maker_t *maker)
{
    static const char *const names[CA_SECTIONS] = {"leaked", "destroyed", "suppressed", "peak"};
    ca_model_t *model = &maker->model;
    const ca_model_options_t *options = &maker->options;
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    const char *copy = ca_bump_text(&maker->memory, host, strlen(host));
    model->version = options->version ? options->version : "";
    model->cause = options->cause ? options->cause : "exit";
    model->rank = options->rank ? options->rank : "";
    model->pid = getpid();
    model->program = program_invocation_short_name;
    model->host = copy ? copy : "";
    model->unwinder = ca_stack_unwinder();
    model->stack_depth = options->stack_depth;
    model->sampled = options->sampled;
    model->leak_max = options->leak_max;
    model->leak_min = options->leak_min;
    model->even_empty = options->even_empty;
    model->print_rules = options->print_rules;
    model->peak_bytes = ca_registry_peak_bytes();
    for (unsigned i = 0; i < CA_SECTIONS; i++)
        model->sections[i].name = names[i];
}

static void describe_origin(ca_model_t *model, const ca_origin_t *origin)
{
    model->version = origin->version;
    model->rank = origin->rank;
    model->pid = origin->pid;
    model->program = origin->program;
    model->host = origin->host;
    model->unwinder = origin->unwinder;
    model->start_s = origin->start_s;
    model->stack_depth = origin->stack_depth;
    model->sampled = origin->sampled;
    model->peak_bytes = origin->peak_bytes;
}

static void copy_marks(maker_t *maker)
{
    ca_model_t *model = &maker->model;
    if (ca_marks_copy(NULL, &model->marks_dropped) == 0)
        return;
    ca_mark_t *marks = ca_bump_take(&maker->memory, CA_MARKS_MOST * sizeof *marks);
    size_t count = ca_marks_copy(marks, &model->marks_dropped);
    model->marks = marks;
    model->mark_count = marks ? count : 0;
    model->marks_dropped += count - model->mark_count;
}

ca_model_t *ca_model_make(const ca_model_options_t *options)
{
    maker_t *maker = ca_mem_map(sizeof *maker);
    if (!maker)
        return NULL;
    int before = ca_cancel_hold(); /* libdw opens and reads files */
    maker->options = *options;
    maker->classes.memory = &maker->memory;
    maker->classes.depth = options->leak_depth;
    maker->classes.symbols =
        options->quick ? ca_symbols_open_quick(&maker->memory) : ca_symbols_open(&maker->memory);
    describe_process(maker);
    if (!options->origin)
        ca_moments_points(&maker->model, &maker->memory);
    make_sections(maker);
    if (options->origin) {
        describe_origin(&maker->model, options->origin); /* of its times nothing is known */
    } else {
        if (options->peak)
            make_peak(maker);
        ca_moments_events(&maker->model, &maker->memory, &maker->classes);
        maker->model.now_ns = ca_timeline_now();
        copy_marks(maker);
    }
    maker->model.timed_out_names = ca_symbols_from_loader(maker->classes.symbols);
    maker->model.names_missing = ca_symbols_missing(maker->classes.symbols);
    ca_symbols_close(maker->classes.symbols);
    ca_cancel_resume(before);
    return &maker->model;
}

void ca_model_free(ca_model_t *model)
{
    maker_t *maker = (maker_t *)model;
    if (!maker)
        return;
    ca_bump_free(&maker->memory);
    ca_mem_unmap(maker, sizeof *maker);
}

bool ca_model_is_empty(const ca_model_t *model)
{
    bool empty = model->stripes_busy == 0 && !model->even_empty;
    for (unsigned i = 0; i < CA_SECTIONS; i++)
        if (i != CA_SECTION_PEAK)
            empty &= model->sections[i].count == 0;
    return empty;
}
