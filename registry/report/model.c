/* From records to what a report says.
 *
 * Records are counted in groups by stack, thread, device and kind (groups.c), and those become
 * groups by functions' names (named_groups.c). Here they are divided into sections, without what
 * rules are for. All of it lies in mapped memory: thousands of leaks must not go through the host's
 * heap at exit. */
#include "registry/report/model.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/thread_state.h"
#include "base/mem.h"
#include "registry/names/sort.h"
#include "registry/report/named_groups.h"
#include "registry/table/allocated.h"
#include "registry/table/lost.h"
#include "registry/report/moments.h"
#include "registry/table/peak.h"
#include "registry/stack/stack.h"
#include "registry/report/suppress.h"
#include "registry/table/threads.h"
#include "registry/table/timeline.h"

typedef struct maker {
    ca_model_t model; /* first: a pointer to it is one to the maker */
    ca_model_options_t options;
    ca_bump_t memory;
    ca_classes_t classes;
    ca_groups_t counted; /* all that was ever allocated, */
    int count_error;
    ca_named_groups_t allocated; /* and its groups, to be found; empty where not known */
} maker_t;

/* --- sections --------------------------------------------------------------------------------- */

static void add_totals(maker_t *maker, ca_model_section_t *section, ca_named_groups_t *making)
{
    size_t count = 0;
    ca_sort(making->groups, making->count, sizeof(ca_named_group_t), ca_named_by_device);
    for (size_t i = 0; i < making->count; i++)
        count += i == 0 || ca_named_by_device(&making->groups[i - 1], &making->groups[i]);
    ca_model_total_t *totals = ca_bump_take(&maker->memory, count * sizeof *totals);
    if (!totals)
        return;
    ca_model_total_t *total = totals - 1;
    for (size_t i = 0; i < making->count; i++) {
        const ca_model_group_t *group = &making->groups[i].group;
        if (i == 0 || ca_named_by_device(&making->groups[i - 1], &making->groups[i]))
            *++total = (ca_model_total_t){.device = group->device, .kind = group->kind};
        total->count += group->count;
        total->bytes += group->bytes;
    }
    section->totals = totals;
    section->total_count = count;
}

static void count_stacks(ca_model_section_t *section, unsigned number,
                         const ca_named_groups_t *making)
{
    for (size_t i = 0; i < making->count; i++) {
        ca_class_t *class = making->groups[i].parts->class;
        section->stacks += class->frame_count != 0 && !(class->sections >> number & 1);
        class->sections |= 1u << number;
    }
}

/* The names of the threads that were first, different ones. */
static void name_threads(maker_t *maker, ca_named_group_t *group)
{
    size_t named = 0;
    char name[CA_THREAD_NAME];
    ca_sort(group->parts, group->part_count, sizeof(ca_named_part_t), ca_named_by_age);
    for (size_t i = 0; i < group->part_count && named < CA_MODEL_NAMES; i++) {
        uint32_t thread = group->parts[i].group.thread;
        bool known = thread == 0;
        if (!known)
            ca_threads_name(thread, name);
        for (size_t j = 0; j < named; j++)
            known |= strcmp(name, group->group.threads[j]) == 0;
        if (!known &&
            (group->group.threads[named] = ca_bump_text(&maker->memory, name, strlen(name))))
            named++;
    }
}

/* What was ever allocated by the functions of a group. */
static void add_counts(const maker_t *maker, const ca_named_group_t *named, ca_model_group_t *group)
{
    const ca_named_group_t *all = ca_named_groups_find(&maker->allocated, named);
    if (all) {
        group->allocations = all->group.count;
        group->temporaries = all->group.temporaries;
    }
}

/* Lists the largest groups, and totals the others. */
static void list_groups(maker_t *maker, ca_model_section_t *section, ca_named_groups_t *making)
{
    size_t listed = 0;
    ca_sort(making->groups, making->count, sizeof(ca_named_group_t), ca_named_is_larger);
    for (size_t i = 0; i < making->count; i++) {
        const ca_model_group_t *group = &making->groups[i].group;
        if (group->bytes < maker->options.leak_min) {
            section->omitted_small++;
            section->omitted_small_bytes += group->bytes;
        } else if (listed == maker->model.leak_max) {
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
        name_threads(maker, &making->groups[i]);
        groups[i] = making->groups[i].group;
        groups[i].first_ns = ca_timeline_when(model->points, model->point_count, groups[i].first);
        groups[i].last_ns = ca_timeline_when(model->points, model->point_count, groups[i].last);
        add_counts(maker, &making->groups[i], &groups[i]);
    }
}

static void list_section(maker_t *maker, unsigned number, ca_named_groups_t *making)
{
    ca_model_section_t *section = &maker->model.sections[number];
    add_totals(maker, section, making);
    count_stacks(section, number, making);
    list_groups(maker, section, making);
}

static void fill_section(maker_t *maker, unsigned number, ca_named_groups_t *making)
{
    ca_named_groups_cut(&maker->memory, &maker->classes, making);
    list_section(maker, number, making);
}

/* Notes the amount of a section, and makes its groups of what was counted. */
static void begin_section(maker_t *maker, unsigned number, const ca_groups_t *groups, int error,
                          ca_named_groups_t *making)
{
    ca_model_section_t *section = &maker->model.sections[number];
    section->count = groups->total.count;
    section->bytes = groups->total.bytes;
    section->incomplete =
        error != 0 || ca_named_groups_make(&maker->memory, &maker->classes, maker->options.quick,
                                           groups, making) != 0;
    uint64_t counted = 0;
    for (size_t i = 0; i < making->count; i++)
        counted += making->groups[i].group.count;
    section->incomplete |= counted != section->count; /* no memory for some groups */
}

/* --- leaks that are known --------------------------------------------------------------------- */

static void move_group(maker_t *maker, const ca_named_group_t *group, ca_model_rule_t *rule,
                       ca_model_section_t *from, ca_named_groups_t *suppressed)
{
    ca_model_section_t *to = &maker->model.sections[CA_SECTION_SUPPRESSED];
    suppressed->groups[suppressed->count++] = *group;
    to->count += group->group.count;
    to->bytes += group->group.bytes;
    from->count -= group->group.count;
    from->bytes -= group->group.bytes;
    rule->groups++;
    rule->count += group->group.count;
    rule->bytes += group->group.bytes;
}

/* Moves the groups of `making` that a rule is for. */
static void suppress(maker_t *maker, unsigned number, ca_named_groups_t *making,
                     ca_model_rule_t *rules, ca_named_groups_t *suppressed)
{
    size_t kept = 0;
    for (size_t i = 0; i < making->count; i++) {
        ca_named_group_t *group = &making->groups[i];
        long rule = ca_suppress_find(maker->options.rules, &group->group, &maker->memory);
        if (rule >= 0)
            move_group(maker, group, &rules[rule], &maker->model.sections[number], suppressed);
        else
            making->groups[kept++] = *group;
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

static void apply_rules(maker_t *maker, ca_named_groups_t *leaked, ca_named_groups_t *destroyed)
{
    const ca_rules_t *source = maker->options.rules;
    ca_named_groups_t suppressed = {.count = 0};
    if (!source || source->count == 0)
        return;
    ca_model_rule_t *rules = ca_bump_take(&maker->memory, source->count * sizeof *rules);
    size_t most = leaked->count + destroyed->count;
    suppressed.groups = ca_bump_take(&maker->memory, (most + 1) * sizeof(ca_named_group_t));
    if (!rules || !suppressed.groups)
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

static bool is_pinned(const ca_allocation_t *record)
{
    return record->kind == CA_KIND_PINNED || record->kind == CA_KIND_REGISTERED;
}

static bool is_meant(const ca_model_held_t *held, const ca_allocation_t *record)
{
    if (!held || held->host || is_pinned(record))
        return !held || (held->host && is_pinned(record));
    return record->device == held->device && record->kind != CA_KIND_EXTERNAL;
}

/* Counts what is live. Where that cannot be read, its total is known all the same. */
static int count_live(maker_t *maker, ca_groups_t *groups)
{
    const ca_model_held_t *held = maker->options.held;
    ca_allocation_t *records;
    size_t count;
    memset(groups, 0, sizeof *groups);
    int error = ca_registry_snapshot(&records, &count, &maker->model.stripes_busy);
    for (size_t i = 0; i < count; i++) {
        if (!is_meant(held, &records[i]))
            continue;
        ca_groups_add(groups, &records[i]);
        maker->model.unpooled += records[i].owner ? 0 : records[i].bytes;
    }
    ca_registry_snapshot_free(records, count);
    if (error && !held)
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

/* Counts what was ever allocated, for the groups of all sections. */
static void count_allocated(maker_t *maker)
{
    ca_model_section_t *section = &maker->model.sections[CA_SECTION_ALLOCATED];
    ca_groups_pack(&maker->counted);
    begin_section(maker, CA_SECTION_ALLOCATED, &maker->counted, maker->count_error,
                  &maker->allocated);
    ca_named_groups_cut(&maker->memory, &maker->classes, &maker->allocated);
    for (size_t i = 0; i < maker->allocated.count; i++)
        section->temporaries += maker->allocated.groups[i].group.temporaries;
    section->present = section->count != 0;
    maker->model.counted = section->present && !section->incomplete;
    ca_groups_free(&maker->counted);
}

static void make_sections(maker_t *maker)
{
    ca_groups_t live, lost;
    ca_named_groups_t leaked = {.count = 0}, destroyed = {.count = 0};
    int live_error = count_live(maker, &live);
    int lost_error = count_lost(&lost);
    ca_groups_pack(&live);
    ca_groups_pack(&lost);
    begin_section(maker, CA_SECTION_LEAKED, &live, live_error, &leaked);
    begin_section(maker, CA_SECTION_DESTROYED, &lost, lost_error, &destroyed);
    maker->model.sections[CA_SECTION_LEAKED].present = true;
    count_allocated(maker); /* after these: there may be no time for all names */
    apply_rules(maker, &leaked, &destroyed);
    maker->model.sections[CA_SECTION_DESTROYED].present =
        maker->model.sections[CA_SECTION_DESTROYED].count != 0;
    fill_section(maker, CA_SECTION_LEAKED, &leaked);
    fill_section(maker, CA_SECTION_DESTROYED, &destroyed);
    ca_groups_free(&live);
    ca_groups_free(&lost);
}

/* What is held where memory is out, and the stack that asks for more. */
static void make_held(maker_t *maker)
{
    ca_groups_t live;
    ca_named_groups_t held = {.count = 0};
    ca_named_t *const *frames;
    int error = count_live(maker, &live);
    const ca_class_t *asked = ca_classes_of(&maker->classes, maker->options.held->stack, &frames);
    maker->model.asked = (const ca_frame_t *const *)frames;
    maker->model.asked_count = asked->frame_count;
    ca_groups_pack(&live);
    begin_section(maker, CA_SECTION_LEAKED, &live, error, &held);
    maker->model.sections[CA_SECTION_LEAKED].present = true;
    fill_section(maker, CA_SECTION_LEAKED, &held);
    ca_groups_free(&live);
}

/* The stacks at the peak: listed beside what is left, and where nothing is. */
static void make_peak(maker_t *maker)
{
    ca_groups_t held;
    ca_peak_moment_t moment;
    ca_named_groups_t peak = {.count = 0};
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
    /* One figure for the peak, wherever it stands: what was seen to be live. */
    if (section->present && !section->incomplete)
        maker->model.peak_bytes = section->bytes;
    ca_groups_free(&held);
}

/* Last: the order of the groups, by which others are looked up, changes. */
static void make_allocated(maker_t *maker)
{
    for (size_t i = 0; i < maker->allocated.count; i++)
        maker->allocated.groups[i].group.allocations = maker->allocated.groups[i].group.count;
    ca_named_groups_t all = maker->allocated;
    maker->allocated.count = 0;
    list_section(maker, CA_SECTION_ALLOCATED, &all);
}

static void describe_process(maker_t *maker)
{
    static const char *const names[CA_SECTIONS] = {"leaked", "destroyed", "suppressed", "peak",
                                                   "allocated"};
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
    model->leak_max = options->leak_max ? options->leak_max : CA_MODEL_GROUPS;
    model->text_max = options->leak_max ? options->leak_max : CA_MODEL_TEXT_GROUPS;
    model->leak_min = options->leak_min;
    model->even_empty = options->even_empty;
    model->print_rules = options->print_rules;
    model->fold = options->fold;
    model->peak_bytes = model->peak_at_most = ca_registry_peak_bytes();
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
    model->peak_bytes = model->peak_at_most = origin->peak_bytes;
}

static void make_all(maker_t *maker)
{
    const ca_model_options_t *options = &maker->options;
    ca_moments_t moments = {.events = NULL};
    if (!options->origin) {
        ca_moments_copy(&maker->model, &maker->memory, &moments);
        maker->count_error = ca_allocated_copy(&maker->counted);
    }
    make_sections(maker);
    if (options->origin) {
        describe_origin(&maker->model, options->origin); /* of its times nothing is known */
    } else {
        if (options->peak)
            make_peak(maker);
        make_allocated(maker);
        ca_moments_name_events(&maker->model, &maker->memory, &maker->classes, &moments);
    }
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
    if (options->held)
        make_held(maker);
    else
        make_all(maker);
    maker->model.timed_out_names = ca_symbols_from_loader(maker->classes.symbols);
    maker->model.names_missing = ca_symbols_missing(maker->classes.symbols);
    maker->model.lacks_lines = ca_symbols_lack_lines(maker->classes.symbols);
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
        if (i != CA_SECTION_PEAK && i != CA_SECTION_ALLOCATED)
            empty &= model->sections[i].count == 0;
    return empty;
}
