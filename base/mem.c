/* Pages from mmap, and slabs and bumps cut from them. */
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK_LEAST ((size_t)64 << 10)
#define SLAB_CHUNK_MOST ((size_t)1 << 20)
#define BUMP_CHUNK_MOST ((size_t)4 << 20)
#define ALIGN ((size_t)16)

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

/* --- chunks ----------------------------------------------------------------------------------- */

/* At the start of its memory, the rest of which is cut into pieces. */
typedef struct ca_mem_chunk {
    _Alignas(16) struct ca_mem_chunk *older;
    size_t bytes;
} chunk_t;

/* Chunks double up to `most`: few mappings for much memory, little waste where there is little. The
 * new one has room for a piece of `piece` bytes; NULL without memory. */
static chunk_t *add_chunk(chunk_t **chunks, size_t piece, size_t most)
{
    size_t bytes = *chunks ? (*chunks)->bytes * 2 : CHUNK_LEAST;
    if (bytes > most)
        bytes = most;
    if (bytes < sizeof(chunk_t) + piece)
        bytes = sizeof(chunk_t) + piece;
    chunk_t *chunk = ca_mem_map(bytes);
    if (!chunk)
        return NULL;
    chunk->older = *chunks;
    chunk->bytes = bytes;
    *chunks = chunk;
    return chunk;
}

static void unmap_chunks(chunk_t *chunk)
{
    while (chunk) {
        chunk_t *older = chunk->older;
        ca_mem_unmap(chunk, chunk->bytes);
        chunk = older;
    }
}

/* --- slabs ------------------------------------------------------------------------------------ */

/* What an object in the free list holds. */
typedef struct free_object {
    struct free_object *next;
} free_object_t;

void ca_slab_init(ca_slab_t *slab, size_t object_bytes)
{
    size_t rounded = (object_bytes + ALIGN - 1) / ALIGN * ALIGN;
    *slab = (ca_slab_t){.object_bytes = rounded ? rounded : ALIGN};
}

void *ca_slab_take(ca_slab_t *slab)
{
    free_object_t *object = slab->free_list;
    if (object) {
        slab->free_list = object->next;
        memset(object, 0, slab->object_bytes);
    } else {
        if (!slab->chunks || slab->chunks->bytes - slab->next < slab->object_bytes) {
            if (!add_chunk(&slab->chunks, slab->object_bytes, SLAB_CHUNK_MOST))
                return NULL;
            slab->next = sizeof(chunk_t);
        }
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
    unmap_chunks(slab->chunks);
    *slab = (ca_slab_t){.object_bytes = slab->object_bytes};
}

/* --- bumps ------------------------------------------------------------------------------------ */

void *ca_bump_take(ca_bump_t *bump, size_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!bump->chunks || bump->chunks->bytes - bump->used < bytes) {
        if (!add_chunk(&bump->chunks, bytes, BUMP_CHUNK_MOST))
            return NULL;
        bump->used = sizeof(chunk_t);
    }
    void *piece = (char *)bump->chunks + bump->used;
    bump->used += bytes;
    return piece;
}

char *ca_bump_text(ca_bump_t *bump, const char *text, size_t length)
{
    char *copy = ca_bump_take(bump, length + 1);
    if (copy)
        memcpy(copy, text, length);
    return copy;
}

void ca_bump_free(ca_bump_t *bump)
{
    unmap_chunks(bump->chunks);
    *bump = (ca_bump_t){NULL, 0};
}
