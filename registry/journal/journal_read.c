/* A journal may end anywhere, and may be of anything: every number in it is looked at before it is
 * believed, and what does not hold is left out. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "registry/journal/journal.h"
#include "registry/journal/journal_file.h"
#include "registry/python/codes.h"
#include "registry/python/python.h"
#include "registry/stack/stack.h"

#define NUMBERS_MOST ((uint32_t)1 << 24)

typedef struct reader {
    const char *bytes;
    size_t size;
    const ca_journal_head_t *head;
    uint32_t *stacks; /* our id of each of the journal's, mapped */
    uint32_t stack_most;
    uint32_t *codes, *sites; /* likewise: our number of each */
    uint32_t code_most, site_most;
} reader_t;

/* --- the file --------------------------------------------------------------------------------- */

/* What is missing at the end of a file that shrinks reads as zeros. */
static int read_whole(int fd, char *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, to + done, bytes - done, (off_t)done);
        if (got < 0 && errno != EINTR)
            return -errno;
        if (got == 0)
            break;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

/* A copy: its process, or another, may be changing the file. */
static int copy_file(const char *path, ca_journal_read_t *read)
{
    struct stat found;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int error = fstat(fd, &found) != 0                         ? -errno
                : !S_ISREG(found.st_mode)                      ? -EINVAL
                : found.st_size < (off_t)CA_JOURNAL_HEAD_BYTES ? -EINVAL
                                                               : 0;
    if (!error) {
        read->copy_bytes = (size_t)found.st_size;
        read->copy = ca_mem_map(read->copy_bytes);
        error = read->copy ? read_whole(fd, read->copy, read->copy_bytes) : -ENOMEM;
    }
    if (error && read->copy)
        ca_mem_unmap(read->copy, read->copy_bytes);
    close(fd);
    return error;
}

static int check_head(const reader_t *reader, ca_text_t *why)
{
    const ca_journal_head_t *head = reader->head;
    if (memcmp(head->magic, CA_JOURNAL_MAGIC, sizeof head->magic) != 0) {
        ca_text_printf(why, "it is no journal");
        return -EINVAL;
    }
    if (head->version < CA_JOURNAL_OLDEST || head->version > CA_JOURNAL_VERSION ||
        head->record_bytes != sizeof(ca_allocation_t)) {
        ca_text_printf(why,
                       "it is of another version (%u, written by cachealloc %.*s; this reads %u)",
                       head->version, (int)sizeof head->library, head->library, CA_JOURNAL_VERSION);
        return -EINVAL;
    }
    return 0;
}

/* The chunk's bytes, or NULL where it is not all there, or not behind what ends at `*end`: read
 * once for each chunk that names it a small file would take hours. */
static const char *chunk_bytes(const reader_t *reader, const ca_journal_chunk_t *chunk,
                               uint64_t *end)
{
    if (chunk->offset % 8 != 0 || chunk->offset < *end || chunk->offset > reader->size ||
        chunk->bytes > reader->size - chunk->offset)
        return NULL;
    *end = chunk->offset + chunk->bytes;
    return reader->bytes + chunk->offset;
}

/* --- the log ---------------------------------------------------------------------------------- */

static bool take(const char **at, size_t *left, void *fixed, size_t bytes)
{
    if (*left < bytes)
        return false;
    memcpy(fixed, *at, bytes);
    *at += bytes;
    *left -= bytes;
    return true;
}

static void read_code(reader_t *reader, const char *at, size_t left)
{
    ca_entry_code_t code;
    if (!take(&at, &left, &code, sizeof code) || code.number == 0 ||
        code.number > reader->code_most || code.function_bytes == 0 ||
        code.function_bytes >= left || !memchr(at, '\0', code.function_bytes))
        return;
    const char *file = at + code.function_bytes;
    if (memchr(file, '\0', left - code.function_bytes))
        reader->codes[code.number - 1] = ca_py_code_put(at, file);
}

static void read_site(reader_t *reader, const char *at, size_t left)
{
    ca_entry_site_t site;
    if (!take(&at, &left, &site, sizeof site) || site.number == 0 ||
        site.number > reader->site_most || site.code == 0 || site.code > reader->code_most)
        return;
    uint32_t code = reader->codes[site.code - 1];
    reader->sites[site.number - 1] = code ? ca_py_site_add(code, site.line) : 0;
}

/* A place that is not known stays one: our sites count from 1. */
static uintptr_t own_word(const reader_t *reader, uintptr_t word)
{
    uint32_t site = ca_python_site_in(word);
    if (!ca_python_is_word(word))
        return word;
    return CA_PYTHON_WORD | (site != 0 && site <= reader->site_most ? reader->sites[site - 1] : 0);
}

static void read_stack(reader_t *reader, const char *at, size_t left)
{
    ca_entry_stack_t stack;
    uintptr_t frames[CA_STACK_MAX];
    if (!take(&at, &left, &stack, sizeof stack) || stack.count > CA_STACK_MAX || stack.id == 0 ||
        stack.id > reader->stack_most || !take(&at, &left, frames, stack.count * sizeof *frames))
        return;
    for (uint32_t i = 0; i < stack.count; i++)
        frames[i] = own_word(reader, frames[i]);
    reader->stacks[stack.id - 1] = ca_stack_intern_of(frames, stack.count, (uint32_t)stack.epoch);
}

static void read_module(const char *at, size_t left)
{
    ca_entry_module_t entry;
    if (!take(&at, &left, &entry, sizeof entry) || left == 0 || !memchr(at, '\0', left) ||
        entry.build_id_bytes > CA_BUILD_ID_MAX)
        return;
    ca_module_t module = {
        .path = at,
        .bias = (uintptr_t)entry.bias,
        .low = (uintptr_t)entry.low,
        .high = (uintptr_t)entry.high,
        .build_id_bytes = entry.build_id_bytes,
        .from = entry.from,
    };
    memcpy(module.build_id, entry.build_id, sizeof module.build_id);
    ca_modules_put(&module);
}

static void read_entry(reader_t *reader, const ca_entry_t *entry, const char *at)
{
    size_t left = entry->bytes - sizeof *entry;
    ca_entry_unloaded_t unloaded;
    ca_entry_thread_t thread;
    switch (entry->kind) {
    case CA_ENTRY_STACK:
        read_stack(reader, at, left);
        break;
    case CA_ENTRY_MODULE:
        read_module(at, left);
        break;
    case CA_ENTRY_UNLOADED:
        if (take(&at, &left, &unloaded, sizeof unloaded))
            ca_modules_put_unloaded((uintptr_t)unloaded.bias, unloaded.from, unloaded.until);
        break;
    case CA_ENTRY_THREAD:
        if (take(&at, &left, &thread, sizeof thread) && thread.thread != 0) {
            thread.name[sizeof thread.name - 1] = '\0';
            ca_threads_put(thread.thread, thread.name);
        }
        break;
    case CA_ENTRY_CODE:
        read_code(reader, at, left);
        break;
    case CA_ENTRY_SITE:
        read_site(reader, at, left);
        break;
    default: /* of a later version that can be read all the same */
        break;
    }
}

static void read_log(reader_t *reader, const char *at, size_t left)
{
    ca_entry_t entry;
    while (left >= sizeof entry) {
        memcpy(&entry, at, sizeof entry);
        if (entry.kind == 0 || entry.bytes < sizeof entry || entry.bytes % 8 != 0 ||
            entry.bytes > left)
            return;
        read_entry(reader, &entry, at + sizeof entry);
        at += entry.bytes;
        left -= entry.bytes;
    }
}

/* --- records ---------------------------------------------------------------------------------- */

static void read_record(const reader_t *reader, uint64_t key, const char *at,
                        ca_journal_read_t *read)
{
    ca_allocation_t record;
    memcpy(&record, at, sizeof record);
    if (key == CA_JOURNAL_CLAIMED || record.address != key || record.kind >= CA_KIND_COUNT)
        return;
    if (record.shared)
        record.stream = 0; /* which then is something else */
    record.shared = CA_SHARED_NOT;
    record.context = 0;
    record.owner = NULL;
    record.stack = record.stack != 0 && record.stack <= reader->stack_most
                       ? reader->stacks[record.stack - 1]
                       : 0;
    read->records += ca_registry_insert(&record) == 0;
}

static void read_table(const reader_t *reader, const ca_journal_chunk_t *chunk, const char *at,
                       ca_journal_read_t *read)
{
    size_t key_bytes = chunk->buckets * sizeof(uint64_t);
    if (chunk->bytes < key_bytes + chunk->buckets * sizeof(ca_allocation_t))
        return;
    for (size_t i = 0; i < chunk->buckets; i++) {
        uint64_t key;
        memcpy(&key, at + i * sizeof key, sizeof key);
        if (key != 0)
            read_record(reader, key, at + key_bytes + i * sizeof(ca_allocation_t), read);
    }
}

/* --- all of it -------------------------------------------------------------------------------- */

/* The logs first: records refer to them. */
static void read_chunks(reader_t *reader, ca_journal_read_t *read)
{
    uint32_t count = reader->head->chunk_count;
    for (int pass = CA_JOURNAL_LOG; pass >= CA_JOURNAL_TABLE; pass--) {
        uint64_t end = CA_JOURNAL_HEAD_BYTES;
        for (uint32_t i = 0; i < count && i < CA_JOURNAL_CHUNKS; i++) {
            const ca_journal_chunk_t *chunk = &reader->head->chunks[i];
            const char *at = chunk_bytes(reader, chunk, &end);
            read->missing += !at && pass == CA_JOURNAL_LOG; /* once in both passes */
            if (!at || (int)chunk->kind != pass)
                continue;
            if (pass == CA_JOURNAL_LOG)
                read_log(reader, at, chunk->bytes);
            else
                read_table(reader, chunk, at, read);
        }
    }
}

static void copy_text(char *to, size_t bytes, const char *from)
{
    memcpy(to, from, bytes);
    to[bytes - 1] = '\0';
}

static void read_head(const ca_journal_head_t *head, ca_journal_read_t *read)
{
    copy_text(read->program, sizeof read->program, head->program);
    copy_text(read->host, sizeof read->host, head->host);
    copy_text(read->rank, sizeof read->rank, head->rank);
    copy_text(read->unwinder, sizeof read->unwinder, head->unwinder);
    copy_text(read->version, sizeof read->version, head->library);
    read->lost = head->lost;
    read->unlogged = head->unlogged;
    read->origin = (ca_origin_t){
        .pid = (long)head->pid,
        .program = read->program,
        .host = read->host,
        .rank = read->rank,
        .unwinder = read->unwinder,
        .version = read->version,
        .start_s = head->start_s,
        .stack_depth = head->stack_depth,
        .sampled = (size_t)head->sampled,
        .peak_bytes = head->peak,
    };
}

static uint32_t as_many(size_t count)
{
    return count < NUMBERS_MOST ? (uint32_t)count : NUMBERS_MOST;
}

/* Mapped pages are had when they are written, so that the most costs nothing. */
static int map_tables(reader_t *reader)
{
    reader->stacks = ca_mem_map(reader->stack_most * sizeof *reader->stacks);
    reader->codes = ca_mem_map(reader->code_most * sizeof *reader->codes);
    reader->sites = ca_mem_map(reader->site_most * sizeof *reader->sites);
    return reader->stacks && reader->codes && reader->sites ? 0 : -ENOMEM;
}

static void unmap_tables(reader_t *reader)
{
    ca_mem_unmap(reader->stacks, reader->stack_most * sizeof *reader->stacks);
    ca_mem_unmap(reader->codes, reader->code_most * sizeof *reader->codes);
    ca_mem_unmap(reader->sites, reader->site_most * sizeof *reader->sites);
}

int ca_journal_read(const char *path, ca_journal_read_t *read, ca_text_t *why)
{
    memset(read, 0, sizeof *read);
    int error = copy_file(path, read);
    if (error == -EINVAL)
        ca_text_printf(why, "it is no journal");
    if (error)
        return error;
    reader_t reader = {
        .bytes = read->copy,
        .size = read->copy_bytes,
        .head = (const ca_journal_head_t *)(const void *)read->copy,
        .stack_most = as_many(read->copy_bytes / sizeof(ca_entry_stack_t)),
        .code_most = as_many(read->copy_bytes / sizeof(ca_entry_code_t)),
        .site_most = as_many(read->copy_bytes / sizeof(ca_entry_site_t)),
    };
    error = check_head(&reader, why);
    if (!error) {
        error = map_tables(&reader);
    }
    if (!error) {
        ca_modules_put_begin();
        ca_threads_put_begin();
        read_head(reader.head, read);
        read_chunks(&reader, read);
        unmap_tables(&reader);
        return 0;
    }
    ca_mem_unmap(read->copy, read->copy_bytes);
    return error;
}

void ca_journal_read_end(ca_journal_read_t *read)
{
    ca_allocation_t *records, record;
    size_t count;
    unsigned busy;
    if (ca_registry_snapshot(&records, &count, &busy) == 0) {
        for (size_t i = 0; i < count; i++)
            ca_registry_take(records[i].address, &record);
        ca_registry_snapshot_free(records, count);
    }
    ca_mem_unmap(read->copy, read->copy_bytes);
}
