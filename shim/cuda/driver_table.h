/* The real driver: a table of its functions, and the swap of an address that the program looked up
 * for our wrapper of the same function.
 *
 * Resolved without a lock: dlopen and dlsym take the loader's lock, which the caller may hold
 * already. Threads that race each build a table; one of them is published. */
#ifndef CA_SHIM_CUDA_DRIVER_TABLE_H
#define CA_SHIM_CUDA_DRIVER_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/lock.h"
#include "shim/cuda/cuda_decls.h"

typedef struct ca_driver {
#define CA_DRIVER(symbol, ...) __typeof__(symbol) *symbol;
#define CA_DRIVER_USED(symbol) __typeof__(symbol) *symbol;
#include "shim/hooks/hooks.def"
} ca_driver_t;

/* Hidden, as our other names are: said here it is read without reading its address first. */
extern __attribute__((visibility("hidden"))) ca_driver_t *_Atomic ca_driver_published;

/* Every driver call of ours begins with ca_driver(): debug builds assert there that none is made
 * under a lock. */

/* The table, resolved on first use: from libcuda.so.1 where it is loaded, otherwise from `handle`
 * (NULL for none). Never NULL; functions that the driver does not have are NULL in it. */
const ca_driver_t *ca_driver_resolve(void *handle);

/* The same, of a driver that is opened where the process has not loaded it yet, for the calls of
 * the library's own interface. */
const ca_driver_t *ca_driver_open(void);

static inline const ca_driver_t *ca_driver(void)
{
    ca_lock_assert_none("driver call");
    const ca_driver_t *driver = atomic_load_explicit(&ca_driver_published, memory_order_acquire);
    return driver ? driver : ca_driver_resolve(NULL);
}

/* In a wrapper: `real` is the driver's function, or the wrapper returns at once (no driver, or one
 * without this function: no look-up can have led here then). */
#define CA_REAL(symbol)                                                                            \
    __typeof__(symbol) *real = ca_driver()->symbol;                                                \
    if (!real)                                                                                     \
    return CUDA_ERROR_NOT_INITIALIZED

/* Whether we wrap a driver function of this (linker's) name. */
bool ca_driver_wraps(const char *symbol);

/* Our wrapper of the driver function at `address`, or `address` itself when it is none that we
 * wrap. */
void *ca_driver_swap(void *address);

/* The same for an answer of cuGetProcAddress: where the address is not the one that dlsym gives,
 * the question decides: name, CUDA version, flags. NULL: we wrap no such function. */
void *ca_driver_swap_query(void *address, const char *name, int version, cuuint64_t flags);

#endif
