/* What a journal's file has in it. Of the process that writes it: a reader is the same version on a
 * machine of the same byte order, and looks at every number before it believes it.
 *
 * The head, then chunks, in the order in which the head lists them. A table has `buckets` keys, 8
 * bytes each, and as many records behind them: the record of a key that is an address is live. A
 * log has entries one behind the other, each a multiple of 8 bytes, and ends where the kind of one
 * is 0. */
#ifndef CA_REGISTRY_JOURNAL_JOURNAL_FILE_H
#define CA_REGISTRY_JOURNAL_JOURNAL_FILE_H

#include <stdatomic.h>
#include <stdint.h>
#include "registry/stack/modules.h"
#include "registry/table/registry.h"
#include "registry/table/threads.h"

#define CA_JOURNAL_MAGIC "CAJOURNL"
#define CA_JOURNAL_VERSION 2u
#define CA_JOURNAL_OLDEST 1u /* that can be read: it has no Python frames */
#define CA_JOURNAL_CHUNKS 112u
#define CA_JOURNAL_HEAD_BYTES 4096u
#define CA_JOURNAL_GROUP 16u  /* keys: two cache lines, in one of which an address is looked for */
#define CA_JOURNAL_CLAIMED 1u /* a key whose record is being written */

typedef struct ca_journal_chunk {
    enum { CA_JOURNAL_TABLE = 1, CA_JOURNAL_LOG } kind;
    uint32_t buckets; /* of a table; a power of two */
    uint64_t offset, bytes;
} ca_journal_chunk_t;

typedef struct ca_journal_head {
    char magic[8];
    uint32_t version, record_bytes;
    uint32_t pid, stack_depth;
    uint64_t start_s;          /* since 1970 */
    uint64_t sampled;          /* bytes from one sampled stack to the next, or 0 */
    _Atomic uint64_t peak;     /* most live bytes */
    _Atomic uint64_t lost;     /* allocations that found no room, live or not */
    _Atomic uint64_t unlogged; /* entries that found none */
    char library[32];          /* version */
    char unwinder[16];
    char program[64], host[64], rank[16];
    _Atomic uint32_t chunk_count;
    ca_journal_chunk_t chunks[CA_JOURNAL_CHUNKS];
} ca_journal_head_t;

_Static_assert(sizeof(ca_journal_head_t) <= CA_JOURNAL_HEAD_BYTES, "a page");

/* The kind of an entry and its bytes, this included. */
typedef enum {
    CA_ENTRY_STACK = 1,
    CA_ENTRY_MODULE,
    CA_ENTRY_UNLOADED,
    CA_ENTRY_THREAD,
    CA_ENTRY_CODE,
    CA_ENTRY_SITE,
} ca_entry_kind_t;

typedef struct ca_entry {
    uint32_t kind, bytes;
} ca_entry_t;

typedef struct ca_entry_stack {
    uint32_t id, count;
    uint64_t epoch;
    /* the frames follow, some of which may be words of registry/python/merge.h */
} ca_entry_stack_t;

typedef struct ca_entry_module {
    uint64_t bias, low, high;
    uint32_t from, build_id_bytes;
    unsigned char build_id[CA_BUILD_ID_MAX];
    /* the path follows, with its NUL */
} ca_entry_module_t;

/* A module is not there any more. */
typedef struct ca_entry_unloaded {
    uint64_t bias;
    uint32_t from, until;
} ca_entry_unloaded_t;

typedef struct ca_entry_thread {
    uint32_t thread;
    char name[CA_THREAD_NAME];
} ca_entry_thread_t;

/* A Python function; before the sites in it. */
typedef struct ca_entry_code {
    uint32_t number, function_bytes; /* its NUL included */
    /* the function and its file follow, each with its NUL */
} ca_entry_code_t;

/* A place in one; before the stacks that it is on, whose word for it has the number. */
typedef struct ca_entry_site {
    uint32_t number, code, line, unused;
} ca_entry_site_t;

#endif
