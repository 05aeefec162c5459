/* Host memory for our own tables, straight from mmap: the host program's malloc may be the one
 * that is calling us, may be replaced, and must not see our metadata as its leaks. */
#ifndef CA_BASE_MEM_H
#define CA_BASE_MEM_H

#include <stddef.h>

/* What a pointer to memory from here has: tables keep other things in the rest of a word. The
 * kernel gives higher addresses only to programs that ask for them by name. */
#define CA_MEM_POINTER_BITS 48

/* Zeroed pages, or NULL (for 0 bytes too). `bytes` is rounded up to pages. errno is preserved. */
void *ca_mem_map(size_t bytes);
void ca_mem_unmap(void *memory, size_t bytes);

/* Objects of one size, aligned to 16 bytes, cut from mapped chunks and recycled through a free
 * list. The owner's lock guards it. Memory goes back only with ca_slab_destroy. */
typedef struct ca_slab {
    size_t object_bytes; /* rounded up to 16 */
    void *free_list;
    struct ca_mem_chunk *chunks;
    size_t next; /* bytes handed out of the newest chunk */
    size_t live; /* objects in use */
} ca_slab_t;

void ca_slab_init(ca_slab_t *slab, size_t object_bytes);
void *ca_slab_take(ca_slab_t *slab); /* zeroed object, or NULL */
void ca_slab_give(ca_slab_t *slab, void *object);
void ca_slab_destroy(ca_slab_t *slab);

/* Memory for what is built once and freed together: cut piece by piece, unmapped all at once. Not
 * thread-safe. All zero is an empty one. */
typedef struct ca_bump {
    struct ca_mem_chunk *chunks; /* the newest first */
    size_t used;                 /* bytes of the newest */
} ca_bump_t;

/* Zeroed, aligned to 16 bytes, or NULL (for 0 bytes too). */
void *ca_bump_take(ca_bump_t *bump, size_t bytes);

/* A copy with a NUL behind it, or NULL. */
char *ca_bump_text(ca_bump_t *bump, const char *text, size_t length);

/* Gives everything back; it is then empty. */
void ca_bump_free(ca_bump_t *bump);

/* Bytes mapped by this file now: what the statistics call metadata. */
size_t ca_mem_mapped(void);

#endif
