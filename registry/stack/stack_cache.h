/* Call stacks that a thread has captured before, found again without unwinding: see stack_cache.c.
 */
#ifndef CA_REGISTRY_STACK_STACK_CACHE_H
#define CA_REGISTRY_STACK_STACK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Once is enough. Nothing is remembered without it. */
void ca_stack_cache_start(void);

/* What all threads remember is forgotten: ids, depths or code have changed. */
void ca_stack_cache_forget(void);

/* The id of this thread's stack, or 0 where it is not remembered. `caller` is what the function
 * that asks returns to, or another word for that: stacks that are kept by one are not found by the
 * other. `frame` is the address of what it saved of its caller's frame pointer, with the return
 * address above. It must be in place, here and below. Takes no lock. */
uint32_t ca_stack_cache_find(uintptr_t caller, uintptr_t frame);

/* As long as it is set aside, the call above finds nothing, and the last of these what that would.
 * So a process whose stacks have more than native frames costs the others no branch. */
void ca_stack_cache_set_aside(bool aside);
bool ca_stack_cache_is_aside(void);
uint32_t ca_stack_cache_find_aside(uintptr_t caller, uintptr_t frame);

/* Remembers that stack, if its unwinding can be proven and seems worth the time: it was captured by
 * the unwinder just now, with `frames` from the function's caller outwards, with nothing after them
 * where `whole`, and interned as `id`. Never under a lock: see ca_stack_capture. */
void ca_stack_cache_keep(uintptr_t caller, uintptr_t frame, void *const *frames, size_t count,
                         bool whole, uint32_t id);

/* Whether a stack is remembered only where it seems worth the time, which is how it begins; else
 * each one is. For tests. */
void ca_stack_cache_set_thrift(bool thrift);

/* How many captures of this thread were found here, and how many stacks were remembered. For
 * tests. */
size_t ca_stack_cache_hits(void);
size_t ca_stack_cache_kept(void);

/* Nothing is found or remembered, by any thread, until as many calls of the second; with `forget`
 * what was remembered before is forgotten too. */
void ca_stack_cache_suspend(void);
void ca_stack_cache_go_on(bool forget);

/* In the child of a fork, after everything else was forgotten. */
void ca_stack_cache_reset_after_fork(void);

#endif
