#include "registry/report/moments.h"

#include <string.h>

#include "base/history.h"
#include "base/mem.h"
#include "registry/stack/stack.h"
#include "registry/table/live.h"
#include "registry/table/threads.h"
#include "registry/table/timeline.h"

static void copy_events(ca_model_t *model, ca_moments_t *moments)
{
    moments->space = ca_history_count();
    model->events_dropped = moments->space;
    if (moments->space == 0)
        return;
    moments->events = ca_mem_map(moments->space * sizeof *moments->events);
    if (moments->events)
        model->event_count =
            ca_history_copy(moments->events, moments->space, &model->events_dropped);
}

static void copy_marks(ca_model_t *model, ca_bump_t *memory)
{
    const ca_thread_counts_t *first = ca_thread_counts_first();
    model->one_thread = !first || !ca_thread_counts_next(first);
    model->phase_peak = ca_live_phase_peak();
    if (ca_marks_copy(NULL, &model->marks_dropped) == 0)
        return;
    ca_mark_t *marks = ca_bump_take(memory, CA_MARKS_MOST * sizeof *marks);
    size_t count = ca_marks_copy(marks, &model->marks_dropped);
    model->marks = marks;
    model->mark_count = marks ? count : 0;
    model->marks_dropped += count - model->mark_count;
}

static void copy_points(ca_model_t *model, ca_bump_t *memory)
{
    ca_point_t *points = ca_bump_take(memory, (CA_TIMELINE_MOST + 1) * sizeof *points);
    model->start_s = ca_timeline_start_s();
    model->point_count = points ? ca_timeline_copy(points) : 0;
    model->points = points;
    model->now_ns = points ? points[model->point_count - 1].ns : ca_timeline_now();
}

/* Points last: nothing is later than now. */
void ca_moments_copy(ca_model_t *model, ca_bump_t *memory, ca_moments_t *moments)
{
    copy_events(model, moments);
    copy_marks(model, memory);
    copy_points(model, memory);
}

/* --- events ----------------------------------------------------------------------------------- */

/* What an event's stack or thread leads to is looked up once. */
typedef struct lookups {
    ca_bump_t *memory;
    ca_classes_t *classes;
    struct {
        const ca_class_t *class;
        ca_named_t *const *frames;
    } * stacks; /* by id */
    size_t stack_count;
    uint32_t thread; /* the last one that was named */
    const char *name;
} lookups_t;

static void fill_stack(lookups_t *lookups, uint32_t stack, ca_model_event_t *event)
{
    if (stack == 0 || stack >= lookups->stack_count)
        return;
    if (!lookups->stacks[stack].class)
        lookups->stacks[stack].class =
            ca_classes_cut(lookups->classes,
                           ca_classes_of(lookups->classes, stack, &lookups->stacks[stack].frames));
    event->frame_count = lookups->stacks[stack].class->frame_count;
    event->frames = (const ca_frame_t *const *)lookups->stacks[stack].frames;
}

static const char *name_thread(lookups_t *lookups, uint32_t thread)
{
    char name[CA_THREAD_NAME];
    if (thread == 0)
        return NULL;
    if (thread != lookups->thread) {
        ca_threads_name(thread, name);
        if (!lookups->name || strcmp(name, lookups->name) != 0)
            lookups->name = ca_bump_text(lookups->memory, name, strlen(name));
        lookups->thread = thread;
    }
    return lookups->name;
}

static void make_event(lookups_t *lookups, const ca_event_t *event, ca_model_event_t *made)
{
    *made = (ca_model_event_t){
        .ns = event->ns,
        .event = (ca_event_kind_t)event->event,
        .device = event->device == CA_EVENT_NO_DEVICE ? -1 : event->device,
        .kind = (ca_kind_t)event->kind,
        .address = event->address,
        .bytes = event->bytes,
        .stream = event->stream,
        .thread = name_thread(lookups, event->thread),
    };
    fill_stack(lookups, event->stack, made);
}

void ca_moments_name_events(ca_model_t *model, ca_bump_t *memory, ca_classes_t *classes,
                            ca_moments_t *moments)
{
    lookups_t lookups = {.memory = memory, .classes = classes};
    if (!moments->events)
        return;
    lookups.stack_count = ca_stack_count() + 1;
    ca_model_event_t *made = ca_bump_take(memory, model->event_count * sizeof *made);
    lookups.stacks = ca_bump_take(memory, lookups.stack_count * sizeof *lookups.stacks);
    if (made && lookups.stacks) {
        model->events = made;
        for (size_t i = 0; i < model->event_count; i++)
            make_event(&lookups, &moments->events[i], &made[i]);
    } else {
        model->events_dropped += model->event_count;
        model->event_count = 0;
    }
    ca_mem_unmap(moments->events, moments->space * sizeof *moments->events);
}
