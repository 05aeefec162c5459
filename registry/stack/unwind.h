/* The unwinder: return addresses of the current thread, innermost first. On x86-64 our own
 * (unwind_words.h), elsewhere others' (unwind_others.h). */
#ifndef CA_REGISTRY_STACK_UNWIND_H
#define CA_REGISTRY_STACK_UNWIND_H

#include <stddef.h>
#include "registry/stack/unwind_words.h"

/* On x86-64 this opens nothing. Elsewhere it may call malloc and take the loader's lock: call it
 * once, with none of our locks held. */
void ca_unwind_start(void);

/* At most `max` return addresses of this thread, this function's own frame included. 0 before the
 * start, and when an unwinder itself (its malloc, its signal) brought us here again. `unwound` is
 * zero, or has a place for stack pointers, which are 0 where the unwinder does not tell. With none
 * of our locks held. */
size_t ca_unwind(void **frames, size_t max, ca_unwound_t *unwound);

/* "eh_frame" (our own), "libunwind", "backtrace" or "none". */
const char *ca_unwind_name(void);

/* In the child of a fork: no unwinding any more. A thread that does not exist here may have held
 * the unwinder's locks, and CUDA cannot be used in a child whose parent used it. A child whose
 * parent had not started the unwinder may start it. */
void ca_unwind_reset_after_fork(void);

#endif
