/* Collects what a report says: its model (registry/report/model.h), with what the options, the
 * process and its pools add. */
#ifndef CA_SHIM_LIFE_REPORT_COLLECT_H
#define CA_SHIM_LIFE_REPORT_COLLECT_H

#include <stdbool.h>
#include "registry/report/model.h"

/* Reads the file of `suppressions`: a program may change its directory later. Once, with the
 * configuration. */
void ca_report_collect_configure(void);

/* Whether a report is wanted though nothing leaked: of the peak, or where it goes to a place that
 * was named. */
bool ca_report_even_empty(void);

/* `cause` is NULL for the end of the process, or what asked for a report meanwhile ("dump",
 * "signal"), which is then written though nothing is live; `rank` may be empty. Both must outlive
 * the model, which goes with ca_model_free. `quick`: see ca_model_options_t. NULL without host
 * memory. Makes no CUDA call. One at a time. */
ca_model_t *ca_report_collect(const char *cause, const char *rank, bool quick);

/* The same of what was read of another process. */
ca_model_t *ca_report_collect_of(const ca_origin_t *origin);

#endif
