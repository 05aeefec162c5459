/* Where the leak report goes: `leak_report` as a destination. */
#ifndef CA_SHIM_LEAK_REPORT_H
#define CA_SHIM_LEAK_REPORT_H

#include "config/out.h"

/* Keeps what the environment says of the destination. Once, with the configuration. */
void ca_leak_report_settle(void);

/* Writes the report where something leaked, through `out`. What cannot go to its destination goes
 * to stderr, whole. Makes no CUDA call; other threads may still run. */
void ca_leak_report_write(ca_out_t *out);

#endif
