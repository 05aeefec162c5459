/* C++ and Rust names as they stand in the source. */
#ifndef CA_REGISTRY_NAMES_DEMANGLE_H
#define CA_REGISTRY_NAMES_DEMANGLE_H

#include <stdbool.h>

#include "base/mem.h"

/* A copy of `name` in `memory`, demangled when it is a Rust name, or a C++ name and a demangler is
 * at hand: the process's, or that of a C++ run-time that is opened for it. NULL without memory. For
 * reports only: uses the C library's heap and the loader; not thread-safe. */
const char *ca_demangle(const char *name, ca_bump_t *memory);
/* The same of Rust names alone, which needs neither malloc nor the loader. */
const char *ca_demangle_quick(const char *name, ca_bump_t *memory);

/* Whether it is one that a compiler made of more than a function's own name. */
bool ca_demangle_is_needed(const char *name);

#endif
