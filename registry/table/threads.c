#include "registry/table/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/thread_state.h"
#include "base/lock.h"
#include "base/mem.h"

#define LEAST_CAPACITY 256
/* Later threads have numbers: 1.3 MB is enough for names. */
#define MOST_CAPACITY ((size_t)1 << 16)

typedef struct entry {
    uint32_t thread; /* 0: free */
    char name[CA_THREAD_NAME];
} entry_t;

typedef struct table {
    entry_t *entries;
    size_t capacity, count;
} table_t;

/* Never taken together with a stripe's lock, whose rank it shares. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_REGISTRY);
static table_t table; /* under the lock */
static ca_threads_listener_t *_Atomic listener;
static bool foreign;

/* The entry of `thread`, or the free one where it belongs; NULL without a table. */
static entry_t *probe(const table_t *in, uint32_t thread)
{
    if (in->capacity == 0)
        return NULL;
    size_t mask = in->capacity - 1;
    size_t at = (thread * 0x9e3779b1u >> 8) & mask;
    while (in->entries[at].thread != 0 && in->entries[at].thread != thread)
        at = (at + 1) & mask;
    return &in->entries[at];
}

/* Room for one more: false where the table is as large as it gets. */
static bool grow(void)
{
    table_t bigger = table;
    bigger.capacity = table.capacity ? table.capacity * 2 : LEAST_CAPACITY;
    if (bigger.capacity > MOST_CAPACITY)
        return false;
    bigger.entries = ca_mem_map(bigger.capacity * sizeof(entry_t));
    if (!bigger.entries)
        return false;
    for (size_t i = 0; i < table.capacity; i++)
        if (table.entries[i].thread != 0)
            *probe(&bigger, table.entries[i].thread) = table.entries[i];
    ca_mem_unmap(table.entries, table.capacity * sizeof(entry_t));
    table = bigger;
    return true;
}

void ca_threads_put(uint32_t thread, const char name[CA_THREAD_NAME])
{
    ca_lock_take(&lock);
    entry_t *entry = probe(&table, thread);
    if (!entry || entry->thread == 0) {
        bool fits = (table.count + 1) * 2 <= table.capacity || grow();
        entry = fits ? probe(&table, thread) : NULL;
        table.count += fits;
    }
    if (entry) {
        entry->thread = thread;
        memcpy(entry->name, name, CA_THREAD_NAME);
    }
    ca_lock_drop(&lock);
}

static void notify(uint32_t thread, const char *name)
{
    ca_threads_listener_t *noted = atomic_load_explicit(&listener, memory_order_relaxed);
    if (noted)
        noted(thread, name);
}

void ca_threads_listen(ca_threads_listener_t *noted)
{
    atomic_store(&listener, noted);
}

void ca_threads_note(uint32_t thread)
{
    char name[CA_THREAD_NAME] = "";
    int saved = errno;
    prctl(PR_GET_NAME, name);
    ca_threads_put(thread, name);
    notify(thread, name);
    errno = saved;
}

void ca_threads_notify_all(void)
{
    ca_lock_take(&lock);
    for (size_t i = 0; i < table.capacity; i++)
        if (table.entries[i].thread != 0)
            notify(table.entries[i].thread, table.entries[i].name);
    ca_lock_drop(&lock);
}

void ca_threads_put_begin(void)
{
    foreign = true;
}

/* What a thread that still runs is called now. */
static bool read_name(uint32_t thread, char name[CA_THREAD_NAME])
{
    char path[64];
    ssize_t length = 0;
    snprintf(path, sizeof path, "/proc/self/task/%u/comm", thread);
    int cancel = ca_cancel_hold(); /* each of these is a cancellation point */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        length = read(fd, name, CA_THREAD_NAME);
        close(fd);
    }
    ca_cancel_resume(cancel);
    if (length <= 1) /* a newline ends it */
        return false;
    name[length - 1] = '\0';
    return true;
}

static bool recall(uint32_t thread, char name[CA_THREAD_NAME])
{
    if (!ca_lock_take_timed(&lock))
        return false;
    const entry_t *entry = probe(&table, thread);
    bool found = entry && entry->thread == thread && entry->name[0] != '\0';
    if (found)
        memcpy(name, entry->name, CA_THREAD_NAME);
    ca_lock_drop(&lock);
    return found;
}

void ca_threads_name(uint32_t thread, char name[CA_THREAD_NAME])
{
    int saved = errno;
    if ((foreign || !read_name(thread, name)) && !recall(thread, name))
        snprintf(name, CA_THREAD_NAME, "%u", thread);
    errno = saved;
}

void ca_threads_reset_after_fork(void)
{
    /* What the parent mapped stays mapped, for the reason given in registry.c. */
    ca_lock_init(&lock, CA_RANK_REGISTRY);
    memset(&table, 0, sizeof table);
}
