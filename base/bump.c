#include "base/bump.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

#define CHUNK_LEAST ((size_t)64 << 10)
#define CHUNK_MOST ((size_t)4 << 20)
#define ALIGN ((size_t)16)

/* At the start of its chunk. */
typedef struct ca_bump_chunk {
    _Alignas(16) struct ca_bump_chunk *older;
    size_t bytes;
} chunk_t;

/* Chunks double, so that much memory is few mappings. */
static int add_chunk(ca_bump_t *bump, size_t least)
{
    size_t bytes = bump->chunks ? bump->chunks->bytes * 2 : CHUNK_LEAST;
    if (bytes > CHUNK_MOST)
        bytes = CHUNK_MOST;
    if (bytes < least + sizeof(chunk_t))
        bytes = least + sizeof(chunk_t);
    chunk_t *chunk = ca_mem_map(bytes);
    if (!chunk)
        return -1;
    chunk->older = bump->chunks;
    chunk->bytes = bytes;
    bump->chunks = chunk;
    bump->used = sizeof(chunk_t);
    return 0;
}

void *ca_bump_take(ca_bump_t *bump, size_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!bump->chunks || bump->chunks->bytes - bump->used < bytes)
        if (add_chunk(bump, bytes) != 0)
            return NULL;
    void *taken = (char *)bump->chunks + bump->used;
    bump->used += bytes;
    return taken;
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
    for (chunk_t *chunk = bump->chunks; chunk;) {
        chunk_t *older = chunk->older;
        ca_mem_unmap(chunk, chunk->bytes);
        chunk = older;
    }
    *bump = (ca_bump_t){NULL, 0};
}
