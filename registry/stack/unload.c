/* When code was unloaded.
 *
 * The loader counts what it unloads; most closings unload nothing, and then nothing is forgotten.
 * As long as a library is being closed another thread may already run other code in its place: the
 * cache rests. */
#include "registry/stack/unload.h"

#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/lock.h"
#include "base/mutation.h"
#include "registry/python/python.h"
#include "registry/stack/modules.h"
#include "registry/stack/stack_cache.h"

/* How often something was unloaded, from CA_UNLOAD_NONE on, and in the upper part how many threads
 * are in ca_unload. */
static _Atomic uint64_t epoch = CA_UNLOAD_NONE;
#define CLOSING (UINT64_C(1) << 48)

static int read_count(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    if (bytes >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs)
        *(unsigned long long *)arg = info->dlpi_subs;
    return 1; /* each object has it */
}

static unsigned long long unloaded(void)
{
    unsigned long long count = 0;
    dl_iterate_phdr(read_count, &count);
    return count;
}

int ca_unload(int (*close)(void *handle), void *handle)
{
    if (CA_MUTATED(unload_unseen))
        return close(handle);
    ca_lock_assert_none("closing a library");
    atomic_fetch_add(&epoch, CLOSING);
    ca_stack_cache_suspend();
    bool python_paused = ca_python_pause();
    unsigned long long before = unloaded();
    int result = close(handle);
    int saved = errno;
    bool forget = unloaded() != before;
    ca_stack_cache_go_on(forget);
    atomic_fetch_add(&epoch, forget - CLOSING);
    if (python_paused) {
        ca_modules_note();
        ca_python_resume();
    }
    errno = saved;
    return result;
}

uint64_t ca_unload_epoch(void)
{
    uint64_t now = atomic_load_explicit(&epoch, memory_order_acquire);
    return now >= CLOSING ? CA_UNLOAD_UNDER_WAY : now;
}

void ca_unload_reset_after_fork(void)
{
    atomic_fetch_and(&epoch, CLOSING - 1);
}
