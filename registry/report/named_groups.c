#include "registry/report/named_groups.h"

#include <errno.h>
#include <string.h>

#include "registry/names/sort.h"

_Static_assert(sizeof(ca_named_group_t) <= CA_SORT_MOST && sizeof(ca_named_part_t) <= CA_SORT_MOST,
               "can be sorted");

static bool by_bytes(const void *a, const void *b)
{
    const ca_named_part_t *x = a, *y = b;
    return x->group.bytes > y->group.bytes;
}

static bool by_stack(const void *a, const void *b)
{
    const ca_named_part_t *x = a, *y = b;
    return x->group.stack < y->group.stack;
}

/* Parts of one group, and in it of one thread, come together. */
static bool by_group(const void *a, const void *b)
{
    const ca_named_part_t *x = a, *y = b;
    if (x->class->number != y->class->number)
        return x->class->number < y->class->number;
    if (x->group.device != y->group.device)
        return x->group.device < y->group.device;
    if (x->group.kind != y->group.kind)
        return x->group.kind < y->group.kind;
    return x->group.thread < y->group.thread;
}

bool ca_named_by_age(const void *a, const void *b)
{
    const ca_named_part_t *x = a, *y = b;
    return x->group.first < y->group.first;
}

bool ca_named_by_device(const void *a, const void *b)
{
    const ca_model_group_t *x = &((const ca_named_group_t *)a)->group,
                           *y = &((const ca_named_group_t *)b)->group;
    return x->device != y->device ? x->device < y->device : x->kind < y->kind;
}

/* Among equals the order is by names, which two runs of a program share; addresses and the ids of
 * stacks are not. */
bool ca_named_is_larger(const void *a, const void *b)
{
    const ca_named_group_t *v = a, *w = b;
    const ca_model_group_t *x = &v->group, *y = &w->group;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes;
    if (x->count != y->count)
        return x->count > y->count;
    if (v->class->names != w->class->names)
        return v->class->names < w->class->names;
    return ca_named_by_device(a, b) || (!ca_named_by_device(b, a) && x->first < y->first);
}

static bool in_one_group(const ca_named_part_t *a, const ca_named_part_t *b)
{
    return a->class == b->class && a->group.device == b->group.device &&
           a->group.kind == b->group.kind;
}

static void add_part(ca_named_group_t *whole, const ca_group_t *part, uint64_t *stream_at)
{
    ca_model_group_t *group = &whole->group;
    group->count += part->count;
    group->bytes += part->bytes;
    group->temporaries += part->temporaries;
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
static void make_group(ca_named_group_t *whole, ca_named_part_t *parts, size_t left)
{
    uint64_t stream_at = 0;
    const ca_class_t *class = parts->class;
    *whole = (ca_named_group_t){.class = class, .parts = parts};
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
static int join(ca_bump_t *memory, ca_named_part_t *parts, size_t count, ca_named_groups_t *making)
{
    ca_sort(parts, count, sizeof *parts, by_group);
    for (size_t i = 0; i < count; i++)
        making->count += i == 0 || !in_one_group(&parts[i - 1], &parts[i]);
    making->groups = ca_bump_take(memory, making->count * sizeof(ca_named_group_t));
    if (!making->groups) {
        making->count = 0;
        return -ENOMEM;
    }
    size_t at = 0;
    for (size_t i = 0; i < making->count; at += making->groups[i++].part_count)
        make_group(&making->groups[i], parts + at, count - at);
    return 0;
}

int ca_named_groups_make(ca_bump_t *memory, ca_classes_t *classes, bool quick,
                         const ca_groups_t *counted, ca_named_groups_t *making)
{
    memset(making, 0, sizeof *making);
    if (counted->count == 0)
        return 0;
    ca_named_part_t *parts = ca_bump_take(memory, counted->count * sizeof *parts);
    if (!parts)
        return -ENOMEM;
    for (size_t i = 0; i < counted->count; i++)
        parts[i].group = counted->entries[i];
    /* The largest are named first where there may be no time for all. */
    if (quick)
        ca_sort(parts, counted->count, sizeof *parts, by_bytes);
    for (size_t i = 0; quick && i < counted->count; i++)
        ca_classes_of(classes, parts[i].group.stack, &parts[i].frames);
    ca_sort(parts, counted->count, sizeof *parts, by_stack);
    for (size_t i = 0; i < counted->count; i++) {
        bool again = i > 0 && parts[i].group.stack == parts[i - 1].group.stack;
        if (again) {
            parts[i].class = parts[i - 1].class;
            parts[i].frames = parts[i - 1].frames;
        } else {
            parts[i].class = ca_classes_of(classes, parts[i].group.stack, &parts[i].frames);
        }
    }
    return join(memory, parts, counted->count, making);
}

void ca_named_groups_cut(ca_bump_t *memory, ca_classes_t *classes, ca_named_groups_t *making)
{
    ca_named_groups_t joined = {.count = 0};
    size_t count = 0;
    for (size_t i = 0; i < making->count; i++)
        count += making->groups[i].part_count;
    ca_named_part_t *parts = classes->depth ? ca_bump_take(memory, count * sizeof *parts) : NULL;
    if (!parts)
        return;
    ca_named_part_t *part = parts;
    for (size_t i = 0; i < making->count; i++)
        for (size_t j = 0; j < making->groups[i].part_count; j++, part++) {
            *part = making->groups[i].parts[j];
            part->class = ca_classes_cut(classes, part->class);
        }
    if (join(memory, parts, count, &joined) == 0)
        *making = joined;
}

const ca_named_group_t *ca_named_groups_find(const ca_named_groups_t *made,
                                             const ca_named_group_t *like)
{
    size_t low = 0, high = made->count;
    while (low < high) { /* they are as join left them: by_group */
        size_t middle = low + (high - low) / 2;
        const ca_named_group_t *group = &made->groups[middle];
        if (in_one_group(group->parts, like->parts))
            return group;
        if (by_group(group->parts, like->parts))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
