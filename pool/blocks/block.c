/* Block objects, cut from mapped chunks. Each is a 128th of what there is, 16 KiB to
 * 1 MiB: few mappings for many blocks, and little that lies idle.
 *
 * A free whose record is already erased brings the pointer of a block whose arena may be retired
 * meanwhile, and nothing tells how many of those are on their way. So the addresses of a retired
 * arena's blocks are given to nothing else but the same arena, when it is revived long after. Their
 * pages are given back: they read as zeros from then on, and a block without an arena is one to
 * ignore. Of the chunks behind each color's first the address space stays out of use. */
#include "pool/blocks/block.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "base/mem.h"
#include "base/thread_state.h"

#define CHUNK_LEAST ((size_t)16 << 10)
#define CHUNK_MOST ((size_t)1 << 20)
#define CHUNK_SHARE 128
/* Of few blocks threads use all, again and again: at least so much behind the first chunk, while
 * there is less than that. */
#define CHUNK_EARLY ((size_t)64 << 10)
#define EARLY ((size_t)512 << 10)
/* Objects that lie idle for the pages of their own threads: a part of what is live, and some. */
#define SPARE_SHARE 8
#define SPARE (2 * CA_BLOCK_PAGE_BLOCKS)

/* For the pages of one color. */
static ca_block_page_t *add_chunk(ca_block_slab_t *slab)
{
    size_t bytes = ca_round_up(slab->bytes / CHUNK_SHARE, CA_BLOCK_PAGE);
    size_t least = slab->bytes && slab->bytes < EARLY ? CHUNK_EARLY : CHUNK_LEAST;

    if (bytes < least)
        bytes = least;
    if (bytes > CHUNK_MOST)
        bytes = CHUNK_MOST;
    bool again = slab->bytes == 0 && slab->chunks;
    ca_block_page_t *chunk;
    if (again)
        chunk = slab->chunks;
    else if (bytes == CHUNK_EARLY && slab->kept_count)
        chunk = slab->kept[--slab->kept_count];
    else
        chunk = ca_mem_map(bytes);
    if (!chunk)
        return NULL;
    chunk->older = again ? NULL : slab->chunks;
    chunk->pages = bytes / CA_BLOCK_PAGE;
    slab->chunks = chunk;
    slab->bytes += bytes;
    return chunk;
}

/* The next one of the color, or NULL. */
static ca_block_page_t *add_page(ca_block_slab_t *slab, unsigned color)
{
    ca_block_page_t *page = slab->colors[color].page;

    if (page && slab->colors[color].left) {
        page = (ca_block_page_t *)((char *)page + CA_BLOCK_PAGE);
        slab->colors[color].left--;
    } else {
        page = add_chunk(slab);
        if (!page)
            return NULL;
        slab->colors[color].left = page->pages - 1;
    }
    page->color = color;
    slab->colors[color].page = page;
    return page;
}

static ca_block_t *make(ca_block_slab_t *slab, unsigned color)
{
    ca_block_page_t *page = slab->colors[color].page;

    if (!page || page->used == CA_BLOCK_PAGE_BLOCKS)
        page = add_page(slab, color);
    if (!page)
        return NULL;
    ca_block_t *block = &page->blocks[page->used++];
    ca_record_init(&block->record);
    slab->made++;
    return block;
}

/* Another color's, where there are that many to spare. */
static unsigned color_for(const ca_block_slab_t *slab)
{
    unsigned color = ca_thread_number() % CA_BLOCK_COLORS, other = color;

    if (slab->colors[color].spare || slab->made - slab->live <= slab->live / SPARE_SHARE + SPARE)
        return color;
    do
        other = (other + 1) % CA_BLOCK_COLORS;
    while (!slab->colors[other].spare && other != color);
    return other;
}

ca_block_t *ca_block_new(ca_block_slab_t *slab)
{
    unsigned color = color_for(slab);
    ca_block_t *block = slab->colors[color].spare;

    if (block)
        slab->colors[color].spare = block->next;
    else if (!(block = make(slab, color)))
        return NULL;
    slab->live++;
    return block;
}

/* The arena stays readable: a second free of the same block must find it, and no live state. */
void ca_block_delete(ca_block_slab_t *slab, ca_block_t *block)
{
    unsigned color = ca_block_page(block)->color;

    block->state = 0;
    block->next = slab->colors[color].spare;
    slab->colors[color].spare = block;
    slab->live--;
}

void ca_block_discard(ca_block_slab_t *slab)
{
    int saved = errno;
    ca_block_slab_t next = {.kept_count = slab->kept_count};

    memcpy(next.kept, slab->kept, sizeof next.kept);
    if (slab->bytes == 0) /* there never was a block */
        next.chunks = slab->chunks;
    for (ca_block_page_t *chunk = slab->chunks, *older; slab->bytes && chunk; chunk = older) {
        size_t bytes = chunk->pages * CA_BLOCK_PAGE;
        older = chunk->older;
        /* Refused where the program locked its memory: then the arena is found, and is retired. */
        if (madvise(chunk, bytes, MADV_DONTNEED) != 0)
            continue;
        if (!older)
            next.chunks = chunk;
        else if (bytes == CHUNK_EARLY && next.kept_count < CA_BLOCK_KEPT)
            next.kept[next.kept_count++] = chunk;
    }
    *slab = next;
    errno = saved;
}

void ca_block_bar_fast_path(ca_block_t *block)
{
    __atomic_store_n(&block->class_mark, 0, __ATOMIC_RELAXED);
}
