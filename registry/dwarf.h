/* Function names and source lines of one module, from its ELF and DWARF, through elfutils' libdw.
 *
 * libdw.so.1 is opened with dlopen at the first use. Only local files are ever read: the module
 * itself and separate debug files by build id. For reports only: uses the heap; not thread-safe. */
#ifndef CA_REGISTRY_DWARF_H
#define CA_REGISTRY_DWARF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ca_dwarf ca_dwarf_t;

/* The module in file `path` as it is loaded at `bias` (0 for a program that is not PIE). When
 * `build_id` is given, a file with another one is refused: it was replaced after it was loaded.
 * NULL when that is so, when there is no libdw, or when the file cannot be read. */
ca_dwarf_t *ca_dwarf_open(const char *path, uintptr_t bias, const void *build_id,
                          size_t build_id_bytes);
void ca_dwarf_close(ca_dwarf_t *dwarf);

/* Writes "function at file:line", innermost inlined function first, joined with " < ". False when
 * the line is not known; `text` then holds the function's name alone, or nothing. */
bool ca_dwarf_name(ca_dwarf_t *dwarf, uintptr_t pc, char *text, size_t bytes);

/* Copies `name` to `text`, demangled when it is a C++ name and the process has a demangler. */
void ca_dwarf_demangle(const char *name, char *text, size_t bytes);

#endif
