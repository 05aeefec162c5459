/* Signals by name, for options. */
#ifndef CA_CONFIG_SIGNALS_H
#define CA_CONFIG_SIGNALS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/text.h"

/* `USR1`, `SIGUSR1`, `10`, or `off` (0). -EINVAL: not understood; -ERANGE: no such signal, or one
 * that no program can or should handle: KILL, STOP, those of faults, the C library's own. */
int ca_signal_parse(const char *text, size_t length, int *number);

/* Whether it is there to end a process that does not handle it. USR1, USR2 and the real-time ones,
 * which would end it too, are sent to tell it something. */
bool ca_signal_ends(int number);

/* The name without SIG, or the number; `off` for 0. */
void ca_signal_print(int number, ca_text_t *out);

#endif
