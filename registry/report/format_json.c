/* The report as one JSON object and a newline, for programs: tests/report.schema.json describes it.
 *
 * Sizes, counts, sequence numbers and nanoseconds are integers of up to 64 bits; addresses and
 * streams are strings, "0x...". Bytes that are not UTF-8 become U+FFFD. Each frame is listed once,
 * groups have positions in that list. Without host memory for the list nothing is written. */
#include "registry/report/formats.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "registry/names/fold.h"
#include "registry/report/frame_index.h"

#define SCHEMA_VERSION 1
#define SHORT_NAME 400 /* bytes of a function's name in a line of the text */

typedef unsigned long long number_t;

/* --- values ----------------------------------------------------------------------------------- */

/* The next character of a string as JSON has it. Returns the bytes that it was. */
static size_t write_character(ca_text_t *text, const char *at, size_t left)
{
    uint32_t code;
    size_t bytes = ca_text_decode(at, left, &code);
    if (bytes == 0) {
        ca_text_add(text, "\\ufffd", 6);
        return 1;
    }
    if (code == '"' || code == '\\')
        ca_text_add(text, "\\", 1);
    if (code < 0x20)
        ca_text_printf(text, "\\u%04x", (unsigned)code);
    else
        ca_text_add(text, at, bytes);
    return bytes;
}

/* A string of any length, piece by piece; NULL is null. */
static void write_string(ca_out_t *out, const char *string)
{
    char piece[256];
    if (!string) {
        ca_out_printf(out, "null");
        return;
    }
    ca_out_printf(out, "\"");
    for (size_t left = strlen(string); left > 0;) {
        ca_text_t text;
        ca_text_init(&text, piece, sizeof piece);
        while (left > 0 && text.length < sizeof piece - 8) { /* one more fits */
            size_t bytes = write_character(&text, string, left);
            string += bytes;
            left -= bytes;
        }
        ca_out_printf(out, "%s", piece);
    }
    ca_out_printf(out, "\"");
}

static void write_member(ca_out_t *out, const char *name, const char *string)
{
    ca_out_printf(out, "\"%s\": ", name);
    write_string(out, string);
    ca_out_printf(out, ", ");
}

/* Between the elements of a list, each on a line of its own. */
static void write_next(ca_out_t *out, size_t i)
{
    ca_out_printf(out, i ? ",\n  " : "\n  ");
}

/* --- parts ------------------------------------------------------------------------------------ */

static void write_frames(ca_out_t *out, const ca_frame_t *const *frames, size_t count,
                         const ca_frame_index_t *index)
{
    ca_out_printf(out, "\"frames\": [");
    for (size_t i = 0; i < count; i++)
        ca_out_printf(out, "%s%zu", i ? ", " : "", ca_frame_index_of(index, frames[i]));
    ca_out_printf(out, "]");
}

static void write_group(ca_out_t *out, const ca_model_group_t *group, bool counted,
                        const ca_frame_index_t *index)
{
    ca_out_printf(out,
                  "{\"bytes\": %llu, \"count\": %llu, \"smallest\": %llu, \"largest\": %llu, "
                  "\"device\": %u, \"kind\": \"%s\", ",
                  (number_t)group->bytes, (number_t)group->count, (number_t)group->smallest,
                  (number_t)group->largest, group->device, ca_kind_name(group->kind));
    ca_out_printf(
        out, "\"first\": %llu, \"last\": %llu, \"first_ns\": %llu, \"last_ns\": %llu, \"stream\": ",
        (number_t)group->first, (number_t)group->last, (number_t)group->first_ns,
        (number_t)group->last_ns);
    ca_out_printf(out, group->stream ? "\"0x%llx\"" : "null", (number_t)group->stream);
    ca_out_printf(out, ", \"threads\": [");
    for (size_t i = 0; i < CA_MODEL_NAMES && group->threads[i]; i++) {
        ca_out_printf(out, "%s", i ? ", " : "");
        write_string(out, group->threads[i]);
    }
    ca_out_printf(out, "], \"thread_count\": %zu, ", group->thread_count);
    if (counted)
        ca_out_printf(out, "\"allocations\": %llu, \"temporaries\": %llu, ",
                      (number_t)group->allocations, (number_t)group->temporaries);
    write_frames(out, group->frames, group->frame_count, index);
    ca_out_printf(out, "}");
}

static void write_totals(ca_out_t *out, const ca_model_section_t *section)
{
    ca_out_printf(out, "\"totals\": [");
    for (size_t i = 0; i < section->total_count; i++) {
        const ca_model_total_t *total = &section->totals[i];
        ca_out_printf(out, "%s{\"device\": %u, \"kind\": \"%s\", \"count\": %llu, \"bytes\": %llu}",
                      i ? ", " : "", total->device, ca_kind_name(total->kind),
                      (number_t)total->count, (number_t)total->bytes);
    }
    ca_out_printf(out, "],\n");
}

static void write_section(ca_out_t *out, const ca_model_section_t *section, bool counted,
                          const ca_frame_index_t *index)
{
    bool of_all = counted && strcmp(section->name, "allocated") == 0;
    ca_out_printf(out,
                  "\"%s\": {\"count\": %llu, \"bytes\": %llu, \"stacks\": %zu, "
                  "\"incomplete\": %s,\n ",
                  section->name, (number_t)section->count, (number_t)section->bytes,
                  section->stacks, section->incomplete ? "true" : "false");
    if (of_all)
        ca_out_printf(out, "\"temporaries\": %llu, ", (number_t)section->temporaries);
    ca_out_printf(out,
                  "\"omitted\": {\"leak_max\": {\"groups\": %llu, \"bytes\": %llu}, "
                  "\"leak_min\": {\"groups\": %llu, \"bytes\": %llu}},\n ",
                  (number_t)section->omitted_most, (number_t)section->omitted_most_bytes,
                  (number_t)section->omitted_small, (number_t)section->omitted_small_bytes);
    write_totals(out, section);
    ca_out_printf(out, " \"groups\": [");
    for (size_t i = 0; i < section->group_count; i++) {
        write_next(out, i);
        write_group(out, &section->groups[i], counted, index);
    }
    ca_out_printf(out, "]}");
}

static void write_sections(ca_out_t *out, const ca_model_t *model, const ca_frame_index_t *index)
{
    bool any = false;
    ca_out_printf(out, "\"sections\": {");
    for (unsigned i = 0; i < CA_SECTIONS; i++) {
        if (!model->sections[i].present)
            continue;
        ca_out_printf(out, any ? ",\n " : "\n ");
        write_section(out, &model->sections[i], model->counted, index);
        any = true;
    }
    ca_out_printf(out, "},\n");
}

static void write_rules(ca_out_t *out, const ca_model_t *model)
{
    ca_out_printf(out, "\"suppressions\": [");
    for (size_t i = 0; i < model->rule_count; i++) {
        const ca_model_rule_t *rule = &model->rules[i];
        write_next(out, i);
        ca_out_printf(out, "{");
        write_member(out, "rule", rule->text);
        ca_out_printf(out, "\"line\": %u, \"groups\": %llu, \"count\": %llu, \"bytes\": %llu}",
                      rule->line, (number_t)rule->groups, (number_t)rule->count,
                      (number_t)rule->bytes);
    }
    ca_out_printf(out, "],\n");
}

/* All of its functions are a framework's inner ones. */
static bool is_inner(const ca_frame_t *frame)
{
    bool inner = frame->place_count != 0 || ca_fold_is_inner(frame, NULL);
    for (size_t i = 0; inner && i < frame->place_count; i++)
        inner = ca_fold_is_inner(frame, &frame->places[i]);
    return inner;
}

/* What the text makes of an inner function, so that it can be written of this, too. */
static void write_fold(ca_out_t *out, const ca_frame_t *frame, const ca_place_t *place)
{
    char name[SHORT_NAME];
    ca_text_t text;
    if (!ca_fold_is_inner(frame, place))
        return;
    ca_out_printf(out, "\"fold\": true, ");
    if (frame->python || !place->function)
        return;
    ca_text_init(&text, name, sizeof name);
    ca_fold_name(place->function, &text);
    if (strcmp(name, place->function) != 0)
        write_member(out, "short", name);
}

static void write_frame(ca_out_t *out, const ca_frame_t *frame)
{
    if (frame->python)
        ca_out_printf(out, "{\"language\": \"python\", \"address\": null, ");
    else
        ca_out_printf(out, "{\"address\": \"0x%llx\", ", (number_t)frame->address);
    if (is_inner(frame))
        ca_out_printf(out, "\"fold\": true, ");
    write_member(out, "module", frame->module);
    write_member(out, "build_id", frame->build_id);
    ca_out_printf(out, "\"offset\": \"0x%llx\", ", (number_t)frame->offset);
    write_member(out, "text", frame->text);
    if (frame->lines && strcmp(frame->text, frame->lines) != 0)
        write_member(out, "lines", frame->lines);
    ca_out_printf(out, "\"places\": [");
    for (size_t i = 0; i < frame->place_count; i++) {
        const ca_place_t *place = &frame->places[i];
        ca_out_printf(out, i ? ", {" : "{");
        write_fold(out, frame, place);
        write_member(out, "function", place->function);
        write_member(out, "file", place->file);
        ca_out_printf(out, place->line ? "\"line\": %u}" : "\"line\": null}", place->line);
    }
    ca_out_printf(out, "]}");
}

static void write_process(ca_out_t *out, const ca_model_t *model)
{
    ca_out_printf(out, "{\"schema\": \"cachealloc-report\", \"schema_version\": %d,\n",
                  SCHEMA_VERSION);
    write_member(out, "cachealloc", model->version);
    write_member(out, "cause", model->cause);
    ca_out_printf(out, "\"pid\": %ld, ", model->pid);
    write_member(out, "program", model->program);
    write_member(out, "host", model->host);
    write_member(out, "rank", model->rank[0] != '\0' ? model->rank : NULL);
    ca_out_printf(out, "\n\"start_s\": %llu, \"now_ns\": %llu, ", (number_t)model->start_s,
                  (number_t)model->now_ns);
    write_member(out, "unwinder", model->unwinder);
    write_member(out, "names_missing", model->names_missing);
    ca_out_printf(
        out,
        "\"stack_depth\": %u, \"stacks_sampled\": %zu, \"leak_max\": %zu, \"leak_min\": %zu, "
        "\"shards_busy\": %u, \"peak_bytes\": %llu, \"peak_at_most\": %llu, "
        "\"peak_ns\": %llu, \"peak_sequence\": %llu,\n",
        model->stack_depth, model->sampled, model->leak_max, model->leak_min, model->stripes_busy,
        (number_t)model->peak_bytes, (number_t)model->peak_at_most, (number_t)model->peak_ns,
        (number_t)model->peak_sequence);
}

/* What the text says that nothing else here does. */
static void write_as_text(ca_out_t *out, const ca_model_t *model)
{
    ca_out_printf(out, "\"as_text\": {\"groups\": %zu, \"fold\": %s, \"rules\": %s, ",
                  model->text_max, model->fold ? "true" : "false",
                  model->print_rules ? "true" : "false");
    ca_out_printf(out, "\"even_empty\": %s, \"names_timed_out\": %zu, \"rules_path\": ",
                  model->even_empty ? "true" : "false", model->timed_out_names);
    write_string(out, model->rules_path);
    ca_out_printf(out, "},\n");
}

static void write_pool(ca_out_t *out, const ca_model_pool_t *pool)
{
    ca_out_printf(out,
                  "\"pool\": {\"live_blocks\": %llu, \"pending\": %llu, \"ready\": %llu, "
                  "\"reserved\": %llu, \"reserved_peak\": %llu, \"pinned_reserved\": %llu, "
                  "\"incomplete\": %s},\n",
                  (number_t)pool->live_blocks, (number_t)pool->pending, (number_t)pool->ready,
                  (number_t)pool->reserved, (number_t)pool->reserved_peak,
                  (number_t)pool->pinned_reserved, pool->incomplete ? "true" : "false");
}

static void write_event(ca_out_t *out, const ca_model_event_t *event, const ca_frame_index_t *index)
{
    static const char *const names[CA_EVENTS] = {"alloc",   "free", "ready",
                                                 "segment", "trim", "oom"};
    ca_out_printf(out, "{\"ns\": %llu, \"event\": \"%s\", ", (number_t)event->ns,
                  names[event->event]);
    if (event->device >= 0)
        ca_out_printf(out, "\"device\": %d, \"kind\": \"%s\", ", event->device,
                      ca_kind_name(event->kind));
    else
        ca_out_printf(out, "\"device\": null, \"kind\": null, ");
    ca_out_printf(out, "\"address\": \"0x%llx\", \"bytes\": %llu, \"stream\": ",
                  (number_t)event->address, (number_t)event->bytes);
    ca_out_printf(out, event->stream ? "\"0x%llx\", " : "null, ", (number_t)event->stream);
    write_member(out, "thread", event->thread);
    write_frames(out, event->frames, event->frame_count, index);
    ca_out_printf(out, "}");
}

static void write_marks(ca_out_t *out, const ca_model_t *model)
{
    ca_out_printf(out, "\"marks_dropped\": %llu, \"marks\": [", (number_t)model->marks_dropped);
    for (size_t i = 0; i < model->mark_count; i++) {
        const ca_mark_t *mark = &model->marks[i];
        write_next(out, i);
        ca_out_printf(out, "{\"ns\": %llu, \"sequence\": %llu, \"live\": %llu, \"name\": ",
                      (number_t)mark->ns, (number_t)mark->sequence, (number_t)mark->live);
        write_string(out, mark->name);
        ca_out_printf(out, "}");
    }
    ca_out_printf(out, "],\n");
}

/* From mark to mark. What is before marks that are not kept is no phase. */
static void write_phases(ca_out_t *out, const ca_model_t *model)
{
    bool any = false;
    ca_out_printf(out, "\"phases\": [");
    for (size_t i = model->marks_dropped != 0; model->mark_count != 0 && i <= model->mark_count;
         i++) {
        const ca_mark_t *begin = i ? &model->marks[i - 1] : NULL;
        const ca_mark_t *end = i < model->mark_count ? &model->marks[i] : NULL;
        write_next(out, any);
        any = true;
        ca_out_printf(out, "{\"name\": ");
        write_string(out, begin ? begin->name : NULL);
        ca_out_printf(out,
                      ", \"ns\": %llu, \"ended_ns\": %llu, \"peak_bytes\": %llu, "
                      "\"exact\": %s}",
                      (number_t)(begin ? begin->ns : 0), (number_t)(end ? end->ns : model->now_ns),
                      (number_t)(end ? end->peak : model->phase_peak),
                      model->one_thread ? "true" : "false");
    }
    ca_out_printf(out, "],\n");
}

void ca_format_json(ca_out_t *out, const ca_model_t *model)
{
    ca_frame_index_t index;
    if (ca_frame_index_fill(&index, model) != 0) {
        out->error = ENOMEM;
        ca_frame_index_free(&index);
        return;
    }
    write_process(out, model);
    write_as_text(out, model);
    write_pool(out, &model->pool);
    write_sections(out, model, &index);
    write_rules(out, model);
    write_marks(out, model);
    write_phases(out, model);
    ca_out_printf(out, "\"frames\": [");
    for (size_t i = 0; i < index.count; i++) {
        write_next(out, i);
        write_frame(out, index.frames[i]);
    }
    ca_out_printf(out, "],\n\"timeline\": [");
    for (size_t i = 0; i < model->point_count; i++) {
        const ca_point_t *point = &model->points[i];
        write_next(out, i);
        ca_out_printf(out, "{\"ns\": %llu, \"sequence\": %llu, \"live\": %llu, \"reserved\": %llu}",
                      (number_t)point->ns, (number_t)point->sequence, (number_t)point->live,
                      (number_t)point->reserved);
    }
    ca_out_printf(out, "],\n\"history_dropped\": %llu, \"history\": [",
                  (number_t)model->events_dropped);
    for (size_t i = 0; i < model->event_count; i++) {
        write_next(out, i);
        write_event(out, &model->events[i], &index);
    }
    ca_out_printf(out, "]}\n");
    ca_frame_index_free(&index);
}
