/* Numbers for the frames of a model, from 0 in the order in which they are first asked for: formats
 * list each frame once, and groups refer to it. Not thread-safe. All zero is an empty one. */
#ifndef CA_REGISTRY_REPORT_FRAME_INDEX_H
#define CA_REGISTRY_REPORT_FRAME_INDEX_H

#include <stddef.h>
#include "registry/report/model.h"

typedef struct ca_frame_index {
    const ca_frame_t **frames; /* by number */
    size_t count;
    size_t *buckets; /* hash table of numbers from 1; 0 is free */
    size_t capacity;
} ca_frame_index_t;

/* Numbers all frames of the sections that are present. 0 or -ENOMEM; free it in any case. */
int ca_frame_index_fill(ca_frame_index_t *index, const ca_model_t *model);

/* The number of a frame that has one. */
size_t ca_frame_index_of(const ca_frame_index_t *index, const ca_frame_t *frame);

void ca_frame_index_free(ca_frame_index_t *index);

#endif
