/* Records lie in hash tables: one of fixed size, and where that is crowded another, twice as large.
 * An address is looked for among the CA_JOURNAL_GROUP keys of its group in each, the newest first:
 * with no chain to follow, a key is just cleared when its record is removed. A thread that adds a
 * record claims a free key, writes the record and then the key; killed in between, it was not given
 * to the program yet.
 *
 * What never changes is logged: an entry counts once its head is there, which is written last.
 */
#include "registry/journal/journal.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/thread_state.h"
#include "base/clock.h"
#include "base/lock.h"
#include "registry/table/index.h"
#include "registry/journal/journal_file.h"
#include "registry/journal/mapped_file.h"
#include "registry/python/codes.h"
#include "registry/table/live.h"
#include "registry/stack/stack.h"
#include "registry/table/threads.h"
#include "registry/table/timeline.h"

#define TABLES 16u
#define LEAST_BUCKETS ((uint32_t)1 << 14)
#define LEAST_LOG ((size_t)256 << 10)
#define MOST_LOG ((size_t)16 << 20)
#define LOCK_WAIT_NS UINT64_C(2000000000)
#define ALLOCATION_WORDS (sizeof(ca_allocation_t) / sizeof(uint64_t))
#define SEQUENCE_WORD 2 /* of a record */

typedef struct table {
    _Atomic uint64_t *keys;
    _Atomic uint64_t (*records)[ALLOCATION_WORDS];
    uint32_t groups;
} table_t;

_Atomic bool ca_journal_on;

static ca_journal_head_t *head;
static ca_mapped_file_t file;

static table_t tables[TABLES]; /* added to under the lock */
static _Atomic uint32_t table_count;

/* The rank of what is taken last: stacks, stripes and the loader's lock may be held. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static char *log_at; /* under the lock, as is what follows */
static size_t log_left, log_bytes;
static _Atomic bool full;  /* the file grows no more */
static _Atomic bool stuck; /* the lock was in use for too long */

/* A signal handler that ends the process may have interrupted the thread that has it: waited for
 * once. Others wait for as long as a file system takes to find room. */
static bool take_lock(void)
{
    bool locked = ca_lock_try(&lock);
    uint64_t begin = locked ? 0 : ca_clock_ns();
    while (!locked && !atomic_load(&stuck)) {
        sched_yield();
        locked = ca_lock_try(&lock);
        if (!locked && ca_clock_ns() - begin > ca_bound(LOCK_WAIT_NS))
            atomic_store(&stuck, true);
    }
    return locked;
}

/* --- the file --------------------------------------------------------------------------------- */

/* A new chunk; NULL with errno where there is no room. Under the lock. */
static void *add_chunk(int kind, uint32_t buckets, uint64_t bytes)
{
    uint32_t count = atomic_load_explicit(&head->chunk_count, memory_order_relaxed);
    uint64_t offset = file.bytes;
    void *at = !atomic_load(&full) && count < CA_JOURNAL_CHUNKS
                   ? ca_mapped_file_extend(&file, bytes)
                   : NULL;
    int error = errno;
    if (at) {
        head->chunks[count] = (ca_journal_chunk_t){kind, buckets, offset, bytes};
        atomic_store_explicit(&head->chunk_count, count + 1, memory_order_release);
    } else {
        atomic_store(&full, true);
    }
    errno = error;
    return at;
}

/* Whether there are more tables now than `known`. */
static bool add_table(uint32_t known)
{
    bool added = true;
    int cancel = ca_cancel_hold(); /* a thread that vanishes would keep all locks that it has */
    if (!take_lock()) {
        ca_cancel_resume(cancel);
        return false;
    }
    uint32_t count = atomic_load_explicit(&table_count, memory_order_relaxed);
    if (count == known) {
        uint32_t buckets = count < TABLES ? LEAST_BUCKETS << count : 0;
        uint64_t keys = buckets * sizeof(uint64_t);
        char *at =
            buckets ? add_chunk(CA_JOURNAL_TABLE, buckets, keys + buckets * sizeof(ca_allocation_t))
                    : NULL;
        added = at != NULL;
        if (added) {
            tables[count] = (table_t){
                .keys = (_Atomic uint64_t *)(void *)at,
                .records = (_Atomic uint64_t(*)[ALLOCATION_WORDS])(void *)(at + keys),
                .groups = buckets / CA_JOURNAL_GROUP,
            };
            atomic_store_explicit(&table_count, count + 1, memory_order_release);
        }
    }
    ca_lock_drop(&lock);
    ca_cancel_resume(cancel);
    return added;
}

/* --- records ---------------------------------------------------------------------------------- */

/* The first key of the group of an address. */
static size_t group_of(const table_t *table, uint64_t address)
{
    return (ca_index_hash(address) >> 8 & (table->groups - 1)) * CA_JOURNAL_GROUP;
}

static bool put(table_t *table, const uint64_t *words)
{
    size_t first = group_of(table, words[0]);
    for (size_t i = first; i < first + CA_JOURNAL_GROUP; i++) {
        uint64_t key = atomic_load_explicit(&table->keys[i], memory_order_relaxed);
        if (key != 0 ||
            !atomic_compare_exchange_strong_explicit(&table->keys[i], &key, CA_JOURNAL_CLAIMED,
                                                     memory_order_acquire, memory_order_relaxed))
            continue;
        for (size_t word = 0; word < ALLOCATION_WORDS; word++)
            atomic_store_explicit(&table->records[i][word], words[word], memory_order_relaxed);
        atomic_store_explicit(&table->keys[i], words[0], memory_order_release);
        return true;
    }
    return false;
}

/* The key of that record, or NULL. */
static _Atomic uint64_t *find(table_t *table, const uint64_t *words)
{
    size_t first = group_of(table, words[0]);
    for (size_t i = first; i < first + CA_JOURNAL_GROUP; i++)
        if (atomic_load_explicit(&table->keys[i], memory_order_acquire) == words[0] &&
            atomic_load_explicit(&table->records[i][SEQUENCE_WORD], memory_order_relaxed) ==
                words[SEQUENCE_WORD])
            return &table->keys[i];
    return NULL;
}

static void note_peak(void)
{
    uint64_t peak = ca_registry_peak_bytes();
    uint64_t before = atomic_load_explicit(&head->peak, memory_order_relaxed);
    while (before < peak && !atomic_compare_exchange_weak(&head->peak, &before, peak))
        ;
}

static void add(const ca_allocation_t *record, uint64_t sequence)
{
    uint64_t words[ALLOCATION_WORDS];
    ca_allocation_t copy = *record;
    copy.sequence = sequence;
    memcpy(words, &copy, sizeof copy);
    int saved = errno;
    note_peak();
    for (;;) {
        uint32_t count = atomic_load_explicit(&table_count, memory_order_acquire);
        for (uint32_t i = count; i-- > 0;)
            if (put(&tables[i], words))
                return;
        if (atomic_load_explicit(&full, memory_order_relaxed) || !add_table(count))
            break;
        errno = saved;
    }
    errno = saved;
    atomic_fetch_add_explicit(&head->lost, 1, memory_order_relaxed);
}

static void take_out(const ca_allocation_t *record)
{
    uint64_t words[ALLOCATION_WORDS];
    memcpy(words, record, sizeof *record);
    for (uint32_t i = atomic_load_explicit(&table_count, memory_order_acquire); i-- > 0;) {
        _Atomic uint64_t *key = find(&tables[i], words);
        if (key) {
            atomic_store_explicit(key, 0, memory_order_release);
            return;
        }
    }
}

static bool has(const ca_allocation_t *record)
{
    uint64_t words[ALLOCATION_WORDS];
    bool found = false;
    memcpy(words, record, sizeof *record);
    for (uint32_t i = atomic_load_explicit(&table_count, memory_order_acquire); i-- > 0;)
        found |= find(&tables[i], words) != NULL;
    return found;
}

/* A thread that frees it meanwhile found nothing to remove. */
static void add_live(const ca_allocation_t *record)
{
    ca_allocation_t now;
    if (has(record))
        return;
    add(record, record->sequence);
    if (!ca_registry_find(record->address, &now) || now.sequence != record->sequence)
        take_out(record);
}

/* --- the log ---------------------------------------------------------------------------------- */

static bool add_log(size_t bytes)
{
    log_bytes = bytes;
    log_at = add_chunk(CA_JOURNAL_LOG, 0, bytes);
    log_left = log_at ? bytes : 0;
    return log_at != NULL;
}

/* Room for an entry; NULL where there is none. Under the lock. */
static char *take_space(size_t bytes)
{
    if (log_left < bytes && !add_log(log_bytes < MOST_LOG ? log_bytes * 2 : log_bytes))
        return NULL;
    char *at = log_at;
    log_at += bytes;
    log_left -= bytes;
    return at;
}

/* What is written one behind the other. */
typedef struct piece {
    const void *at;
    size_t bytes;
} piece_t;

static void append_pieces(ca_entry_kind_t kind, const piece_t *pieces, size_t count)
{
    size_t bytes = sizeof(ca_entry_t);
    for (size_t i = 0; i < count; i++)
        bytes += pieces[i].bytes;
    bytes = (bytes + 7) / 8 * 8;
    ca_entry_t entry = {kind, (uint32_t)bytes};
    uint64_t word;
    if (!atomic_load_explicit(&ca_journal_on, memory_order_relaxed))
        return;
    memcpy(&word, &entry, sizeof word);
    int saved = errno, cancel = ca_cancel_hold();
    bool locked = take_lock();
    char *at = locked ? take_space(bytes) : NULL;
    if (at) {
        char *to = at + sizeof entry;
        for (size_t i = 0; i < count; to += pieces[i++].bytes)
            if (pieces[i].bytes)
                memcpy(to, pieces[i].at, pieces[i].bytes);
        atomic_store_explicit((_Atomic uint64_t *)(void *)at, word, memory_order_release);
    } else {
        atomic_fetch_add_explicit(&head->unlogged, 1, memory_order_relaxed);
    }
    if (locked)
        ca_lock_drop(&lock);
    ca_cancel_resume(cancel);
    errno = saved;
}

static void append(ca_entry_kind_t kind, const void *fixed, size_t fixed_bytes, const void *more,
                   size_t more_bytes)
{
    append_pieces(kind, (const piece_t[]){{fixed, fixed_bytes}, {more, more_bytes}}, 2);
}

static void note_code(uint32_t number, const char *function, const char *file)
{
    const ca_entry_code_t code = {number, (uint32_t)strlen(function) + 1};
    append_pieces(CA_ENTRY_CODE,
                  (const piece_t[]){{&code, sizeof code},
                                    {function, code.function_bytes},
                                    {file, strlen(file) + 1}},
                  3);
}

static void note_site(uint32_t number, uint32_t code, unsigned line)
{
    const ca_entry_site_t site = {.number = number, .code = code, .line = line};
    append(CA_ENTRY_SITE, &site, sizeof site, NULL, 0);
}

static const ca_py_listener_t python = {note_code, note_site};

static void note_stack(uint32_t id, uint32_t epoch, const uintptr_t *frames, size_t count)
{
    const ca_entry_stack_t stack = {.id = id, .count = (uint32_t)count, .epoch = epoch};
    if (!atomic_load_explicit(&ca_journal_on, memory_order_relaxed))
        return;
    if (id == 1)
        snprintf(head->unwinder, sizeof head->unwinder, "%s", ca_stack_unwinder());
    append(CA_ENTRY_STACK, &stack, sizeof stack, frames, count * sizeof *frames);
}

/* What another process would open: the loader's name may be relative, and the program's empty. */
static void find_path(const char *name, char path[PATH_MAX])
{
    static const char deleted[] = " (deleted)";
    path[0] = '\0';
    if (name[0] == '\0') {
        ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
        path[length > 0 ? length : 0] = '\0';
        size_t suffix = sizeof deleted - 1, bytes = strlen(path);
        if (bytes > suffix && strcmp(path + bytes - suffix, deleted) == 0)
            path[bytes - suffix] = '\0';
    } else if (name[0] != '/' && strchr(name, '/') && getcwd(path, PATH_MAX)) {
        size_t length = strlen(path);
        snprintf(path + length, PATH_MAX - length, "/%s", name);
    } else {
        snprintf(path, PATH_MAX, "%s", name);
    }
}

static void note_module(const ca_module_t *module)
{
    static char path[PATH_MAX]; /* one thread notes modules at a time */
    ca_entry_module_t entry = {
        .bias = module->bias,
        .low = module->low,
        .high = module->high,
        .from = module->from,
        .build_id_bytes = (uint32_t)module->build_id_bytes,
    };
    if (!atomic_load_explicit(&ca_journal_on, memory_order_relaxed))
        return;
    memcpy(entry.build_id, module->build_id, sizeof entry.build_id);
    find_path(module->path, path);
    append(CA_ENTRY_MODULE, &entry, sizeof entry, path, strlen(path) + 1);
}

static void note_closed(const ca_module_t *module)
{
    const ca_entry_unloaded_t unloaded = {
        .bias = module->bias,
        .from = module->from,
        .until = atomic_load_explicit(&module->until, memory_order_relaxed),
    };
    append(CA_ENTRY_UNLOADED, &unloaded, sizeof unloaded, NULL, 0);
}

static void note_thread(uint32_t thread, const char name[CA_THREAD_NAME])
{
    ca_entry_thread_t entry = {.thread = thread};
    snprintf(entry.name, sizeof entry.name, "%s", name);
    append(CA_ENTRY_THREAD, &entry, sizeof entry, NULL, 0);
}

/* --- what was known before -------------------------------------------------------------------- */

static void note_stacks(void)
{
    uintptr_t frames[CA_STACK_MAX];
    uint32_t known = (uint32_t)ca_stack_count();
    for (uint32_t id = 1; id <= known; id++) {
        size_t count = ca_stack_frames(id, frames, CA_STACK_MAX);
        note_stack(id, ca_stack_epoch(id), frames, count);
    }
}

static void add_live_records(void)
{
    ca_allocation_t *records;
    size_t count;
    unsigned busy;
    if (ca_registry_snapshot(&records, &count, &busy) != 0)
        return;
    for (size_t i = 0; i < count; i++)
        add_live(&records[i]);
    ca_registry_snapshot_free(records, count);
}

void ca_journal_add_all(void)
{
    ca_modules_notify_all();
    ca_threads_notify_all();
    ca_py_notify_all(&python);
    note_stacks();
    add_live_records();
}

/* --- from start to end ------------------------------------------------------------------------ */

static void describe(const ca_journal_about_t *about)
{
    memcpy(head->magic, CA_JOURNAL_MAGIC, sizeof head->magic);
    head->version = CA_JOURNAL_VERSION;
    head->record_bytes = sizeof(ca_allocation_t);
    head->pid = (uint32_t)getpid();
    head->stack_depth = about->stack_depth;
    head->sampled = about->sampled;
    head->start_s = ca_timeline_start_s(); /* by which two reports are known to be of one process */
    snprintf(head->library, sizeof head->library, "%s", about->version);
    snprintf(head->program, sizeof head->program, "%s", program_invocation_short_name);
    snprintf(head->rank, sizeof head->rank, "%s", about->rank);
    if (gethostname(head->host, sizeof head->host - 1) != 0)
        head->host[0] = '\0';
    snprintf(head->unwinder, sizeof head->unwinder, "%s", ca_stack_unwinder());
}

static void listen_to_all(void)
{
    static const ca_registry_listener_t records = {add, take_out};
    static const ca_modules_listener_t modules = {note_module, note_closed};
    ca_modules_listen(&modules);
    ca_py_listen(&python);
    ca_stack_listen(note_stack);
    ca_threads_listen(note_thread);
    ca_registry_listen(&records);
}

static void listen_no_more(void)
{
    ca_registry_listen(NULL);
    ca_threads_listen(NULL);
    ca_stack_listen(NULL);
    ca_py_listen(NULL);
    ca_modules_listen(NULL);
}

int ca_journal_start(const ca_journal_about_t *about, char *path, size_t bytes, unsigned *tried)
{
    int error = ca_mapped_file_create(&file, about->expanded, path, bytes, tried);
    if (error)
        return error;
    errno = ENOSPC;
    head = ca_mapped_file_extend(&file, CA_JOURNAL_HEAD_BYTES);
    if (!head || !add_log(LEAST_LOG) || !add_table(0)) {
        error = -errno;
        unlink(path);
        return error;
    }
    describe(about);
    atomic_store(&ca_journal_on, true);
    listen_to_all();
    return 0;
}

void ca_journal_end(void)
{
    int saved = errno, cancel = ca_cancel_hold();
    if (atomic_load(&ca_journal_on))
        ca_mapped_file_remove(&file);
    ca_cancel_resume(cancel);
    errno = saved;
}

void ca_journal_reset_after_fork(void)
{
    atomic_store(&ca_journal_on, false);
    listen_no_more();
    /* The mappings stay: a thread that is not here may have been in the middle of growing them. */
    ca_lock_init(&lock, CA_RANK_MEMORY);
    atomic_store(&table_count, 0);
    atomic_store(&full, false);
    atomic_store(&stuck, false);
    log_left = log_bytes = 0;
    head = NULL;
}
