/* What others may know of this process while it runs: `metrics:PATH`, a file for node_exporter, and
 * `stats_page:true`, a page for `cachealloc top`, kept up to date by one helper thread that is
 * started with the first context. */
#ifndef CA_SHIM_LIFE_METRICS_H
#define CA_SHIM_LIFE_METRICS_H

/* With the configuration. */
void ca_metrics_configure(void);

/* With a context; does nothing where neither is asked for, and after the first time. */
void ca_metrics_start(void);

/* At the end of the process: the files go. May be called in a signal handler. */
void ca_metrics_end(void);

/* The child has files of its own, if any. */
void ca_metrics_reset_after_fork(void);

#endif
