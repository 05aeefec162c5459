/* The unwinder: return addresses of the current thread, innermost first.
 *
 * libunwind.so.8's unw_backtrace where it is installed, else our own (unwind_words.h), with glibc's
 * backtrace where that gives up. Those of others are called through pointers: nothing here is
 * linked, and libunwind stays RTLD_LOCAL. */
#ifndef CA_REGISTRY_UNWIND_H
#define CA_REGISTRY_UNWIND_H

#include <stdbool.h>
#include <stddef.h>

/* Finds the unwinder and makes its first, slow call. May call malloc and take the loader's lock:
 * call it once, with none of our locks held. */
void ca_unwind_start(void);

/* From the next ca_unwind_start on: our own even where libunwind is installed. For tests. */
void ca_unwind_set_own(bool own);

/* At most `max` return addresses of this thread, this function's own frame included. 0 when there
 * is no unwinder, or when the unwinder itself (its malloc, its signal) brought us here again. While
 * another thread opens the unwinder it is waited for, 100 ms at most. */
size_t ca_unwind(void **frames, size_t max);

/* What libunwind remembers of code is forgotten, as far as it can be: see unload.h. */
void ca_unwind_forget(void);

/* "libunwind", "eh_frame" (our own), "backtrace" or "none". */
const char *ca_unwind_name(void);

/* In the child of a fork: no unwinding any more. A thread that does not exist here may have held
 * the unwinder's locks, and CUDA cannot be used in a child whose parent used it. A child whose
 * parent had not started the unwinder may start it. */
void ca_unwind_reset_after_fork(void);

#endif
