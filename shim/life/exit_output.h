/* What is written when the process ends: the leak report and the table of statistics. */
#ifndef CA_SHIM_LIFE_EXIT_OUTPUT_H
#define CA_SHIM_LIFE_EXIT_OUTPUT_H

#include <stdbool.h>

/* Writes it once, for the first call. Makes no CUDA call; other threads may still run. `quick`:
 * with what a signal handler may use, and without a wait for a thread that may wait for this one.
 * Where a signal is ending the process it does not return. */
void ca_exit_output(bool quick);

/* The same by the thread that a signal has end the process: the leak report is of what is live, as
 * the signal's is where it ends nothing. */
void ca_exit_output_of_signal(void);

/* There is nothing to write, whatever the options say. */
void ca_exit_output_leave_out(void);

/* Whether that found leaks, listed or not. */
bool ca_exit_output_leaked(void);

void ca_exit_output_reset_after_fork(void);

#endif
