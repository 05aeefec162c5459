/* Call stacks: captured by unwind.h, interned, so that a record holds a 32-bit id. */
#ifndef CA_REGISTRY_STACK_STACK_H
#define CA_REGISTRY_STACK_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CA_STACK_NATIVE_MAX 64 /* frames */
#define CA_STACK_MAX 192       /* with the Python frames among them (registry/python/python.h) */

/* The address range of this shared object: frames at the inner end of a stack that lie in it are
 * left out. Without a call nothing is, which is right where this code is linked into a program. */
void ca_stack_set_own_range(uintptr_t low, uintptr_t high);

/* Call it once, early, with no lock held: see ca_unwind_start. `depth` is the most frames kept (1
 * to CA_STACK_NATIVE_MAX); Python frames do not count. */
void ca_stack_start(unsigned depth);

/* The current thread's stack, interned; frames of this shared object are left out. 0 when stacks
 * are off, nothing could be unwound, there is no memory, or we are inside the unwinder already.
 * Never call it with one of our locks held: see ca_unwind. */
uint32_t ca_stack_capture(void);

/* The id of a stack, innermost return address first; the same frames give the same id. 0 for no
 * frames and when there is no memory. Takes no lock for a stack that is known. */
uint32_t ca_stack_intern(const uintptr_t *frames, size_t count);

/* The same for a stack that was captured elsewhere, in `epoch`. */
uint32_t ca_stack_intern_of(const uintptr_t *frames, size_t count, uint32_t epoch);

/* Copies at most `max` frames, innermost first: return addresses, and words of Python frames.
 * Returns how many. */
size_t ca_stack_frames(uint32_t id, uintptr_t *frames, size_t max);

/* When it was first captured (registry/stack/modules.h), which says what its addresses were; 0
 * where that is not known. */
uint32_t ca_stack_epoch(uint32_t id);

/* See ca_unwind_name. */
const char *ca_stack_unwinder(void);

/* Called for each stack that is new from now on, under the lock of the stacks. NULL: nothing is. */
typedef void ca_stack_listener_t(uint32_t id, uint32_t epoch, const uintptr_t *frames,
                                 size_t count);
void ca_stack_listen(ca_stack_listener_t *listener);

/* How many different stacks there are. */
size_t ca_stack_count(void);

/* In the child of a fork: forgets all stacks. Where the parent had started, captures stay off. */
void ca_stack_reset_after_fork(void);

#endif
