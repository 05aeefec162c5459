/* Entry points of the driver that no list here names: they may submit work. A look-up of one is
 * answered with a trampoline, which reports it to the pool when it is called (ca_order_end) and
 * goes on in the driver's function, whatever its parameters are. From any thread. */
#ifndef CA_SHIM_DRIVER_UNKNOWN_ENTRY_H
#define CA_SHIM_DRIVER_UNKNOWN_ENTRY_H

#define CA_UNKNOWN_MOST 64 /* trampolines; further functions end reuse in order at look-up */
/* Bytes of one trampoline's code, shim/driver/unknown_trampolines.S. */
#define CA_UNKNOWN_BYTES 16

#ifndef __ASSEMBLER__
/* The trampoline of the function at `address` that cuGetProcAddress found as `name`; `address`
 * itself where a list has that name, or reuse in order is not used. */
void *ca_unknown_entry(void *address, const char *name);
#endif

#endif
