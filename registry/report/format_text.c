/* The report as text; where nothing leaked and the model is empty, nothing. The format (checked by
 * tests):
 *
 *   cachealloc[PID]: leak report, rank <r>, cause <dump or signal>, stacks sampled: <size>
 *   LEAK SUMMARY: <bytes> bytes in <n> allocations, <k> stacks
 *   (incomplete: <n> of 17 stripes were in use)
 *     device 0, device memory: <bytes> bytes in <n> allocations
 *     ...
 *   (nothing leaked)
 *   #1: <bytes> bytes in <n> allocations, device 0, device memory
 *     sizes <least> to <most>, sequence <first> to <last>, <n> threads: loader, worker
 *       load_tile at tiles.c:42
 *       main at tiles.c:99
 *   ...
 *   (<m> more groups, <bytes> bytes, not listed: leak_max:20)
 *   ALIVE WHEN THEIR CONTEXT WAS DESTROYED: <bytes> bytes in <n> allocations, <k> stacks
 *   #1: ...
 *   SUPPRESSED: <bytes> bytes in <n> allocations, <k> stacks
 *     <bytes> bytes in <n> allocations: leak:load_tile (<path>:<line>)
 *     not used: leak:save_tile (<path>:<line>)
 *   RULES FOR THE GROUPS ABOVE:
 *   leak:^load_tile$ kind=device
 *   PEAK: <bytes> bytes in <n> allocations, <k> stacks, <s>.<ms> s after the start
 *   (incomplete: some of it could not be read: in use, or no memory)
 *     device 0, device memory: <bytes> bytes in <n> allocations
 *   #1: ...
 *   (<m> more groups, <bytes> bytes, not listed here)
 *
 * The rank is there where a launcher set one, the cause but for the end of the process, the size
 * where stacks were sampled: one for as many bytes on average, and what has none is a group "(no
 * call stack)" for each kind of memory. The summary counts what is live now, and is there with
 * zeros when nothing is: at the end of a process with a line that says so. A group is what went
 * through the same functions, on one device and of one kind; lines are those of its earliest stack.
 * Sizes are there where they differ; sequence numbers count the allocations of the process, and are
 * one where they are the same; of one thread there is its name, "thread main"; of more than are
 * named the list ends in "...". Stripes are in use where exit was called by a signal handler that
 * interrupted an allocation: it may be missing. What was alive in contexts that were destroyed,
 * with cudaDeviceReset for instance, has its own heading and its own count of groups; without it
 * the heading is not there. What rules suppressed (suppress.h) counts nowhere else, and is not
 * listed; the rules are, those that were for nothing too. suppressions_print adds a rule for each
 * group that is listed, by its innermost function that has a name: of the program before those
 * inside a framework (registry/names/fold.h), and of Python, with its file, before any other. The
 * peak is reported where the model has it, by its five largest groups; what leaked is among it. */
#include "registry/report/formats.h"

#include <stdbool.h>
#include <string.h>

#include "config/numbers.h"
#include "base/text.h"
#include "registry/names/fold.h"
#include "registry/names/stack_text.h"

#define FEW_GROUPS 5u  /* of the peak, and of all that was allocated */
#define FEW_PHASES 20u /* the highest of these */
#define HELD_GROUPS 10u

typedef unsigned long long number_t;

/* All of it: a rule that was cut would be for nothing. */
static void write_escaped(ca_out_t *out, const char *text)
{
    char shown[5];
    for (size_t left = strlen(text); left != 0;) {
        size_t consumed = ca_text_escape_next(text, left, shown);
        ca_out_bytes(out, shown, strlen(shown));
        text += consumed;
        left -= consumed;
    }
}

static void write_amount(ca_out_t *out, uint64_t bytes, uint64_t count)
{
    ca_out_printf(out, "%llu bytes in %llu allocations", (number_t)bytes, (number_t)count);
}

static void write_place(ca_out_t *out, unsigned device, ca_kind_t kind)
{
    ca_out_printf(out, "device %u, %s memory", device, ca_kind_name(kind));
}

static void write_incomplete(ca_out_t *out, const ca_model_section_t *section)
{
    if (section->incomplete)
        ca_out_printf(out, "(incomplete: some of it could not be read: in use, or no memory)\n");
}

static void write_total(ca_out_t *out, const char *title, const ca_model_section_t *section)
{
    ca_out_printf(out, "%s: ", title);
    write_amount(out, section->bytes, section->count);
    ca_out_printf(out, ", %zu stacks\n", section->stacks);
    write_incomplete(out, section);
}

static void write_totals(ca_out_t *out, const ca_model_section_t *section)
{
    for (size_t i = 0; i < section->total_count; i++) {
        const ca_model_total_t *total = &section->totals[i];
        ca_out_printf(out, "  ");
        write_place(out, total->device, total->kind);
        ca_out_printf(out, ": ");
        write_amount(out, total->bytes, total->count);
        ca_out_printf(out, "\n");
    }
}

static void write_threads(ca_out_t *out, const ca_model_group_t *group)
{
    char shown[128];
    ca_text_t text;
    ca_text_init(&text, shown, sizeof shown);
    size_t named = 0;
    for (; named < CA_MODEL_NAMES && group->threads[named]; named++) {
        ca_text_add(&text, ", ", named ? 2 : 0);
        ca_text_escape(&text, group->threads[named], strlen(group->threads[named]), 24);
    }
    if (named == CA_MODEL_NAMES && group->thread_count > named)
        ca_text_add(&text, ", ...", 5);
    if (group->thread_count == 1)
        ca_out_printf(out, ", thread %s", shown);
    else if (group->thread_count > 1)
        ca_out_printf(out, ", %zu threads: %s", group->thread_count, shown);
}

static void write_details(ca_out_t *out, const ca_model_group_t *group)
{
    ca_out_printf(out, "  ");
    if (group->smallest != group->largest)
        ca_out_printf(out, "sizes %llu to %llu, ", (number_t)group->smallest,
                      (number_t)group->largest);
    ca_out_printf(out, "sequence %llu", (number_t)group->first);
    if (group->last != group->first)
        ca_out_printf(out, " to %llu", (number_t)group->last);
    write_threads(out, group);
    ca_out_printf(out, "\n");
}

static void write_group(ca_out_t *out, const ca_model_t *model, size_t number,
                        const ca_model_group_t *group)
{
    ca_out_printf(out, "#%zu: ", number);
    write_amount(out, group->bytes, group->count);
    ca_out_printf(out, ", ");
    write_place(out, group->device, group->kind);
    ca_out_printf(out, "\n");
    write_details(out, group);
    ca_stack_text(out, group->frames, group->frame_count, model->fold);
}

static void write_omitted(ca_out_t *out, uint64_t groups, uint64_t bytes, const char *reason,
                          size_t value)
{
    if (groups != 0)
        ca_out_printf(out, "(%llu more groups, %llu bytes, not listed: %s:%zu)\n", (number_t)groups,
                      (number_t)bytes, reason, value);
}

static void write_groups(ca_out_t *out, const ca_model_t *model, const ca_model_section_t *section)
{
    uint64_t omitted = section->omitted_most, bytes = section->omitted_most_bytes;
    for (size_t i = 0; i < section->group_count; i++) {
        if (i < model->text_max) {
            write_group(out, model, i + 1, &section->groups[i]);
        } else {
            omitted++;
            bytes += section->groups[i].bytes;
        }
    }
    write_omitted(out, omitted, bytes, "leak_max", model->text_max);
    write_omitted(out, section->omitted_small, section->omitted_small_bytes, "leak_min",
                  model->leak_min);
}

static bool nothing_leaked(const ca_model_t *model)
{
    return strcmp(model->cause, "exit") == 0 && model->stripes_busy == 0 &&
           model->sections[CA_SECTION_LEAKED].count == 0 &&
           model->sections[CA_SECTION_DESTROYED].count == 0 &&
           model->sections[CA_SECTION_SUPPRESSED].count == 0;
}

static void write_busy(ca_out_t *out, const ca_model_t *model)
{
    if (model->stripes_busy != 0)
        ca_out_printf(out, "(incomplete: %u of %d stripes were in use)\n", model->stripes_busy,
                      CA_REGISTRY_STRIPES);
}

static void write_live(ca_out_t *out, const ca_model_t *model)
{
    const ca_model_section_t *section = &model->sections[CA_SECTION_LEAKED];
    write_total(out, "LEAK SUMMARY", section);
    write_busy(out, model);
    write_totals(out, section);
    write_groups(out, model, section);
    if (model->even_empty && nothing_leaked(model))
        ca_out_printf(out, "(nothing leaked)\n");
}

/* --- rules ------------------------------------------------------------------------------------ */

static void write_rule(ca_out_t *out, const ca_model_t *model, const ca_model_rule_t *rule)
{
    char shown[512];
    ca_text_t text;
    ca_text_init(&text, shown, sizeof shown);
    ca_text_escape(&text, rule->text, strlen(rule->text), sizeof shown - 1);
    ca_out_printf(out, "  ");
    if (rule->groups != 0)
        write_amount(out, rule->bytes, rule->count);
    else
        ca_out_printf(out, "not used");
    if (rule->line == 0) {
        ca_out_printf(out, ": %s (built in)\n", shown);
        return;
    }
    ca_out_printf(out, ": %s (", shown);
    write_escaped(out, model->rules_path);
    ca_out_printf(out, ":%u)\n", rule->line);
}

static void write_suppressed(ca_out_t *out, const ca_model_t *model)
{
    write_total(out, "SUPPRESSED", &model->sections[CA_SECTION_SUPPRESSED]);
    for (size_t i = 0; i < model->rule_count; i++)
        if (model->rules[i].groups != 0)
            write_rule(out, model, &model->rules[i]);
    for (size_t i = 0; i < model->rule_count; i++)
        if (model->rules[i].groups == 0)
            write_rule(out, model, &model->rules[i]);
}

/* What a rule is for. */
typedef struct target {
    const char *file; /* of a Python function, else NULL */
    const char *function;
} target_t;

/* What a rule for the group would look for, of all its functions: Python's go before others, those
 * of the program before those inside a framework, and the innermost before that. Without a name
 * where none has one. */
static target_t target_of(const ca_model_group_t *group)
{
    target_t best = {NULL, NULL};
    unsigned worth = 0;
    for (size_t i = 0; i < group->frame_count; i++)
        for (size_t j = 0; j < group->frames[i]->place_count; j++) {
            const ca_frame_t *frame = group->frames[i];
            const ca_place_t *place = &frame->places[j];
            unsigned its = 1 + 2 * frame->python + !ca_fold_is_inner(frame, place);
            if (!place->function || its <= worth)
                continue;
            worth = its;
            best = (target_t){frame->python ? place->file : NULL, place->function};
        }
    return best;
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Whether none of the groups before, some hundred at most, has the rule of this one. */
static bool is_new(const ca_model_section_t *section, size_t at, target_t target)
{
    enum { COMPARED = 200 };
    for (size_t i = at > COMPARED ? at - COMPARED : 0; i < at; i++) {
        target_t other = target_of(&section->groups[i]);
        if (section->groups[i].kind == section->groups[at].kind &&
            is_same(other.function, target.function) && is_same(other.file, target.file))
            return false;
    }
    return true;
}

static void write_rules_for(ca_out_t *out, const ca_model_t *model,
                            const ca_model_section_t *section)
{
    for (size_t i = 0; i < section->group_count && i < model->text_max; i++) {
        target_t target = target_of(&section->groups[i]);
        if (!target.function || !is_new(section, i, target))
            continue;
        const char *slash = target.file ? strrchr(target.file, '/') : NULL;
        ca_out_printf(out, target.file ? "leak:" : "leak:^");
        if (target.file) {
            write_escaped(out, slash ? slash + 1 : target.file);
            ca_out_printf(out, ":");
        }
        write_escaped(out, target.function);
        ca_out_printf(out, "$ kind=%s\n", ca_kind_name(section->groups[i].kind));
    }
}

/* The largest few of a section's groups: more is in the other formats. */
static void write_largest(ca_out_t *out, const ca_model_t *model, const ca_model_section_t *section,
                          size_t most)
{
    size_t listed = section->group_count < most ? section->group_count : most;
    uint64_t bytes = section->bytes;
    for (size_t i = 0; i < listed; i++) {
        write_group(out, model, i + 1, &section->groups[i]);
        bytes -= section->groups[i].bytes;
    }
    uint64_t more = section->group_count - listed + section->omitted_most + section->omitted_small;
    if (more != 0)
        ca_out_printf(out, "(%llu more groups, %llu bytes, not listed here)\n", (number_t)more,
                      (number_t)bytes);
}

static void write_few_groups(ca_out_t *out, const ca_model_t *model,
                             const ca_model_section_t *section)
{
    write_incomplete(out, section);
    write_totals(out, section);
    write_largest(out, model, section, FEW_GROUPS);
}

/* Seconds, in whole numbers: the program's locale may put a comma into a fraction. */
static void write_seconds(ca_out_t *out, uint64_t ns)
{
    uint64_t ms = (ns + 500000) / 1000000;
    ca_out_printf(out, "%llu.%03u", (number_t)(ms / 1000), (unsigned)(ms % 1000));
}

static void write_peak(ca_out_t *out, const ca_model_t *model)
{
    const ca_model_section_t *peak = &model->sections[CA_SECTION_PEAK];
    ca_out_printf(out, "PEAK: ");
    write_amount(out, peak->bytes, peak->count);
    ca_out_printf(out, ", %zu stacks, ", peak->stacks);
    write_seconds(out, model->peak_ns);
    ca_out_printf(out, " s after the start\n");
    write_few_groups(out, model, peak);
}

static void write_allocated(ca_out_t *out, const ca_model_t *model)
{
    const ca_model_section_t *all = &model->sections[CA_SECTION_ALLOCATED];
    ca_out_printf(out, "ALLOCATED IN ALL: ");
    write_amount(out, all->bytes, all->count);
    ca_out_printf(out, ", %zu stacks, %llu temporary\n", all->stacks, (number_t)all->temporaries);
    write_few_groups(out, model, all);
}

static uint64_t peak_of_phase(const ca_model_t *model, size_t phase)
{
    return model->marks && phase < model->mark_count ? model->marks[phase].peak : model->phase_peak;
}

/* Whether so few have a higher peak that it is shown. */
static bool is_shown(const ca_model_t *model, size_t first, size_t phase)
{
    unsigned higher = 0;
    for (size_t i = first; higher < FEW_PHASES && i <= model->mark_count; i++)
        higher += peak_of_phase(model, i) > peak_of_phase(model, phase) ||
                  (i < phase && peak_of_phase(model, i) == peak_of_phase(model, phase));
    return higher < FEW_PHASES;
}

/* Of a program that sets marks. What is before marks that are not kept is no phase. */
static void write_phases(ca_out_t *out, const ca_model_t *model)
{
    size_t first = model->marks_dropped != 0, count = model->mark_count + 1 - first, shown = 0;
    ca_out_printf(out, "PHASES: %zu, from mark to mark\n", count);
    for (size_t i = first; i <= model->mark_count; i++) {
        const ca_mark_t *begin = i ? &model->marks[i - 1] : NULL;
        if (!is_shown(model, first, i))
            continue;
        shown++;
        ca_out_printf(out, "  ");
        write_escaped(out, begin ? begin->name : "(before the first mark)");
        ca_out_printf(out, ": peak %s%llu bytes, ", model->one_thread ? "" : "at most ",
                      (number_t)peak_of_phase(model, i));
        write_seconds(out, begin ? begin->ns : 0);
        ca_out_printf(out, " to ");
        write_seconds(out, i < model->mark_count ? model->marks[i].ns : model->now_ns);
        ca_out_printf(out, " s\n");
    }
    if (shown < count)
        ca_out_printf(out, "(%zu more phases, of lower peaks, not listed here)\n", count - shown);
}

static void write_header(ca_out_t *out, const ca_model_t *model)
{
    bool has_rank = model->rank[0] != '\0', has_cause = strcmp(model->cause, "exit") != 0;
    char buffer[64] = "";
    ca_text_t sampled;
    ca_text_init(&sampled, buffer, sizeof buffer);
    if (model->sampled != 0) {
        ca_text_printf(&sampled, ", stacks sampled: ");
        ca_size_print(model->sampled, &sampled);
    }
    ca_out_printf(out, "cachealloc[%ld]: leak report%s", model->pid, has_rank ? ", rank " : "");
    write_escaped(out, model->rank);
    ca_out_printf(out, "%s%s%s\n", has_cause ? ", cause " : "", has_cause ? model->cause : "",
                  buffer);
}

static void write_what_names_lack(ca_out_t *out, const ca_model_t *model)
{
    if (model->timed_out_names != 0)
        ca_out_printf(out,
                      "(%zu frames are module and offset alone: there was no time for all names)\n",
                      model->timed_out_names);
    if (model->names_missing)
        ca_out_printf(out, "(functions and lines are missing where files cannot be read: %s)\n",
                      model->names_missing);
}

void ca_format_text(ca_out_t *out, const ca_model_t *model)
{
    const ca_model_section_t *leaked = &model->sections[CA_SECTION_LEAKED];
    const ca_model_section_t *destroyed = &model->sections[CA_SECTION_DESTROYED];
    if (ca_model_is_empty(model))
        return;
    write_header(out, model);
    write_live(out, model);
    if (destroyed->present) {
        write_total(out, "ALIVE WHEN THEIR CONTEXT WAS DESTROYED", destroyed);
        write_groups(out, model, destroyed);
    }
    if (model->sections[CA_SECTION_SUPPRESSED].present)
        write_suppressed(out, model);
    if (model->print_rules && leaked->group_count + destroyed->group_count != 0) {
        ca_out_printf(out, "RULES FOR THE GROUPS ABOVE:\n");
        write_rules_for(out, model, leaked);
        write_rules_for(out, model, destroyed);
    }
    if (model->sections[CA_SECTION_PEAK].present)
        write_peak(out, model);
    if (model->sections[CA_SECTION_ALLOCATED].present)
        write_allocated(out, model);
    if (model->marks && model->mark_count != 0)
        write_phases(out, model);
    write_what_names_lack(out, model);
}

void ca_format_asked(ca_out_t *out, const ca_model_t *model)
{
    ca_stack_text(out, model->asked, model->asked_count, model->fold);
}

void ca_format_held(ca_out_t *out, const ca_model_t *model)
{
    const ca_model_section_t *held = &model->sections[CA_SECTION_LEAKED];
    write_total(out, "HELD", held);
    write_busy(out, model);
    write_totals(out, held);
    write_largest(out, model, held, HELD_GROUPS);
    write_what_names_lack(out, model);
}
