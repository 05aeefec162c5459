/* What leaked as a memory snapshot of PyTorch's (a pickle, as torch.cuda.memory._dump_snapshot
 * writes): for https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py.
 *
 * A report knows no segments. Each device and kind of memory is shown as one, without a gap: its
 * blocks are the groups, as large as all of a group together, largest first, and its frames say the
 * kind. Addresses begin at 0 and are not the process's. The trace of a device has each group as one
 * allocation, at the time of its latest: a timeline of it never shows more than was there.
 *
 * With a history (base/history.h) the traces have its events instead, at their own addresses, and
 * there are no segments: what leaked is what a trace never frees.
 *
 * What contexts held that were destroyed is not in it, for a snapshot is of what is live, nor are
 * groups that are not listed; their bytes are in the dict "cachealloc", which is not PyTorch's:
 * version, cause, pid, program, host, rank (or None), bytes, not_listed_bytes, destroyed_bytes. */
#include "registry/report/formats.h"

#include <errno.h>

#include "base/mem.h"
#include "registry/names/sort.h"
#include "registry/report/pickle.h"

/* A group as a block. */
typedef struct block {
    const ca_model_group_t *group;
    uint64_t address;
} block_t;

typedef struct snapshot {
    ca_pickle_t pickle;
    const ca_model_t *model;
    block_t *blocks;
    size_t count;
} snapshot_t;

/* --- order ------------------------------------------------------------------------------------ */

static bool same_segment(const ca_model_group_t *a, const ca_model_group_t *b)
{
    return a->device == b->device && a->kind == b->kind;
}

/* Groups of one section: of those that are equal the one listed first has the lower address. */
static bool by_segment(const void *left, const void *right)
{
    const ca_model_group_t *a = ((const block_t *)left)->group;
    const ca_model_group_t *b = ((const block_t *)right)->group;
    if (a->device != b->device)
        return a->device < b->device;
    return a->kind != b->kind ? a->kind < b->kind : a < b;
}

static bool by_time(const void *left, const void *right)
{
    const ca_model_group_t *a = ((const block_t *)left)->group;
    const ca_model_group_t *b = ((const block_t *)right)->group;
    if (a->device != b->device)
        return a->device < b->device;
    return a->last != b->last ? a->last < b->last : a < b;
}

/* A block of no bytes would lie in no segment. */
static void collect(snapshot_t *snapshot, const ca_model_section_t *section)
{
    for (size_t i = 0; i < section->group_count; i++)
        if (section->groups[i].bytes != 0)
            snapshot->blocks[snapshot->count++].group = &section->groups[i];
    ca_sort(snapshot->blocks, snapshot->count, sizeof *snapshot->blocks, by_segment);
    uint64_t address = 0;
    for (size_t i = 0; i < snapshot->count; i++) {
        snapshot->blocks[i].address = address;
        address += snapshot->blocks[i].group->bytes;
    }
}

/* --- frames ----------------------------------------------------------------------------------- */

/* memory_viz takes names and files to be strings. */
static void push_frame(ca_pickle_t *pickle, const char *name, const char *file, unsigned line)
{
    ca_pickle_dict(pickle);
    ca_pickle_set_text(pickle, "name", name);
    ca_pickle_set_text(pickle, "filename", file ? file : "");
    ca_pickle_set_number(pickle, "line", line);
}

static void append_frame(ca_pickle_t *pickle, const ca_frame_t *frame)
{
    for (size_t i = 0; i < frame->place_count; i++) {
        const ca_place_t *place = &frame->places[i];
        if (!ca_pickle_again(pickle, place)) {
            push_frame(pickle, place->function ? place->function : frame->text,
                       place->file ? place->file : frame->module, place->line);
            ca_pickle_keep(pickle, place);
        }
        ca_pickle_append(pickle);
    }
    if (frame->place_count == 0) {
        push_frame(pickle, frame->text, frame->module, 0);
        ca_pickle_append(pickle);
    }
}

/* Without a frame memory_viz says that the block is older than the recording. */
static void set_frames(ca_pickle_t *pickle, const void *identity, const ca_frame_t *const *frames,
                       size_t count)
{
    static const char none; /* for all that have no stack */
    identity = identity ? identity : &none;
    ca_pickle_text(pickle, "frames");
    if (!ca_pickle_again(pickle, identity)) {
        ca_pickle_list(pickle);
        for (size_t i = 0; i < count; i++)
            append_frame(pickle, frames[i]);
        if (count == 0) {
            push_frame(pickle, "(no call stack)", NULL, 0);
            ca_pickle_append(pickle);
        }
        ca_pickle_keep(pickle, identity);
    }
    ca_pickle_set(pickle);
}

static void set_group_frames(ca_pickle_t *pickle, const ca_model_group_t *group)
{
    set_frames(pickle, group, group->frames, group->frame_count);
}

/* --- segments --------------------------------------------------------------------------------- */

static void append_block(ca_pickle_t *pickle, const block_t *block)
{
    ca_pickle_dict(pickle);
    ca_pickle_set_number(pickle, "address", block->address);
    ca_pickle_set_number(pickle, "size", block->group->bytes);
    ca_pickle_set_number(pickle, "requested_size", block->group->bytes);
    ca_pickle_set_text(pickle, "state", "active_allocated");
    set_group_frames(pickle, block->group);
    ca_pickle_append(pickle);
}

static void set_kind_frame(ca_pickle_t *pickle, ca_kind_t kind)
{
    ca_pickle_text(pickle, "frames");
    ca_pickle_list(pickle);
    push_frame(pickle, ca_kind_name(kind), "kind of memory", 0);
    ca_pickle_append(pickle);
    ca_pickle_set(pickle);
}

static void set_pool_id(ca_pickle_t *pickle)
{
    ca_pickle_text(pickle, "segment_pool_id");
    ca_pickle_number(pickle, 0);
    ca_pickle_number(pickle, 0);
    ca_pickle_pair(pickle);
    ca_pickle_set(pickle);
    ca_pickle_text(pickle, "is_expandable");
    ca_pickle_bool(pickle, false);
    ca_pickle_set(pickle);
}

static void append_segment(ca_pickle_t *pickle, const block_t *blocks, size_t count)
{
    const ca_model_group_t *group = blocks[0].group;
    uint64_t bytes = blocks[count - 1].address + blocks[count - 1].group->bytes - blocks[0].address;
    ca_pickle_dict(pickle);
    ca_pickle_set_number(pickle, "device", group->device);
    ca_pickle_set_number(pickle, "address", blocks[0].address);
    ca_pickle_set_number(pickle, "total_size", bytes);
    ca_pickle_set_number(pickle, "allocated_size", bytes);
    ca_pickle_set_number(pickle, "active_size", bytes);
    ca_pickle_set_number(pickle, "requested_size", bytes);
    ca_pickle_set_number(pickle, "stream", 0);
    ca_pickle_set_text(pickle, "segment_type", "large");
    set_pool_id(pickle);
    set_kind_frame(pickle, group->kind);
    ca_pickle_text(pickle, "blocks");
    ca_pickle_list(pickle);
    for (size_t i = 0; i < count; i++)
        append_block(pickle, &blocks[i]);
    ca_pickle_set(pickle);
    ca_pickle_append(pickle);
}

static void set_segments(snapshot_t *snapshot)
{
    const block_t *blocks = snapshot->blocks;
    ca_pickle_text(&snapshot->pickle, "segments");
    ca_pickle_list(&snapshot->pickle);
    for (size_t i = 0, end; i < snapshot->count; i = end) {
        for (end = i + 1; end < snapshot->count; end++)
            if (!same_segment(blocks[i].group, blocks[end].group))
                break;
        append_segment(&snapshot->pickle, &blocks[i], end - i);
    }
    ca_pickle_set(&snapshot->pickle);
}

/* --- traces ----------------------------------------------------------------------------------- */

static void append_event(snapshot_t *snapshot, const block_t *block)
{
    ca_pickle_t *pickle = &snapshot->pickle;
    const ca_model_group_t *group = block->group;
    ca_pickle_dict(pickle);
    ca_pickle_set_text(pickle, "action", "alloc");
    ca_pickle_set_number(pickle, "addr", block->address);
    ca_pickle_set_number(pickle, "size", group->bytes);
    ca_pickle_set_number(pickle, "stream", group->stream);
    ca_pickle_set_number(pickle, "time_us",
                         snapshot->model->start_s * 1000000 + group->last_ns / 1000);
    set_group_frames(pickle, group);
    ca_pickle_append(pickle);
}

/* What the viewer calls an event, or NULL where it knows none such. A free is both requested and
 * complete: when the pool may use the memory again is not known of all. */
static const char *action_of(ca_event_kind_t event)
{
    static const char *const actions[CA_EVENTS] = {
        [CA_EVENT_ALLOC] = "alloc",
        [CA_EVENT_FREE] = "free_requested",
        [CA_EVENT_SEGMENT] = "segment_alloc",
        [CA_EVENT_TRIM] = "segment_free",
        [CA_EVENT_OOM] = "oom",
    };
    return actions[event];
}

static void append_past(snapshot_t *snapshot, const ca_model_event_t *event, const char *action)
{
    ca_pickle_t *pickle = &snapshot->pickle;
    ca_pickle_dict(pickle);
    ca_pickle_set_text(pickle, "action", action);
    ca_pickle_set_number(pickle, event->event == CA_EVENT_OOM ? "device_free" : "addr",
                         event->address);
    ca_pickle_set_number(pickle, "size", event->bytes);
    ca_pickle_set_number(pickle, "stream", event->stream);
    ca_pickle_set_number(pickle, "time_us", snapshot->model->start_s * 1000000 + event->ns / 1000);
    set_frames(pickle, event->frames, event->frames, event->frame_count);
    ca_pickle_append(pickle);
}

static void append_history(snapshot_t *snapshot, int device)
{
    const ca_model_t *model = snapshot->model;
    ca_pickle_list(&snapshot->pickle);
    for (size_t i = 0; i < model->event_count; i++) {
        const ca_model_event_t *event = &model->events[i];
        const char *action = action_of(event->event);
        if (event->device != device || !action)
            continue;
        append_past(snapshot, event, action);
        if (event->event == CA_EVENT_FREE)
            append_past(snapshot, event, "free_completed");
    }
    ca_pickle_append(&snapshot->pickle);
}

/* A list for each device up to the last that has something: they are found by its ordinal. */
static void set_history(snapshot_t *snapshot)
{
    const ca_model_t *model = snapshot->model;
    int last = 0;
    for (size_t i = 0; i < model->event_count; i++)
        last = model->events[i].device > last ? model->events[i].device : last;
    ca_pickle_text(&snapshot->pickle, "device_traces");
    ca_pickle_list(&snapshot->pickle);
    for (int device = 0; device <= last; device++)
        append_history(snapshot, device);
    ca_pickle_set(&snapshot->pickle);
}

/* The same of groups. */
static void set_traces(snapshot_t *snapshot)
{
    ca_pickle_t *pickle = &snapshot->pickle;
    size_t next = 0;
    ca_sort(snapshot->blocks, snapshot->count, sizeof *snapshot->blocks, by_time);
    ca_pickle_text(pickle, "device_traces");
    ca_pickle_list(pickle);
    for (unsigned device = 0; device == 0 || next < snapshot->count; device++) {
        ca_pickle_list(pickle);
        for (; next < snapshot->count && snapshot->blocks[next].group->device == device; next++)
            append_event(snapshot, &snapshot->blocks[next]);
        ca_pickle_append(pickle);
    }
    ca_pickle_set(pickle);
}

/* --- the snapshot ----------------------------------------------------------------------------- */

static uint64_t not_listed(const ca_model_section_t *section)
{
    uint64_t listed = 0;
    for (size_t i = 0; i < section->group_count; i++)
        listed += section->groups[i].bytes;
    return section->bytes > listed ? section->bytes - listed : 0;
}

static void set_about(snapshot_t *snapshot)
{
    ca_pickle_t *pickle = &snapshot->pickle;
    const ca_model_t *model = snapshot->model;
    const ca_model_section_t *leaked = &model->sections[CA_SECTION_LEAKED];
    const ca_model_section_t *destroyed = &model->sections[CA_SECTION_DESTROYED];
    ca_pickle_text(pickle, "cachealloc");
    ca_pickle_dict(pickle);
    ca_pickle_set_text(pickle, "version", model->version);
    ca_pickle_set_text(pickle, "cause", model->cause);
    ca_pickle_set_number(pickle, "pid", (uint64_t)model->pid);
    ca_pickle_set_text(pickle, "program", model->program);
    ca_pickle_set_text(pickle, "host", model->host);
    ca_pickle_text(pickle, "rank");
    if (model->rank && model->rank[0] != '\0')
        ca_pickle_text(pickle, model->rank);
    else
        ca_pickle_none(pickle);
    ca_pickle_set(pickle);
    ca_pickle_set_number(pickle, "bytes", leaked->present ? leaked->bytes : 0);
    ca_pickle_set_number(pickle, "not_listed_bytes", leaked->present ? not_listed(leaked) : 0);
    ca_pickle_set_number(pickle, "destroyed_bytes", destroyed->present ? destroyed->bytes : 0);
    ca_pickle_set(pickle);
}

static void write_snapshot(snapshot_t *snapshot, ca_out_t *out)
{
    ca_pickle_begin(&snapshot->pickle, out);
    ca_pickle_dict(&snapshot->pickle);
    set_segments(snapshot);
    if (snapshot->model->event_count != 0)
        set_history(snapshot);
    else
        set_traces(snapshot);
    ca_pickle_text(&snapshot->pickle, "allocator_settings");
    ca_pickle_dict(&snapshot->pickle);
    ca_pickle_set(&snapshot->pickle);
    ca_pickle_text(&snapshot->pickle, "external_annotations");
    ca_pickle_list(&snapshot->pickle);
    ca_pickle_set(&snapshot->pickle);
    set_about(snapshot);
    ca_pickle_end(&snapshot->pickle);
}

void ca_format_pytorch(ca_out_t *out, const ca_model_t *model)
{
    const ca_model_section_t *section = &model->sections[CA_SECTION_LEAKED];
    snapshot_t snapshot = {.model = model};
    bool groups = section->present && model->event_count == 0;
    size_t bytes = groups ? section->group_count * sizeof *snapshot.blocks : 0;
    if (bytes != 0) {
        snapshot.blocks = ca_mem_map(bytes);
        if (!snapshot.blocks) {
            ca_out_fail(out, -ENOMEM);
            return;
        }
        collect(&snapshot, section);
    }
    write_snapshot(&snapshot, out);
    if (bytes != 0)
        ca_mem_unmap(snapshot.blocks, bytes);
}
