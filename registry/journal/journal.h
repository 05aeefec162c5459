/* A file that says at every moment what is live: a mapping that all who open it share, so that it
 * is whole when the process was killed. Another process makes the report of it.
 *
 * Nothing is flushed: what a process wrote outlives it, a machine that stops takes it along. */
#ifndef CA_REGISTRY_JOURNAL_JOURNAL_H
#define CA_REGISTRY_JOURNAL_JOURNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"
#include "registry/report/model.h"
#include "registry/stack/modules.h"
#include "registry/table/registry.h"

/* --- writing ---------------------------------------------------------------------------------- */

/* All is written from now on. Read without order: it is set before anything is live. */
extern _Atomic bool ca_journal_on;

typedef struct ca_journal_about {
    const char *settled; /* the path, as ca_path_expand made it */
    const char *version; /* of the library */
    const char *rank;    /* empty where there is none */
    unsigned stack_depth;
    size_t sampled; /* as in ca_model_t */
} ca_journal_about_t;

/* Makes the file, which must be a new one, and whose name is then in `path`; `*tried` names were
 * tried. Once, before any allocation. 0 or a negative errno. */
int ca_journal_start(const ca_journal_about_t *about, char *path, size_t bytes, unsigned *tried);

/* The process ends by itself: removes the file. */
void ca_journal_end(void);

/* A record becomes live, or is not any more. Takes no lock but where the file grows; a record that
 * it has no room for is counted. `sequence` is what tells it from others at its address. */
void ca_journal_add(const ca_allocation_t *record, uint64_t sequence);
void ca_journal_remove(const ca_allocation_t *record);

/* What was live before the start. */
void ca_journal_add_all(void);

/* What records refer to. Take a lock. They do nothing where there is no journal. */
void ca_journal_stack(uint32_t id, uint32_t epoch, const uintptr_t *frames, size_t count);
void ca_journal_module(const ca_module_t *module);
void ca_journal_freed(const ca_module_t *module);
void ca_journal_thread(uint32_t thread, const char *name);

/* In the child of a fork: the file is the parent's. */
void ca_journal_reset_after_fork(void);

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct ca_journal_read {
    ca_model_origin_t origin; /* its strings lie here */
    char program[64], host[64], rank[16], unwinder[16], version[32];
    uint64_t lost, unlogged;
    unsigned missing; /* parts that its head lists and that are not all there */
    size_t records;
    char *copy; /* of the file */
    size_t copy_bytes;
} ca_journal_read_t;

/* Makes what a journal says this process's own: its live records, stacks, modules, threads. For a
 * process that allocates nothing, once. 0 or a negative errno, and then with what is wrong in `why`
 * where it is with the file's content (-EINVAL). */
int ca_journal_read(const char *path, ca_journal_read_t *read, ca_text_t *why);

/* Nothing is live any more. `read` may be used no more. */
void ca_journal_read_end(ca_journal_read_t *read);

#endif
