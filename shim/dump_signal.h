/* dump_signal:NAME: that signal makes the process write a leak report, by a helper thread that is
 * there only then. */
#ifndef CA_SHIM_DUMP_SIGNAL_H
#define CA_SHIM_DUMP_SIGNAL_H

/* A context came into service: installs the handler and starts the thread, once, if the option asks
 * for it. Under no lock of ours. */
void ca_dump_signal_start(void);

/* The child of a fork has neither. */
void ca_dump_signal_reset_after_fork(void);

#endif
