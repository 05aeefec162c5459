/* Which libraries the process has mapped, and whether that has changed. */
#ifndef CA_SHIM_CUDA_LIBRARIES_H
#define CA_SHIM_CUDA_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>

/* Calls `see` with the name of each library's file, without its folder and not terminated. They are
 * those of /proc/self/maps, which has other namespaces' (dlmopen) as well, and of the loader's list
 * where that file cannot be read. Not with a lock of ours held. */
void ca_libraries_each(void (*see)(const char *name, size_t length, void *arg), void *arg);

/* Whether such a name begins so. */
bool ca_library_begins(const char *name, size_t length, const char *begins);

/* What the loader had opened and closed when it was last looked at. */
typedef struct ca_libraries_seen {
    _Atomic unsigned long long opened, closed;
} ca_libraries_seen_t;

/* Whether it has opened or closed anything since, or does not say: one call of the loader's. */
bool ca_libraries_changed(ca_libraries_seen_t *seen);

#endif
