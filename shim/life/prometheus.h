/* The statistics of the process in Prometheus's text format, for node_exporter and `cachealloc
 * top`. Names follow its conventions: base units, _bytes, _total for what only rises. */
#ifndef CA_SHIM_LIFE_PROMETHEUS_H
#define CA_SHIM_LIFE_PROMETHEUS_H

#include "base/out.h"

/* Each line has `labels` (`pid="1",program="app"`), then its own. Where a pool or the registry
 * stays in use its metrics are left out. Makes no CUDA call; one at a time. */
void ca_prometheus_write(ca_out_t *out, const char *labels);

/* In the child of a fork. */
void ca_prometheus_reset_after_fork(void);

#endif
