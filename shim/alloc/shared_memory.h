/* Memory with several names, and memory from elsewhere. The free calls ask here when the record
 * that they erased is shared: such a record is still in the registry then. */
#ifndef CA_SHIM_ALLOC_SHARED_MEMORY_H
#define CA_SHIM_ALLOC_SHARED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"

typedef void ca_deleter_t(void *address, size_t bytes, void *argument);

/* The free of a name, `name` being a copy of its record: drops one reference, and with the last one
 * the memory is freed by the same call. No lock may be held: it may call a deleter of the
 * program. */
CUresult ca_shared_free(const ca_allocation_t *name);      /* cuMemFree */
CUresult ca_shared_free_host(const ca_allocation_t *name); /* cuMemFreeHost */
CUresult ca_shared_free_async(const ca_allocation_t *name, __typeof__(cuMemFreeAsync) *real,
                              CUstream stream);

/* `alias` is from now on a name of the live allocation `owner`. 0, -ENOENT: `owner` is not live,
 * -EEXIST: `alias` is, -ENOMEM. */
int ca_shared_alias(uint64_t owner, uint64_t alias);

/* Memory from elsewhere joins the registry. 0, -EEXIST: the address is live, -EINVAL: without a
 * deleter the driver would get memory of the pool, -ENOMEM. */
int ca_shared_register(uint64_t address, size_t bytes, ca_deleter_t *deleter, void *argument);
/* And leaves it; no deleter is called. 0, -ENOENT: it is none, -EBUSY: it has aliases. */
int ca_shared_unregister(uint64_t address);

/* What a live name stands for: the record of its memory as it was without aliases. False when
 * `address` is not live; a name that is freed while aliases keep its memory counts as live here.
 * `*names` is how many names are live. */
bool ca_shared_read(uint64_t address, ca_allocation_t *record, size_t *names);

/* The records of a context that was destroyed were dropped: forgets its aliases, calling nothing.
 */
void ca_shared_drop_context(const ca_context_t *context);

void ca_shared_reset_after_fork(void);

#endif
