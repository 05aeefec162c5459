/* The unwinder: return addresses of the current thread, innermost first.
 *
 * On x86-64 our own (unwind_words.h). Where it does not know how to go on, and on other processors,
 * libunwind.so.8's, where it is installed, else glibc's backtrace: both called through pointers:
 * nothing here is linked, and libunwind stays RTLD_LOCAL. */
#ifndef CA_REGISTRY_UNWIND_H
#define CA_REGISTRY_UNWIND_H

#include <stdbool.h>
#include <stddef.h>

/* On x86-64 this opens nothing. Elsewhere it may call malloc and take the loader's lock: call it
 * once, with none of our locks held. */
void ca_unwind_start(void);

/* From now on, before anything is opened: as where libunwind is not installed. For tests. */
void ca_unwind_without_libunwind(bool without);

/* At most `max` return addresses of this thread, this function's own frame included. 0 before the
 * start, and when an unwinder itself (its malloc, its signal) brought us here again. Where it needs
 * another unwinder than our own, and a thread is opening that just now, it is waited for, 100 ms at
 * most and once. With none of our locks held: the first such need takes the loader's. */
size_t ca_unwind(void **frames, size_t max);

/* What libunwind remembers of code is forgotten, as far as it can be: see unload.h. */
void ca_unwind_forget(void);

/* The first that is asked: "eh_frame" (our own), "libunwind", "backtrace" or "none". */
const char *ca_unwind_name(void);

/* In the child of a fork: no unwinding any more. A thread that does not exist here may have held
 * the unwinder's locks, and CUDA cannot be used in a child whose parent used it. A child whose
 * parent had not started the unwinder may start it. */
void ca_unwind_reset_after_fork(void);

#endif
