/* C++ names of the Itanium ABI, as GCC's run-time prints them, without malloc: for where the
 * run-time's own demangler cannot be asked (plain_names.h), or is not there. */
#ifndef CA_REGISTRY_NAMES_DEMANGLE_CXX_H
#define CA_REGISTRY_NAMES_DEMANGLE_CXX_H

#include <stddef.h>

/* What a signal handler's stack has room for, and all but few names need. A sanitizer's frames are
 * larger. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CA_CXX_STACK_SMALL ((size_t)12 << 10)
#else
#define CA_CXX_STACK_SMALL ((size_t)3 << 10)
#endif

/* `name` demangled, until the next call; NULL where it is none, or has what is not known here
 * (concepts, modules, most of the expressions). At most `stack` bytes of the stack are taken, and
 * little more: where they do not suffice it is NULL too. Not thread-safe. */
const char *ca_demangle_cxx(const char *name, size_t stack);

#endif
