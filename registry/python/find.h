/* Finding an interpreter among the objects that are loaded. By their symbol tables in memory: to
 * ask dlsym takes a lock that a thread in dlopen holds while it waits for others. */
#ifndef CA_REGISTRY_PYTHON_FIND_H
#define CA_REGISTRY_PYTHON_FIND_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* Addresses of what CPython exports; 0 where a version has no such thing. */
typedef struct ca_py_symbols {
    uintptr_t this_state;  /* PyGILState_GetThisThreadState */
    uintptr_t initialized; /* Py_IsInitialized */
    uintptr_t finalizing;  /* Py_IsFinalizing, or _Py_IsFinalizing */
    uintptr_t runtime;     /* _PyRuntime */
    uintptr_t version;     /* Py_Version, a number */
    uintptr_t get_version;
    uintptr_t code_type, str_type, bytes_type, frame_type;
} ca_py_symbols_t;

/* Whether the object that the loader tells of is one. For a callback of dl_iterate_phdr: the
 * loader's lock is held, and nothing is asked of it. */
bool ca_py_find(const struct dl_phdr_info *object, ca_py_symbols_t *symbols);

#endif
