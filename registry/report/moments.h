/* What a model says of time: the points of the timeline, and the last events with their stacks. */
#ifndef CA_REGISTRY_REPORT_MOMENTS_H
#define CA_REGISTRY_REPORT_MOMENTS_H

#include "base/mem.h"
#include "registry/report/classes.h"
#include "registry/report/model.h"

/* Start and timeline of a new model. Without memory there is no timeline. */
void ca_moments_points(ca_model_t *model, ca_bump_t *memory);

/* The ring of the last events. Without memory there are none, and all count as dropped. */
void ca_moments_events(ca_model_t *model, ca_bump_t *memory, ca_classes_t *classes);

#endif
