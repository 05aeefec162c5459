/* What is written when the process ends: the leak report and the table of statistics. */
#ifndef CA_SHIM_EXIT_REPORT_H
#define CA_SHIM_EXIT_REPORT_H

/* Makes no CUDA call; other threads may still run. */
void ca_exit_report(void);

#endif
