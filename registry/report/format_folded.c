/* A report as folded stacks, a line for each group: names from the outermost function to the
 * innermost, joined with `;`, and the bytes:
 *
 *   device 0, pinned memory;main;start_tile;load_tile_halo 4096
 *
 * for flamegraph.pl, speedscope and what else reads them. What leaked, and, with `, context
 * destroyed` in the first name, what contexts held that were destroyed; the sum is the model's:
 * groups that are not listed are a line `(not listed)`, groups of no bytes are none. A `;` in a
 * name becomes `:`, a control character, and what is not UTF-8, \xNN. */
#include "registry/report/formats.h"

#include <string.h>

#include "base/text.h"

/* What reads them makes SVG or JSON of names: they must be UTF-8. */
static void write_part(ca_out_t *out, const char *name)
{
    size_t left = strlen(name);
    while (left > 0) {
        char shown[5];
        size_t consumed = ca_text_escape_next(name, left, shown);
        ca_out_bytes(out, shown[0] == ';' ? ":" : shown, strlen(shown));
        name += consumed;
        left -= consumed;
    }
}

static void write_name(ca_out_t *out, const char *name)
{
    ca_out_bytes(out, ";", 1);
    write_part(out, name);
}

/* A program has many functions of one name, in files of their own. */
static void write_python(ca_out_t *out, const ca_place_t *place)
{
    const char *slash = strrchr(place->file, '/');
    write_name(out, place->function);
    ca_out_bytes(out, " (", 2);
    write_part(out, slash ? slash + 1 : place->file);
    ca_out_bytes(out, ")", 1);
}

static void write_frame(ca_out_t *out, const ca_frame_t *frame)
{
    if (frame->python && frame->place_count != 0) {
        write_python(out, &frame->places[0]);
        return;
    }
    for (size_t i = frame->place_count; i-- > 0;) {
        const char *function = frame->places[i].function;
        write_name(out, function ? function : frame->text);
    }
    if (frame->place_count == 0)
        write_name(out, frame->text);
}

static void write_group(ca_out_t *out, const ca_model_group_t *group, const char *suffix)
{
    if (group->bytes == 0) /* flamegraph.pl takes such a box for its neighbour */
        return;
    ca_out_printf(out, "device %u, %s memory%s", group->device, ca_kind_name(group->kind), suffix);
    for (size_t i = group->frame_count; i-- > 0;)
        write_frame(out, group->frames[i]);
    if (group->frame_count == 0)
        write_name(out, "(no call stack)");
    ca_out_printf(out, " %llu\n", (unsigned long long)group->bytes);
}

static void write_section(ca_out_t *out, const ca_model_section_t *section, const char *suffix)
{
    uint64_t listed = 0;
    if (!section->present)
        return;
    for (size_t i = 0; i < section->group_count; i++) {
        write_group(out, &section->groups[i], suffix);
        listed += section->groups[i].bytes;
    }
    if (section->bytes > listed)
        ca_out_printf(out, "(not listed)%s %llu\n", suffix,
                      (unsigned long long)(section->bytes - listed));
}

void ca_format_folded(ca_out_t *out, const ca_model_t *model)
{
    write_section(out, &model->sections[CA_SECTION_LEAKED], "");
    write_section(out, &model->sections[CA_SECTION_DESTROYED], ", context destroyed");
}
