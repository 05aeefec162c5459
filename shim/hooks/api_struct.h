/* What the public functions share. From any thread. */
#ifndef CA_SHIM_HOOKS_API_STRUCT_H
#define CA_SHIM_HOOKS_API_STRUCT_H

#include <stddef.h>
#include <string.h>

#define CA_PUBLIC __attribute__((visibility("default")))

/* shim/hooks/api_ordered.c */
void ca_api_ordered_reset_after_fork(void);

/* Copies a struct whose size the caller may know otherwise: a caller with an older header gets the
 * first fields, one with a newer header zeros in the further ones. */
static inline void ca_api_fill(void *to, size_t to_bytes, const void *from, size_t bytes)
{
    memcpy(to, from, to_bytes < bytes ? to_bytes : bytes);
    if (to_bytes > bytes)
        memset((char *)to + bytes, 0, to_bytes - bytes);
}

#endif
