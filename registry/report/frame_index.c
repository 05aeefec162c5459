#include "registry/report/frame_index.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"

#define LEAST_CAPACITY 1024

/* The bucket of `frame`, or the free one where it belongs. */
static size_t *probe(const ca_frame_index_t *index, const ca_frame_t *frame)
{
    size_t mask = index->capacity - 1;
    size_t at = ((uintptr_t)frame * 0x9e3779b97f4a7c15u >> 24) & mask;
    while (index->buckets[at] != 0 && index->frames[index->buckets[at] - 1] != frame)
        at = (at + 1) & mask;
    return &index->buckets[at];
}

static int grow(ca_frame_index_t *index)
{
    ca_frame_index_t bigger = {.count = index->count};
    bigger.capacity = index->capacity ? index->capacity * 2 : LEAST_CAPACITY;
    bigger.buckets = ca_mem_map(bigger.capacity * sizeof *bigger.buckets);
    bigger.frames = ca_mem_map(bigger.capacity * sizeof *bigger.frames);
    for (size_t i = 0; bigger.buckets && bigger.frames && i < index->count; i++) {
        bigger.frames[i] = index->frames[i];
        *probe(&bigger, index->frames[i]) = i + 1;
    }
    ca_frame_index_t old = *index;
    int result = bigger.buckets && bigger.frames ? 0 : -ENOMEM;
    *index = result == 0 ? bigger : old;
    ca_frame_index_free(result == 0 ? &old : &bigger);
    return result;
}

static int add_frames(ca_frame_index_t *index, const ca_frame_t *const *frames, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if ((index->count + 1) * 2 > index->capacity && grow(index) != 0)
            return -ENOMEM;
        size_t *bucket = probe(index, frames[i]);
        if (*bucket != 0)
            continue;
        index->frames[index->count++] = frames[i];
        *bucket = index->count;
    }
    return 0;
}

int ca_frame_index_fill(ca_frame_index_t *index, const ca_model_t *model)
{
    memset(index, 0, sizeof *index);
    for (unsigned s = 0; s < CA_SECTIONS; s++) {
        const ca_model_section_t *section = &model->sections[s];
        for (size_t i = 0; section->present && i < section->group_count; i++)
            if (add_frames(index, section->groups[i].frames, section->groups[i].frame_count) != 0)
                return -ENOMEM;
    }
    for (size_t i = 0; i < model->event_count; i++)
        if (add_frames(index, model->events[i].frames, model->events[i].frame_count) != 0)
            return -ENOMEM;
    return 0;
}

size_t ca_frame_index_of(const ca_frame_index_t *index, const ca_frame_t *frame)
{
    return *probe(index, frame) - 1;
}

void ca_frame_index_free(ca_frame_index_t *index)
{
    ca_mem_unmap(index->buckets, index->capacity * sizeof *index->buckets);
    ca_mem_unmap((void *)index->frames, index->capacity * sizeof *index->frames);
    memset(index, 0, sizeof *index);
}
