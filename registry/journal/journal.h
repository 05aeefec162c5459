/* A file that says at every moment what is live: a mapping that all processes that open it share,
 * so that it is whole when the process was killed. Another process makes the report of it.
 *
 * Nothing is flushed: what a process wrote outlives it, a machine that stops takes it along. */
#ifndef CA_REGISTRY_JOURNAL_JOURNAL_H
#define CA_REGISTRY_JOURNAL_JOURNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"
#include "registry/table/origin.h"

/* --- writing ---------------------------------------------------------------------------------- */

/* What becomes live, and each stack, module and thread that is new, is written from now on: the
 * journal listens to the tables that keep them. */
extern _Atomic bool ca_journal_on;

typedef struct ca_journal_about {
    const char *expanded; /* the path, as ca_path_expand made it */
    const char *version;  /* of the library */
    const char *rank;     /* empty where there is none */
    unsigned stack_depth;
    size_t sampled; /* as in ca_origin_t */
} ca_journal_about_t;

/* Makes the file, which must be a new one, and whose name is then in `path`; `*tried` names were
 * tried. Once, before any allocation. 0 or a negative errno. */
int ca_journal_start(const ca_journal_about_t *about, char *path, size_t bytes, unsigned *tried);

/* The process ends by itself: removes the file. */
void ca_journal_end(void);

/* Writes what was known before the start: modules, threads, stacks, live records. What is new
 * meanwhile is written twice, which does no harm. May wait for the loader, with no lock held. */
void ca_journal_add_all(void);

/* In the child of a fork: the file is the parent's. */
void ca_journal_reset_after_fork(void);

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct ca_journal_read {
    ca_origin_t origin; /* its strings lie here */
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
