/* One report at a time: their buffers are static, since they are written on the stack of the
 * thread that calls exit, or of a signal handler. */
#ifndef CA_SHIM_ALLOC_REPORT_LOCK_H
#define CA_SHIM_ALLOC_REPORT_LOCK_H

#include <stdbool.h>

/* False where another thread has the lock for longer than `wait_ms`, and at once where this one has
 * it: a signal interrupted its report. May be called in a signal handler. */
bool ca_report_lock_take(unsigned wait_ms);
void ca_report_lock_drop(void);

void ca_report_lock_reset_after_fork(void);

#endif
