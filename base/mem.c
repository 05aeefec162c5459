/* Pages from mmap and slabs cut from them.
 *
 * A slab's chunks double from 64 KiB to 1 MiB: few mappings for many objects, little waste for a
 * slab that stays small. */
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK_LEAST ((size_t)64 << 10)
#define CHUNK_MOST ((size_t)1 << 20)
#define OBJECT_ALIGN ((size_t)16)

static _Atomic size_t mapped_bytes;

/* 0 for what cannot be rounded. */
static size_t round_to_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

void *ca_mem_map(size_t bytes)
{
    int saved = errno;
    bytes = round_to_pages(bytes);
    if (bytes == 0)
        return NULL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (memory == MAP_FAILED)
        return NULL;
    if ((uint64_t)(uintptr_t)memory >> CA_MEM_POINTER_BITS) {
        (void)munmap(memory, bytes);
        return NULL;
    }
    atomic_fetch_add_explicit(&mapped_bytes, bytes, memory_order_relaxed);
    return memory;
}

void ca_mem_unmap(void *memory, size_t bytes)
{
    int saved = errno;
    bytes = round_to_pages(bytes);
    if (memory && bytes && munmap(memory, bytes) == 0)
        atomic_fetch_sub_explicit(&mapped_bytes, bytes, memory_order_relaxed);
    errno = saved;
}

size_t ca_mem_mapped(void)
{
    return atomic_load_explicit(&mapped_bytes, memory_order_relaxed);
}

/* --- slabs ------------------------------------------------------------------------------------ */

/* At the start of its chunk. Objects follow. */
typedef struct ca_slab_chunk {
    _Alignas(16) struct ca_slab_chunk *older;
    size_t bytes;
} chunk_t;

/* What an object in the free list holds. */
typedef struct free_object {
    struct free_object *next;
} free_object_t;

void ca_slab_init(ca_slab_t *slab, size_t object_bytes)
{
    size_t rounded = (object_bytes + OBJECT_ALIGN - 1) / OBJECT_ALIGN * OBJECT_ALIGN;
    *slab = (ca_slab_t){.object_bytes = rounded ? rounded : OBJECT_ALIGN};
}

static bool add_chunk(ca_slab_t *slab)
{
    size_t bytes = slab->chunks ? slab->chunks->bytes * 2 : CHUNK_LEAST;
    if (bytes > CHUNK_MOST)
        bytes = CHUNK_MOST;
    if (bytes < sizeof(chunk_t) + slab->object_bytes)
        bytes = sizeof(chunk_t) + slab->object_bytes;
    chunk_t *chunk = ca_mem_map(bytes);
    if (!chunk)
        return false;
    chunk->older = slab->chunks;
    chunk->bytes = bytes;
    slab->chunks = chunk;
    slab->next = sizeof(chunk_t);
    return true;
}

void *ca_slab_take(ca_slab_t *slab)
{
    free_object_t *object = slab->free_list;
    if (object) {
        slab->free_list = object->next;
        memset(object, 0, slab->object_bytes);
    } else {
        if (!slab->chunks || slab->chunks->bytes - slab->next < slab->object_bytes)
            if (!add_chunk(slab))
                return NULL;
        /* Fresh pages are zero already. */
        object = (free_object_t *)((char *)slab->chunks + slab->next);
        slab->next += slab->object_bytes;
    }
    slab->live++;
    return object;
}

void ca_slab_give(ca_slab_t *slab, void *memory)
{
    free_object_t *object = memory;
    object->next = slab->free_list;
    slab->free_list = object;
    slab->live--;
}

void ca_slab_destroy(ca_slab_t *slab)
{
    for (chunk_t *chunk = slab->chunks; chunk;) {
        chunk_t *older = chunk->older;
        ca_mem_unmap(chunk, chunk->bytes);
        chunk = older;
    }
    *slab = (ca_slab_t){.object_bytes = slab->object_bytes};
}
