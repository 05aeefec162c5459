/* Names of threads that allocated, for the reports. A thread is noted by its own first allocation;
 * what it is called when the report is written counts, where it still runs then. Thread-safe. */
#ifndef CA_REGISTRY_TABLE_THREADS_H
#define CA_REGISTRY_TABLE_THREADS_H

#include <stddef.h>
#include <stdint.h>

#define CA_THREAD_NAME 16 /* bytes, the NUL included: the kernel's limit */

/* Keeps the name of the calling thread, whose id is `thread`. An id that comes again, as they do,
 * is the latest thread's. Takes a lock; preserves errno. */
void ca_threads_note(uint32_t thread);

/* The name of a thread; its number where none is known. For reports: opens a file of /proc. */
void ca_threads_name(uint32_t thread, char name[CA_THREAD_NAME]);

/* Called for each thread that is noted from now on. NULL: nothing is. */
typedef void ca_threads_listener_t(uint32_t thread, const char name[CA_THREAD_NAME]);
void ca_threads_listen(ca_threads_listener_t *listener);

/* Calls the listener for all that are known, under a lock. */
void ca_threads_notify_all(void);

/* From another process's journal, whose threads are the only ones from now on. */
void ca_threads_put_begin(void);
void ca_threads_put(uint32_t thread, const char name[CA_THREAD_NAME]);

void ca_threads_reset_after_fork(void);

#endif
