/* C++ and Rust names as they stand in the source. */
#ifndef CA_REGISTRY_NAMES_DEMANGLE_H
#define CA_REGISTRY_NAMES_DEMANGLE_H

#include <stdbool.h>

#include "base/mem.h"

/* A copy of `name` in `memory`, demangled when it is a name of Rust or of C++: for the latter by
 * the process's demangler, that of a C++ run-time that is opened for it, or demangle_cxx.h. NULL
 * without memory. For reports only: uses the C library's heap and the loader; not thread-safe. */
const char *ca_demangle(const char *name, ca_bump_t *memory);
/* The same by demangle_cxx.h alone, which needs neither malloc nor the loader. */
const char *ca_demangle_quick(const char *name, ca_bump_t *memory);

/* Whether it is one that a compiler made of more than a function's own name. */
bool ca_demangle_is_needed(const char *name);

#endif
