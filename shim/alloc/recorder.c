/* Records allocations and frees: see record.h.
 *
 * An event is a claimed place in a table and a few stores: no lock, no I/O; the file is written at
 * exit, in one go. An allocation's id is its number in the registry, which never comes again, as
 * addresses do. What goes with its context is not freed in the trace, nor what its end comes
 * before. */
#include "shim/alloc/recorder.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "base/thread_state.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/atomic_file.h"
#include "config/options.h"
#include "base/path.h"
#include "base/text.h"

typedef struct event {
    uint64_t id;
    uint64_t bytes; /* 0: a free */
    uint64_t stream;
    _Atomic uint64_t written; /* microseconds since the start and 1; 0: not there yet */
} event_t;

#define SHOWN_PATH 400 /* bytes of a path in a message */
#define TABLE_BYTES (CA_RECORD_MOST * sizeof(event_t))

_Atomic bool ca_recorder_on;

static event_t *table;
static _Atomic size_t claimed;
static uint64_t began;         /* microseconds */
static char pattern[PATH_MAX]; /* patterns of the process still in it */

static uint64_t now_us(void)
{
    return ca_clock_ns() / 1000u;
}

void ca_recorder_configure(void)
{
    ca_text_t text;
    if (strcmp(ca_options.record, "off") == 0)
        return;
    ca_text_init(&text, pattern, sizeof pattern);
    ca_path_expand_here(ca_options.record, &text);
    table = text.length < text.bytes ? ca_mem_map(TABLE_BYTES) : NULL;
    if (!table) {
        ca_warn("record: %s: nothing is recorded",
                text.length < text.bytes ? "no host memory" : "the path is too long");
        return;
    }
    began = now_us();
    atomic_store(&ca_recorder_on, true);
}

/* What the pool serves, or would: other kinds are not the replay's. */
static bool wanted(const ca_allocation_t *record)
{
    return record->kind == CA_KIND_DEVICE || record->kind == CA_KIND_PITCHED ||
           record->kind == CA_KIND_ASYNC;
}

static void add(const ca_allocation_t *record, size_t bytes)
{
    size_t at = atomic_fetch_add_explicit(&claimed, 1, memory_order_relaxed);
    if (at >= CA_RECORD_MOST) {
        atomic_store_explicit(&ca_recorder_on, false, memory_order_relaxed);
        ca_warn_once("record: the trace is full; what comes from here on is not in it");
        return;
    }
    event_t *event = &table[at];
    event->id = record->sequence;
    event->bytes = bytes;
    event->stream = ca_registry_stream(record);
    atomic_store_explicit(&event->written, now_us() - began + 1, memory_order_release);
}

void ca_recorder_alloc(const ca_allocation_t *record)
{
    ca_allocation_t numbered;
    /* The registry has numbered its copy. */
    if (wanted(record) && ca_registry_find(record->address, &numbered))
        add(&numbered, numbered.bytes);
}

void ca_recorder_free(const ca_allocation_t *record)
{
    if (wanted(record) && !record->shared)
        add(record, 0);
}

static int write_events(ca_out_t *out, int fd)
{
    size_t count = atomic_load(&claimed);
    ca_out_open(out, fd);
    ca_out_printf(out, "op,id,size,stream,t\n");
    for (size_t i = 0; i < count && i < CA_RECORD_MOST; i++) {
        const event_t *event = &table[i];
        uint64_t written = atomic_load_explicit(&event->written, memory_order_acquire);
        if (written) /* another thread may be at it */
            ca_out_printf(out, "%c,%llu,%llu,%llu,%llu\n", event->bytes ? 'a' : 'f',
                          (unsigned long long)event->id, (unsigned long long)event->bytes,
                          (unsigned long long)event->stream, (unsigned long long)(written - 1));
    }
    return ca_out_flush(out);
}

static void escape(char shown[SHOWN_PATH], const char *path)
{
    ca_text_t text;
    ca_text_init(&text, shown, SHOWN_PATH);
    ca_text_escape(&text, path, strlen(path), SHOWN_PATH - 1);
}

static int name_file(ca_atomic_file_t *file, char *path, size_t bytes)
{
    char wanted[SHOWN_PATH], used[SHOWN_PATH];
    unsigned tried;
    escape(wanted, path);
    int error = ca_new_file_name(file, pattern, path, bytes, &tried);
    if (!error && tried > 1 && !ca_path_is_numbered(pattern)) {
        escape(used, path);
        ca_warn("record: %s exists, so the trace is in %s", wanted, used);
    }
    return error;
}

static int write_file(ca_out_t *out, char *path, size_t bytes)
{
    static ca_atomic_file_t file;
    struct stat found;
    int error = ca_new_file_path(pattern, 0, path, bytes);
    /* Beside a device or a pipe there would be a file that was not meant. */
    if (!error && lstat(path, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISLNK(found.st_mode))
        error = S_ISDIR(found.st_mode) ? -EISDIR : -ENOTSUP;
    if (!error)
        error = ca_atomic_file_begin(&file, path);
    if (error)
        return error;
    error = write_events(out, file.fd);
    int ended = ca_atomic_file_end(&file);
    if (!error)
        error = ended;
    if (!error)
        error = name_file(&file, path, bytes);
    ca_atomic_file_discard(&file);
    return error;
}

void ca_recorder_write(ca_out_t *out)
{
    static char path[PATH_MAX]; /* not on the stack of the thread that calls exit */
    char shown[SHOWN_PATH];
    if (!table || atomic_load(&claimed) == 0)
        return;
    atomic_store(&ca_recorder_on, false);
    int cancel = ca_cancel_hold(); /* a temporary file would be left */
    int error = write_file(out, path, sizeof path);
    escape(shown, path);
    if (error)
        ca_warn("record: cannot write %s (%s): the trace is lost", shown, strerror(-error));
    else
        ca_info("record: the trace is in %s", shown);
    ca_cancel_resume(cancel);
}

void ca_recorder_reset_after_fork(void)
{
    /* As fresh from mmap: zero. */
    if (table && madvise(table, TABLE_BYTES, MADV_DONTNEED) != 0)
        atomic_store(&ca_recorder_on, false);
    atomic_store(&claimed, 0);
}
