/* What becomes of the process, for this folder; its state is shim/cuda/life_state.h. */
#ifndef CA_SHIM_LIFE_LIFE_H
#define CA_SHIM_LIFE_LIFE_H

#include <stdbool.h>

/* Whether this process has a report to write when it ends. Touches nothing, in whatever child. */
bool ca_life_reports(void);

/* A context is in use: from now on CUDA does not survive a fork. */
void ca_life_context_in_use(void);

#endif
