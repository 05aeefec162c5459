#include "registry/report/classes.h"

#include <stdbool.h>
#include <string.h>

#include "registry/stack/stack.h"

static bool same(const ca_class_t *class, uint64_t names, ca_named_t *const *frames, size_t count)
{
    if (class->names != names || class->frame_count != count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!ca_symbols_same(class->frames[i], frames[i]))
            return false;
    return true;
}

static ca_named_t *const *copy_of(ca_classes_t *classes, ca_named_t *const *frames, size_t count)
{
    ca_named_t **copy = ca_bump_take(classes->memory, count * sizeof(ca_named_t *));
    if (copy)
        memcpy(copy, frames, count * sizeof(ca_named_t *));
    return copy;
}

static ca_class_t *find(ca_classes_t *classes, ca_named_t *const *frames, size_t count)
{
    uint64_t names = count;
    for (size_t i = 0; i < count; i++) {
        names = (names ^ frames[i]->names) * 0x9e3779b97f4a7c15u;
        names ^= names >> 29;
    }
    ca_class_t **list = &classes->lists[names % CA_CLASS_LISTS];
    for (ca_class_t *class = *list; class; class = class->next)
        if (same(class, names, frames, count))
            return class;
    ca_class_t *class = ca_bump_take(classes->memory, sizeof *class);
    if (!class || !(class->frames = copy_of(classes, frames, count)))
        return &classes->none;
    class->frame_count = count;
    class->names = names;
    class->number = ++classes->count;
    class->next = *list;
    *list = class;
    return class;
}

ca_class_t *ca_classes_of(ca_classes_t *classes, uint32_t stack, ca_named_t *const **frames)
{
    uintptr_t addresses[CA_STACK_MAX];
    ca_named_t *named[CA_STACK_MAX];
    uint32_t epoch = ca_stack_epoch(stack);
    size_t count = ca_stack_frames(stack, addresses, CA_STACK_MAX);
    *frames = NULL;
    if (count == 0)
        return &classes->none;
    for (size_t i = 0; i < count; i++)
        named[i] = ca_symbols_frame(classes->symbols, addresses[i], epoch);
    ca_class_t *class = find(classes, named, count);
    if (class->frame_count != 0 && memcmp(class->frames, named, count * sizeof named[0]) != 0)
        *frames = copy_of(classes, named, count);
    if (!*frames)
        *frames = class->frames;
    return class;
}

ca_class_t *ca_classes_cut(ca_classes_t *classes, ca_class_t *class)
{
    if (classes->depth == 0 || class->frame_count <= classes->depth)
        return class;
    return find(classes, class->frames, classes->depth);
}
