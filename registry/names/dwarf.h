/* Function names and source lines of one module, from its ELF and DWARF, through elfutils' libdw.
 *
 * libdw.so.1 is opened with dlopen at the first use. Only local files are ever read: the module
 * itself and separate debug files, by build id or by the name that the module gives, beside it. For
 * reports only: uses the C library's heap; not thread-safe. */
#ifndef CA_REGISTRY_NAMES_DWARF_H
#define CA_REGISTRY_NAMES_DWARF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "registry/names/frame.h"

typedef struct ca_dwarf ca_dwarf_t;

/* The module in file `path` as it is loaded at `bias` (0 for a program that is not PIE). When
 * `build_id` is given, a file with another one is refused: it was replaced after it was loaded.
 * NULL when that is so, when there is no libdw, or when the file cannot be read. */
ca_dwarf_t *ca_dwarf_open(const char *path, uintptr_t bias, const void *build_id,
                          size_t build_id_bytes);
/* Whether libdw was asked for and could not be opened. */
bool ca_dwarf_is_missing(void);
void ca_dwarf_close(ca_dwarf_t *dwarf);

/* The functions at `pc`, at most `max`, innermost inlined function first: names demangled, paths of
 * source files as the compiler noted them. Strings are copied to `memory`. Returns how many; 0
 * where nothing is known. */
size_t ca_dwarf_places(ca_dwarf_t *dwarf, uintptr_t pc, ca_place_t *places, size_t max,
                       ca_bump_t *memory);

#endif
