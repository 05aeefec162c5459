/* dump_signal:NAME: that signal makes the process write a leak report, by a helper thread that is
 * there only then. One that is there to end the process, TERM for instance, then ends it. */
#ifndef CA_SHIM_LIFE_DUMP_SIGNAL_H
#define CA_SHIM_LIFE_DUMP_SIGNAL_H

/* A context came into service: installs the handler and starts the thread, once, if the option asks
 * for it. Under no lock of ours. */
void ca_dump_signal_start(void);

/* Where the signal is ending the process, the caller, which ends it too, does not return: it waits
 * for that, no longer than `wait_ms`, and then has it end at once. Otherwise does nothing. May be
 * called in a signal handler. */
void ca_dump_signal_end(unsigned wait_ms);

/* The child of a fork has neither. */
void ca_dump_signal_reset_after_fork(void);

#endif
