/* What is written when the process ends: the leak report and the table of statistics. */
#ifndef CA_SHIM_EXIT_REPORT_H
#define CA_SHIM_EXIT_REPORT_H

#include <stdbool.h>

/* Writes it once, whoever comes first. Makes no CUDA call; other threads may still run. `quick`:
 * with what a signal handler may use, and waiting for nobody who may be waiting for it. */
void ca_exit_report(bool quick);

/* There is nothing to write, whatever the options say. */
void ca_exit_report_leave_out(void);

/* Whether that found leaks, listed or not. */
bool ca_exit_leaked(void);

void ca_exit_report_reset_after_fork(void);

#endif
