/* Memory that work of other streams than its own uses (cachealloc_record_stream): a free of it
 * is behind all work. A set of addresses: one that stays in it where another call freed the memory
 * costs the next one there, where the pool has it, a free behind all work. From any thread, with no
 * lock held. */
#ifndef CA_SHIM_ALLOC_OTHER_STREAMS_H
#define CA_SHIM_ALLOC_OTHER_STREAMS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* False without host memory. */
bool ca_other_streams_add(uint64_t address);

/* Whether it was there; it is not any more. */
extern _Atomic unsigned ca_other_streams_count;
bool ca_other_streams_take_slow(uint64_t address);
static inline bool ca_other_streams_take(uint64_t address)
{
    return __builtin_expect(
               atomic_load_explicit(&ca_other_streams_count, memory_order_relaxed) != 0, 0) &&
           ca_other_streams_take_slow(address);
}

void ca_other_streams_reset_after_fork(void);

#endif
