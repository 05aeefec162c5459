/* Entry points of the driver that nobody here knows: they may submit work. Looked up, they are
 * answered with a trampoline, which says so to the pool when it is called (ca_order_end) and goes
 * on in the driver's function, whatever its parameters are. */
#ifndef CA_SHIM_HOOKS_UNKNOWN_ENTRY_H
#define CA_SHIM_HOOKS_UNKNOWN_ENTRY_H

#define CA_UNKNOWN_MOST 64 /* trampolines; with more such functions their look-up says it */
/* Of one trampoline's code, shim/hooks/unknown_trampolines.S. */
#define CA_UNKNOWN_BYTES 16

#ifndef __ASSEMBLER__
/* The trampoline of the function at `address` that cuGetProcAddress found as `name`; `address`
 * itself where it is known by that name, or nobody looks at submissions. */
void *ca_unknown_entry(void *address, const char *name);
#endif

#endif
