/* The verified memo of call stacks.
 *
 * What an unwinding finds depends on where it starts and on the stack words that it reads. Both are
 * remembered with the stack's id: from the same return address and the same place on the stack,
 * with the same values in those words, an unwinding would read the same words and find the same
 * frames. All words are compared, not return addresses alone: what looks like an old return address
 * may lie in what is another frame's variable now, and it is the other words that tell.
 *
 * Stacks with one start are a tree. As long as the values agree, so do the places read, since they
 * follow from them; at the first word whose value differs, the search goes on with the next stack
 * that agreed up to there, at that word, so that none is compared twice. Where several differ in
 * one word, as those do that lead through one wrapper, that word is learned: from then on its value
 * chooses among trees. It need not be right in that: the stacks in each are compared in full.
 *
 * All this is a thread's own and needs no lock. The words lie between the start and the end of the
 * thread's stack, which was made sure of when they were noted, so reading them is safe. A start
 * elsewhere (an alternate signal stack, a coroutine) is not remembered.
 *
 * Code that is unloaded takes its unwind information along, and nobody tells us; but a thread that
 * keeps a stack looks whether objects were loaded since, and starts anew if so. Until then, another
 * object's code would need a return address at the very same place and the same values in the words
 * that the old one's information named; this thread's cache in libunwind, which goes by the return
 * address alone and was filled when the stack was kept, then gives the same frames. So the memo is
 * never more wrong than unwinding would be.
 *
 * An entry costs half a microsecond for each frame, as much as dozens of captures. So a thread
 * starts with its first few captures unkept and then with credit for some entries; further ones
 * must be earned by hits. */
#include "registry/memo.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "config/cancel.h"
#include "config/lock.h"
#include "config/mem.h"
#include "config/mutation.h"
#include "registry/unwind_words.h"

#define HEADS 512u      /* starts, of all stacks */
#define PROBES 4u       /* places where a start may be */
#define UNITS 8192u     /* of 16 bytes, for the stacks */
#define TRIED_MOST 32   /* stacks, for one capture */
#define SIBLINGS_MOST 3 /* that differ in one word, before it is learned */
#define LEARNED_MOST 4  /* words, for one start */
#define REFUSALS_MOST 4 /* of one start, before it is given up */

/* An entry takes what this many captures without one would, and a hit saves. A miss counts a
 * little, so that what has changed for good is noticed. */
#define KEEP_COST 64u
#define START_CREDIT (128u * KEEP_COST)
#define MISSES_PER_CREDIT 4u
#define UNKEPT 8 /* captures of a thread, before it remembers any */

typedef struct word {
    uintptr_t value;
    uint32_t offset; /* from the start, in words */
    uint32_t other;  /* the entry to go on with where the value differs, 0 for none */
} word_t;

/* Followed by its words. Counted in units, as those are. */
typedef struct entry {
    uint32_t id;
    uint32_t count;
    uint64_t unused;
} entry_t;

_Static_assert(sizeof(word_t) == 16 && sizeof(entry_t) == 16, "units");

typedef union unit {
    word_t word;
    entry_t entry;
} unit_t;

/* A tree of stacks with one start. */
typedef struct head {
    uintptr_t caller, frame; /* 0: free */
    uintptr_t value;         /* of the word that was learned last */
    uint8_t level;           /* how many were learned to come here */
    bool learned;            /* the stacks are one level up, by the value of the word at `offset` */
    uint16_t refusals;
    uint32_t offset;
    uint32_t first; /* entry */
} head_t;

typedef struct table {
    /* In use: a signal handler that comes in between leaves it alone. */
    bool busy;
    uint32_t epoch;
    uint32_t used;  /* units; the first is nobody's */
    uint64_t loads; /* ca_words_refresh's, when the first of its stacks was kept */
    size_t hits, misses, kept, spent;
    uintptr_t stack_low, stack_high;
    struct table *next_free;
    ca_words_t log;
    head_t heads[HEADS];
    unit_t units[UNITS];
} table_t;

static _Thread_local table_t *mine;
static _Thread_local uint8_t unkept;
static _Thread_local bool left; /* this thread's destructors have run, or there is no memory */

static _Atomic uint32_t epoch = 1;

static _Atomic enum { UNTRIED, USABLE, UNUSABLE } state;
static pthread_key_t thread_end;

/* Tables of threads that have ended. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_STACKS);
static table_t *free_tables;

static uint32_t now(void)
{
    return atomic_load_explicit(&epoch, memory_order_relaxed);
}

/* What a handler must not see out of order. */
static void set_busy(table_t *table, bool busy)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile bool *)&table->busy = busy;
    atomic_signal_fence(memory_order_seq_cst);
}

/* --- finding ---------------------------------------------------------------------------------- */

typedef uintptr_t __attribute__((may_alias)) stack_word_t;

static inline head_t *one_head(table_t *table, uintptr_t caller, uintptr_t frame, uint8_t level,
                               uintptr_t value, bool make)
{
    uint64_t hash = (caller ^ frame << 20 ^ value << 7) * 0x9e3779b97f4a7c15u;
    for (unsigned probe = 0; probe < PROBES; probe++) {
        head_t *head = &table->heads[(hash >> 40 ^ probe) % HEADS];
        if (head->caller == caller && head->frame == frame && head->value == value &&
            head->level == level)
            return head;
        if (head->caller == 0) {
            if (!make)
                return NULL;
            *head = (head_t){.caller = caller, .frame = frame, .value = value, .level = level};
            return head;
        }
    }
    return NULL;
}

/* The tree for the stack as it is now. The words are other functions' variables to sanitizers. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static inline head_t *
head_of(table_t *table, uintptr_t caller, uintptr_t frame, bool make)
{
    const stack_word_t *start = (const stack_word_t *)frame;
    head_t *head = one_head(table, caller, frame, 0, 0, make);
    while (head && head->learned)
        head = one_head(table, caller, frame, head->level + 1, start[head->offset], make);
    return head;
}

__attribute__((no_sanitize_address, no_sanitize_thread)) static uint32_t
search(const table_t *table, uint32_t at, const stack_word_t *start)
{
    uint32_t index = 0;
    for (unsigned tried = 0; at != 0 && tried < TRIED_MOST; tried++) {
        const entry_t *entry = &table->units[at].entry;
        const word_t *words = &table->units[at + 1].word;
        uint32_t count = entry->count;
        while (index < count && start[words[index].offset] == words[index].value)
            index++;
        if (index == count || CA_MUTATED(memo_unverified))
            return entry->id;
        at = words[index].other;
    }
    return 0;
}

uint32_t ca_memo_find(uintptr_t caller, uintptr_t frame)
{
    table_t *table = mine;
    if (!table || table->epoch != now() || table->busy)
        return 0;
    set_busy(table, true);
    const head_t *head = head_of(table, caller, frame, false);
    uint32_t id = head ? search(table, head->first, (const stack_word_t *)frame) : 0;
    if (id)
        table->hits++;
    else
        table->misses++;
    set_busy(table, false);
    return id;
}

/* --- keeping ---------------------------------------------------------------------------------- */

static void forget_all(table_t *table)
{
    memset(table->heads, 0, sizeof table->heads);
    table->used = 1;
    table->epoch = now();
}

static uint32_t offset_of(const ca_words_t *log, size_t index)
{
    return (uint32_t)((log->words[index].address - log->frame) / sizeof(uintptr_t));
}

/* Returns an entry for the words, or 0 where there is no room. */
static uint32_t write_entry(table_t *table, const ca_words_t *log, uint32_t id)
{
    uint32_t at = table->used;
    if (UNITS - at < log->count + 1)
        return 0;
    table->units[at].entry = (entry_t){.id = id, .count = (uint32_t)log->count};
    for (size_t i = 0; i < log->count; i++)
        table->units[at + 1 + i].word = (word_t){
            .value = log->words[i].value,
            .offset = offset_of(log, i),
        };
    table->used += (uint32_t)log->count + 1;
    return at;
}

/* Where an entry with the words belongs in the tree: a link that is 0. NULL where too many are in
 * the way, or what these words cannot follow or be followed by. */
static uint32_t *link_for(table_t *table, head_t *head, const ca_words_t *log)
{
    uint32_t *link = &head->first;
    uint32_t index = 0;
    for (unsigned tried = 0, siblings = 0; *link != 0; tried++) {
        uint32_t before = index, count = table->units[*link].entry.count;
        unit_t *words = &table->units[*link + 1];
        while (index < count && index < log->count &&
               words[index].word.value == log->words[index].value)
            index++;
        if (index == count || index == log->count || tried == TRIED_MOST ||
            words[index].word.offset != offset_of(log, index))
            return NULL;
        siblings = index == before ? siblings + 1 : 1;
        if (siblings > SIBLINGS_MOST && head->level < LEARNED_MOST) {
            head->learned = true;
            head->offset = offset_of(log, index);
            return NULL;
        }
        link = &words[index].word.other;
    }
    return link;
}

/* The fault: return addresses are enough. */
static void keep_returns(ca_words_t *log, void *const *frames, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0, frame = 1; i < log->count; i++)
        if (frame < count && log->words[i].value == (uintptr_t)frames[frame]) {
            log->words[kept++] = log->words[i];
            frame++;
        }
    log->count = kept;
}

/* False where there is no room. */
static bool keep(table_t *table, uintptr_t caller, uintptr_t frame, uint32_t id)
{
    uint32_t *link = NULL;
    while (!link) {
        head_t *head = head_of(table, caller, frame, true);
        if (!head)
            return false;
        link = link_for(table, head, &table->log);
        if (!link && !head->learned)
            return true;
    }
    uint32_t at = write_entry(table, &table->log, id);
    if (at == 0)
        return false;
    *link = at;
    table->kept++;
    return true;
}

static bool affordable(const table_t *table)
{
    size_t earned = START_CREDIT + table->hits + table->misses / MISSES_PER_CREDIT;
    return earned >= table->spent + KEEP_COST;
}

static void consider(table_t *table, uintptr_t caller, uintptr_t frame, void *const *frames,
                     size_t count, bool whole, uint32_t id)
{
    if (!affordable(table) || frame < table->stack_low || frame >= table->stack_high)
        return;
    uint64_t loads = ca_words_refresh();
    if (table->epoch != now() || table->loads != loads) {
        forget_all(table);
        table->loads = loads;
    }
    head_t *head = one_head(table, caller, frame, 0, 0, true);
    if (head && head->refusals >= REFUSALS_MOST)
        return;
    table->spent += KEEP_COST;
    ca_words_t *log = &table->log;
    log->caller = caller;
    log->frame = frame;
    log->stack_low = table->stack_low;
    log->stack_high = table->stack_high;
    if (!ca_words_unwind(log, frames, count, whole)) {
        if (head)
            head->refusals++;
        return;
    }
    if (CA_MUTATED(memo_returns_only))
        keep_returns(log, frames, count);
    if (!keep(table, caller, frame, id)) {
        forget_all(table);
        keep(table, caller, frame, id);
    }
}

/* --- tables ----------------------------------------------------------------------------------- */

static void recycle(table_t *table)
{
    ca_lock_take(&lock);
    table->next_free = free_tables;
    free_tables = table;
    ca_lock_drop(&lock);
}

static void leave(void *table)
{
    left = true;
    mine = NULL;
    recycle(table);
}

/* glibc's own allocates, and reads a file for the first thread: once per thread. */
static bool find_stack(table_t *table)
{
    pthread_attr_t attributes;
    void *low;
    size_t bytes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return false;
    bool found = pthread_attr_getstack(&attributes, &low, &bytes) == 0;
    pthread_attr_destroy(&attributes);
    if (!found)
        return false;
    table->stack_low = (uintptr_t)low;
    table->stack_high = (uintptr_t)low + bytes;
    return true;
}

static table_t *make_table(void)
{
    left = true; /* what is called here may bring us here again */
    ca_lock_take(&lock);
    table_t *table = free_tables;
    if (table)
        free_tables = table->next_free;
    ca_lock_drop(&lock);
    if (!table)
        table = ca_mem_map(sizeof *table);
    if (!table)
        return NULL;
    table->hits = table->misses = table->kept = table->spent = 0;
    table->busy = false;
    table->epoch = 0;
    if (!find_stack(table))
        table->stack_low = table->stack_high = 0; /* remembers nothing */
    if (pthread_setspecific(thread_end, table) != 0) {
        recycle(table);
        return NULL;
    }
    left = false;
    mine = table;
    return table;
}

void ca_memo_keep(uintptr_t caller, uintptr_t frame, void *const *frames, size_t count, bool whole,
                  uint32_t id)
{
    if (left || id == 0 || atomic_load_explicit(&state, memory_order_acquire) != USABLE)
        return;
    if (unkept < UNKEPT) {
        unkept++;
        return;
    }
    ca_lock_assert_none("unwinding");
    int saved = errno;
    /* The generic unwinder has locks of its own: see ca_unwind. */
    int cancel = ca_cancel_hold();
    table_t *table = mine ? mine : make_table();
    if (table && !table->busy) {
        set_busy(table, true);
        consider(table, caller, frame, frames, count, whole, id);
        set_busy(table, false);
    }
    ca_cancel_resume(cancel);
    errno = saved;
}

void ca_memo_start(void)
{
    if (atomic_load_explicit(&state, memory_order_relaxed) != UNTRIED)
        return;
    bool usable = ca_words_usable() && pthread_key_create(&thread_end, leave) == 0;
    atomic_store_explicit(&state, usable ? USABLE : UNUSABLE, memory_order_release);
}

void ca_memo_forget(void)
{
    atomic_fetch_add_explicit(&epoch, 1, memory_order_relaxed);
}

size_t ca_memo_hits(void)
{
    return mine ? mine->hits : 0;
}

size_t ca_memo_kept(void)
{
    return mine ? mine->kept : 0;
}

void ca_memo_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_STACKS);
    free_tables = NULL;
    ca_memo_forget();
}
