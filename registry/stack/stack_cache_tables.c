/* Tables of threads: made, and handed on. */
#include "registry/stack/stack_cache_tables.h"

#include <pthread.h>

#include "base/lock.h"
#include "base/mem.h"

#define STACK_MOST ((uintptr_t)1 << 30) /* bytes */

_Thread_local ca_stack_cache_table_t *ca_stack_cache_of_thread;
static _Thread_local bool left; /* this thread's destructors have run, or there is no memory */

static pthread_key_t thread_end;
static bool have_key; /* a process has no more than 1,024 */

/* Tables of threads that have ended. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_STACKS);
static ca_stack_cache_table_t *free_tables;

static void recycle(ca_stack_cache_table_t *table)
{
    ca_lock_take(&lock);
    table->next_free = free_tables;
    free_tables = table;
    ca_lock_drop(&lock);
}

static void leave(void *table)
{
    left = true;
    ca_stack_cache_of_thread = NULL;
    recycle(table);
}

/* glibc's own allocates, and reads a file for the first thread: once per thread. */
static bool find_stack(ca_stack_cache_table_t *table)
{
    pthread_attr_t attributes;
    void *low;
    size_t bytes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return false;
    bool found = pthread_attr_getstack(&attributes, &low, &bytes) == 0;
    pthread_attr_destroy(&attributes);
    if (!found)
        return false;
    /* Without a limit the first thread's is said to begin where mappings end; others come there. */
    uintptr_t high = (uintptr_t)low + bytes;
    table->stack_low = bytes > STACK_MOST ? high - STACK_MOST : (uintptr_t)low;
    table->stack_high = high;
    return true;
}

static ca_stack_cache_table_t *make_table(void)
{
    left = true; /* what is called here may bring us here again */
    ca_lock_take(&lock);
    ca_stack_cache_table_t *table = free_tables;
    if (table)
        free_tables = table->next_free;
    ca_lock_drop(&lock);
    if (!table)
        table = ca_mem_map(sizeof *table);
    if (!table)
        return NULL;
    table->hits = table->misses = table->kept = table->spent = 0;
    table->busy = false;
    table->epoch = 0;
    if (!find_stack(table))
        table->stack_low = table->stack_high = 0; /* remembers nothing */
    if (pthread_setspecific(thread_end, table) != 0) {
        recycle(table);
        return NULL;
    }
    left = false;
    ca_stack_cache_of_thread = table;
    return table;
}

ca_stack_cache_table_t *ca_stack_cache_table(void)
{
    return left || !have_key          ? NULL
           : ca_stack_cache_of_thread ? ca_stack_cache_of_thread
                                      : make_table();
}

/* From the frame's page, and from the next one where its callers' frames may lie in that. */
void ca_stack_cache_set_extent(ca_stack_cache_table_t *table, uintptr_t frame, uintptr_t end)
{
    enum { OUR_FRAMES = 2048 }; /* bytes, from the unwinder's to that of the hook */
    uintptr_t page = frame & -CA_STACK_CACHE_PAGE,
              next = (frame + OUR_FRAMES) & -CA_STACK_CACHE_PAGE;
    if (!table->extents)
        table->extents = ca_mem_map(CA_STACK_CACHE_EXTENTS * sizeof *table->extents);
    if (!table->extents)
        return;
    table->extents[CA_STACK_CACHE_EXTENT_OF(page)] = (ca_extent_t){page, end};
    if (next != page && next < end)
        table->extents[CA_STACK_CACHE_EXTENT_OF(next)] = (ca_extent_t){next, end};
}

bool ca_stack_cache_tables_start(void)
{
    have_key = pthread_key_create(&thread_end, leave) == 0;
    return have_key;
}

void ca_stack_cache_tables_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_STACKS);
    free_tables = NULL;
}
