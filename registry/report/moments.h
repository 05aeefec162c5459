/* What a model says of time: the points of the timeline, and the last events with their stacks. */
#ifndef CA_REGISTRY_REPORT_MOMENTS_H
#define CA_REGISTRY_REPORT_MOMENTS_H

#include "base/history.h"
#include "base/mem.h"
#include "registry/report/classes.h"
#include "registry/report/model.h"

/* The last events as they were copied. */
typedef struct ca_moments {
    ca_event_t *events;
    size_t space;
} ca_moments_t;

/* Copies what there is at this moment, before the rest of the report takes its time: start,
 * timeline and marks of a new model, and the last events, for the next. Without memory there is no
 * timeline, no marks and no events. */
void ca_moments_copy(ca_model_t *model, ca_bump_t *memory, ca_moments_t *moments);

/* Gives events the names of their stacks and threads, and the copy back. */
void ca_moments_name_events(ca_model_t *model, ca_bump_t *memory, ca_classes_t *classes,
                            ca_moments_t *moments);

#endif
