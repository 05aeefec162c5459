/* Names for code addresses, by libdw (elfutils), which is opened with dlopen when the first name is
 * asked for and never looks anything up over the network; without it, the loader and the dynamic
 * symbol table give function and module+offset.
 *
 * For reports only: uses the heap, takes the loader's lock. Not thread-safe; one user at a time. */
#ifndef CA_REGISTRY_SYMBOLS_H
#define CA_REGISTRY_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

typedef struct ca_symbols ca_symbols_t;

/* NULL when there is no memory; ca_symbols_name then still works, with NULL. */
ca_symbols_t *ca_symbols_open(void);
void ca_symbols_close(ca_symbols_t *symbols);

/* Writes a readable name of the call at return address `address` (looked up at address - 1, the
 * call itself) to `text`, the best of: "load_tile at tiles.c:42", inlined functions before the one
 * they are inlined into ("inner at a.h:7 < outer at b.c:12"); "function (module+0x1234)";
 * "module+0x1234", an offset for addr2line; "0x7f0000001234" where no module is. */
void ca_symbols_name(ca_symbols_t *symbols, uintptr_t address, char *text, size_t bytes);

#endif
