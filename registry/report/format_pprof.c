/* A report as a profile that pprof reads (perftools.profiles.Profile, not compressed):
 *
 *   go tool pprof -http=: leaks.pprof
 *
 * Sample types, each with a count and bytes: inuse_objects and inuse_space are what leaked,
 * destroyed_objects and destroyed_space what contexts held that were destroyed, peak_objects and
 * peak_space what was live when most was; the latter two where the model has them. What is
 * suppressed is left out. Labels of a sample: `device` and `kind`, `thread` for each name of one,
 * and `thread` "others" where there may be more names. All are strings: a number 0 is no label for
 * pprof.
 *
 * Totals are the model's: groups that are not listed are one sample in a function "(not listed)",
 * allocations without a call stack lie in "(no call stack)". Each mapping begins where the module
 * was loaded; its limit is that of the last address that is known in it. The time is that of the
 * start, the duration until the report.
 *
 * What samples refer to gets its number when it first comes up, and is written behind them: the
 * fields of a message come in any order. So one pass over the model does, and what is kept is a
 * table of numbers for each sort of thing. */
#include "registry/report/formats.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "registry/stack/intern.h"
#include "registry/report/protobuf.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define PAGE 4096
#define DEVICES 256 /* that have a name */
#define COMMENTS 5
#define COMMENT_BYTES 320

/* The numbers of profile.proto's fields. */
enum { PROFILE_SAMPLE_TYPE = 1, PROFILE_SAMPLE, PROFILE_MAPPING, PROFILE_LOCATION };
enum { PROFILE_FUNCTION = 5, PROFILE_TEXT, PROFILE_TIME = 9, PROFILE_DURATION };
enum { PROFILE_COMMENT = 13, PROFILE_DEFAULT_TYPE };
enum { TYPE_NAME = 1, TYPE_UNIT };
enum { SAMPLE_LOCATIONS = 1, SAMPLE_VALUES, SAMPLE_LABEL };
enum { LABEL_KEY = 1, LABEL_TEXT };
enum { MAPPING_ID = 1, MAPPING_START, MAPPING_LIMIT, MAPPING_FILE = 5, MAPPING_BUILD_ID };
enum { MAPPING_HAS_FUNCTIONS = 7, MAPPING_HAS_FILES, MAPPING_HAS_LINES, MAPPING_HAS_INLINED };
enum { LOCATION_ID = 1, LOCATION_MAPPING, LOCATION_ADDRESS, LOCATION_LINE };
enum { LINE_FUNCTION = 1, LINE_NUMBER };
enum { FUNCTION_ID = 1, FUNCTION_NAME, FUNCTION_SYSTEM_NAME, FUNCTION_FILE };

/* What samples are of, and the names of their two values. */
static const struct {
    int section;
    const char *objects, *space;
} sorts[] = {
    {CA_SECTION_LEAKED, "inuse_objects", "inuse_space"},
    {CA_SECTION_DESTROYED, "destroyed_objects", "destroyed_space"},
    {CA_SECTION_PEAK, "peak_objects", "peak_space"},
};

typedef struct profile {
    const ca_model_t *model;
    ca_proto_t proto;
    ca_intern_t texts;     /* number 0 is "" */
    ca_intern_t functions; /* of the texts of name and file */
    ca_intern_t locations; /* of a frame, or of 0 and the text of a name */
    ca_intern_t mappings;  /* of the text of a path, and where it is loaded */
    char devices[DEVICES][4];
    char comments[COMMENTS][COMMENT_BYTES];
} profile_t;

/* What a message is about, for the function that writes it. */
typedef struct item {
    profile_t *profile;
    size_t number; /* in a table of the profile, or in `sorts` */
    const ca_model_group_t *group;
    uint64_t count, bytes;
    const char *key, *value;
    const ca_frame_t *frame;
    const ca_place_t *place;
} item_t;

static uint64_t text(profile_t *profile, const char *string)
{
    return ca_intern_text(&profile->texts, string);
}

static bool is_written(const profile_t *profile, size_t sort)
{
    return sort == 0 || profile->model->sections[sorts[sort].section].present;
}

/* --- mappings --------------------------------------------------------------------------------- */

static uint64_t call_address(const ca_frame_t *frame)
{
    return frame->address ? frame->address - 1 : 0;
}

/* The number of the mapping that a frame lies in, from 1; 0 for none. */
static uint64_t mapping_of(profile_t *profile, const ca_frame_t *frame)
{
    if (!frame->module)
        return 0;
    uint64_t call = call_address(frame);
    uint64_t start = frame->offset && frame->offset <= call ? call - frame->offset : 0;
    return ca_intern(&profile->mappings, text(profile, frame->module), start) + 1;
}

/* The frame of a location, or NULL where it has none. */
static const ca_frame_t *frame_at(const profile_t *profile, size_t location)
{
    return (const ca_frame_t *)(uintptr_t)profile->locations.keys[location].a;
}

static void fill_mapping(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    profile_t *profile = item->profile;
    const ca_intern_key_t *key = &profile->mappings.keys[item->number];
    uint64_t last = key->b;
    const char *build_id = "";
    bool functions = false, files = false, lines = false;
    for (size_t i = 0; i < profile->locations.count; i++) {
        const ca_frame_t *frame = frame_at(profile, i);
        if (!frame || mapping_of(profile, frame) != item->number + 1)
            continue;
        uint64_t call = call_address(frame);
        last = call > last ? call : last;
        build_id = frame->build_id ? frame->build_id : build_id;
        for (size_t j = 0; j < frame->place_count; j++) {
            functions |= frame->places[j].function != NULL;
            files |= frame->places[j].file != NULL;
            lines |= frame->places[j].line != 0;
        }
    }
    ca_proto_number(proto, MAPPING_ID, item->number + 1);
    ca_proto_number(proto, MAPPING_START, key->b);
    ca_proto_number(proto, MAPPING_LIMIT, (last / PAGE + 1) * PAGE);
    ca_proto_number(proto, MAPPING_FILE, key->a);
    ca_proto_number(proto, MAPPING_BUILD_ID, text(profile, build_id));
    ca_proto_number(proto, MAPPING_HAS_FUNCTIONS, functions);
    ca_proto_number(proto, MAPPING_HAS_FILES, files);
    ca_proto_number(proto, MAPPING_HAS_LINES, lines);
    ca_proto_number(proto, MAPPING_HAS_INLINED, lines); /* what tells lines tells those too */
}

static bool is_program(const profile_t *profile, const ca_frame_t *frame)
{
    const char *slash = frame->module ? strrchr(frame->module, '/') : NULL;
    return slash && profile->model->program && strcmp(slash + 1, profile->model->program) == 0;
}

/* The first mapping is the program's to readers of the format: it gives the profile its name. */
static void begin_with_program(profile_t *profile)
{
    for (size_t sort = 0; sort < COUNT(sorts); sort++) {
        const ca_model_section_t *section = &profile->model->sections[sorts[sort].section];
        for (size_t i = 0; i < (section->present ? section->group_count : 0); i++) {
            const ca_model_group_t *group = &section->groups[i];
            for (size_t j = group->frame_count; j-- > 0;)
                if (is_program(profile, group->frames[j])) {
                    mapping_of(profile, group->frames[j]);
                    return;
                }
        }
    }
}

/* --- functions and locations ------------------------------------------------------------------ */

static uint64_t function_of(profile_t *profile, const char *name, const char *file)
{
    uint64_t name_text = text(profile, name); /* first: numbers are in the order of calls */
    return ca_intern(&profile->functions, name_text, text(profile, file ? file : "")) + 1;
}

static void fill_function(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    const ca_intern_key_t *key = &item->profile->functions.keys[item->number];
    ca_proto_number(proto, FUNCTION_ID, item->number + 1);
    ca_proto_number(proto, FUNCTION_NAME, key->a);
    ca_proto_number(proto, FUNCTION_SYSTEM_NAME, key->a);
    ca_proto_number(proto, FUNCTION_FILE, key->b);
}

static void fill_line(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    const ca_place_t *place = item->place;
    const char *name = place->function ? place->function : item->frame->text;
    ca_proto_number(proto, LINE_FUNCTION, function_of(item->profile, name, place->file));
    ca_proto_number(proto, LINE_NUMBER, place->line);
}

static void fill_named_line(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    ca_proto_number(proto, LINE_FUNCTION,
                    ca_intern(&item->profile->functions, item->number, 0) + 1);
}

static void fill_location(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    profile_t *profile = item->profile;
    const ca_frame_t *frame = frame_at(profile, item->number);
    ca_proto_number(proto, LOCATION_ID, item->number + 1);
    if (!frame) {
        item_t line = {.profile = profile, .number = profile->locations.keys[item->number].b};
        ca_proto_message(proto, LOCATION_LINE, fill_named_line, &line);
        return;
    }
    ca_proto_number(proto, LOCATION_MAPPING, mapping_of(profile, frame));
    ca_proto_number(proto, LOCATION_ADDRESS, call_address(frame));
    for (size_t i = 0; i < frame->place_count; i++) {
        item_t line = {.profile = profile, .frame = frame, .place = &frame->places[i]};
        ca_proto_message(proto, LOCATION_LINE, fill_line, &line);
    }
    if (frame->place_count == 0 && !frame->module) { /* of others pprof tells the mapping */
        ca_place_t place = {frame->text, NULL, 0};
        item_t line = {.profile = profile, .frame = frame, .place = &place};
        ca_proto_message(proto, LOCATION_LINE, fill_line, &line);
    }
}

/* --- samples ---------------------------------------------------------------------------------- */

static void fill_locations(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    profile_t *profile = item->profile;
    const ca_model_group_t *group = item->group;
    for (size_t i = 0; group && i < group->frame_count; i++)
        ca_proto_packed(proto, ca_intern(&profile->locations, (uintptr_t)group->frames[i], 0) + 1);
    if (!group || group->frame_count == 0) {
        const char *name = group ? "(no call stack)" : "(not listed)";
        ca_proto_packed(proto, ca_intern(&profile->locations, 0, text(profile, name)) + 1);
    }
}

static void fill_values(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    for (size_t sort = 0; sort < COUNT(sorts); sort++) {
        if (!is_written(item->profile, sort))
            continue;
        ca_proto_packed(proto, sort == item->number ? item->count : 0);
        ca_proto_packed(proto, sort == item->number ? item->bytes : 0);
    }
}

static void fill_label(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    ca_proto_number(proto, LABEL_KEY, text(item->profile, item->key));
    ca_proto_number(proto, LABEL_TEXT, text(item->profile, item->value));
}

static void add_label(ca_proto_t *proto, profile_t *profile, const char *key, const char *value)
{
    item_t label = {.profile = profile, .key = key, .value = value};
    if (value && value[0] != '\0')
        ca_proto_message(proto, SAMPLE_LABEL, fill_label, &label);
}

static const char *device_name(profile_t *profile, unsigned device)
{
    ca_text_t name;
    if (device >= DEVICES)
        return "other";
    ca_text_init(&name, profile->devices[device], sizeof profile->devices[device]);
    ca_text_printf(&name, "%u", device);
    return profile->devices[device];
}

static void fill_sample(ca_proto_t *proto, void *arg)
{
    item_t *item = arg;
    profile_t *profile = item->profile;
    const ca_model_group_t *group = item->group;
    ca_proto_message(proto, SAMPLE_LOCATIONS, fill_locations, item);
    ca_proto_message(proto, SAMPLE_VALUES, fill_values, item);
    if (!group)
        return;
    add_label(proto, profile, "device", device_name(profile, group->device));
    add_label(proto, profile, "kind", ca_kind_name(group->kind));
    size_t named = 0;
    for (; named < CA_MODEL_NAMES && group->threads[named]; named++)
        add_label(proto, profile, "thread", group->threads[named]);
    if (named == CA_MODEL_NAMES && group->thread_count > named)
        add_label(proto, profile, "thread", "others");
}

static void write_samples(profile_t *profile, size_t sort)
{
    const ca_model_section_t *section = &profile->model->sections[sorts[sort].section];
    uint64_t count = 0, bytes = 0; /* of what is listed */
    if (!section->present)
        return;
    for (size_t i = 0; i < section->group_count; i++) {
        const ca_model_group_t *group = &section->groups[i];
        item_t item = {.profile = profile, .number = sort, .group = group};
        item.count = group->count;
        item.bytes = group->bytes;
        ca_proto_message(&profile->proto, PROFILE_SAMPLE, fill_sample, &item);
        count += group->count;
        bytes += group->bytes;
    }
    item_t rest = {.profile = profile, .number = sort};
    rest.count = section->count > count ? section->count - count : 0;
    rest.bytes = section->bytes > bytes ? section->bytes - bytes : 0;
    if (rest.count || rest.bytes)
        ca_proto_message(&profile->proto, PROFILE_SAMPLE, fill_sample, &rest);
}

/* --- the profile ------------------------------------------------------------------------------ */

static void fill_type(ca_proto_t *proto, void *arg)
{
    const item_t *item = arg;
    ca_proto_number(proto, TYPE_NAME, text(item->profile, item->key));
    ca_proto_number(proto, TYPE_UNIT, text(item->profile, item->value));
}

static void write_types(profile_t *profile)
{
    for (size_t sort = 0; sort < COUNT(sorts); sort++) {
        item_t objects = {.profile = profile, .key = sorts[sort].objects, .value = "count"};
        item_t space = {.profile = profile, .key = sorts[sort].space, .value = "bytes"};
        if (!is_written(profile, sort))
            continue;
        ca_proto_message(&profile->proto, PROFILE_SAMPLE_TYPE, fill_type, &objects);
        ca_proto_message(&profile->proto, PROFILE_SAMPLE_TYPE, fill_type, &space);
    }
    ca_proto_number(&profile->proto, PROFILE_DEFAULT_TYPE, text(profile, sorts[0].space));
}

static void write_all(profile_t *profile, unsigned field, const ca_intern_t *table,
                      ca_proto_fill_t *fill)
{
    for (size_t i = 0; i < table->count; i++) {
        item_t item = {.profile = profile, .number = i};
        ca_proto_message(&profile->proto, field, fill, &item);
    }
}

static void comment(profile_t *profile, size_t number, const char *title, const char *value)
{
    ca_text_t made;
    ca_text_init(&made, profile->comments[number], sizeof profile->comments[number]);
    if (value && value[0] != '\0')
        ca_text_printf(&made, "%s %s", title, value);
}

static void fill_comments(ca_proto_t *proto, void *arg)
{
    profile_t *profile = arg;
    for (size_t i = 0; i < COMMENTS; i++)
        if (profile->comments[i][0] != '\0')
            ca_proto_packed(proto, text(profile, profile->comments[i]));
}

static void write_comments(profile_t *profile)
{
    const ca_model_t *model = profile->model;
    char pid[24];
    ca_text_t number;
    ca_text_init(&number, pid, sizeof pid);
    ca_text_printf(&number, "%ld", model->pid);
    comment(profile, 0, "cachealloc", model->version);
    comment(profile, 1, "report at", model->cause);
    comment(profile, 2, "pid", pid);
    comment(profile, 3, "host", model->host);
    comment(profile, 4, "rank", model->rank);
    ca_proto_message(&profile->proto, PROFILE_COMMENT, fill_comments, profile);
}

static void write_profile(profile_t *profile)
{
    text(profile, "");
    begin_with_program(profile);
    write_types(profile);
    for (size_t sort = 0; sort < COUNT(sorts); sort++)
        write_samples(profile, sort);
    write_all(profile, PROFILE_LOCATION, &profile->locations, fill_location);
    write_all(profile, PROFILE_FUNCTION, &profile->functions, fill_function);
    write_all(profile, PROFILE_MAPPING, &profile->mappings, fill_mapping);
    ca_proto_number(&profile->proto, PROFILE_TIME, profile->model->start_s * 1000000000);
    ca_proto_number(&profile->proto, PROFILE_DURATION, profile->model->now_ns);
    write_comments(profile);
    for (size_t i = 0; i < profile->texts.count; i++)
        ca_proto_text(&profile->proto, PROFILE_TEXT,
                      (const char *)(uintptr_t)profile->texts.keys[i].a);
}

void ca_format_pprof(ca_out_t *out, const ca_model_t *model)
{
    profile_t *profile = ca_mem_map(sizeof *profile);
    if (!profile) {
        ca_out_fail(out, -ENOMEM);
        return;
    }
    profile->model = model;
    profile->proto.out = out;
    profile->texts.texts = true;
    write_profile(profile);
    if (profile->texts.failed || profile->functions.failed || profile->locations.failed ||
        profile->mappings.failed)
        ca_out_fail(out, -ENOMEM);
    ca_intern_free(&profile->texts);
    ca_intern_free(&profile->functions);
    ca_intern_free(&profile->locations);
    ca_intern_free(&profile->mappings);
    ca_mem_unmap(profile, sizeof *profile);
}
