/* The verified cache of call stacks.
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
 * thread's stack, which was made sure of when they were noted, so reading them is safe, and some
 * may be read beyond the first that differs. Another stack (a coroutine's, a signal handler's) may
 * be unmapped, and a smaller one be in its place: of such a one no word is read before all those
 * that lead to it agree. Then it lies in a frame that is live, as it did when it was noted.
 *
 * Code that is unloaded takes its unwind information along: everything is then forgotten
 * (unload.c), and nothing found or kept as long as a library is being closed. Where one is closed
 * behind our back, a thread that keeps a stack notices that objects were loaded since, and starts
 * anew.
 *
 * An entry costs half a microsecond for each frame, as much as dozens of captures. So a thread
 * starts with its first few captures unkept and then with credit for some entries; further ones
 * must be earned by cache hits. */
#include "registry/stack/stack_cache.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/thread_state.h"
#include "base/lock.h"
#include "base/mutation.h"
#include "registry/stack/stack_cache_tables.h"
#include "registry/stack/unwind_words.h"

#define HEADS CA_STACK_CACHE_HEADS
#define UNITS CA_STACK_CACHE_UNITS
#define PROBES 4u       /* places where a start may be */
#define AT_A_TIME 4u    /* words that are compared */
#define TRIED_MOST 32   /* stacks, for one capture */
#define SIBLINGS_MOST 3 /* that differ in one word, before it is learned */
#define LEARNED_MOST 4  /* words, for one start */
#define REFUSALS_MOST 4 /* of one start, before it is given up */

/* An entry takes what this many captures without one would, and a cache hit saves. A miss counts a
 * little, so that what has changed for good is noticed. */
#define KEEP_COST 64u
#define START_CREDIT (128u * KEEP_COST)
#define MISSES_PER_CREDIT 4u
#define UNKEPT 8 /* captures of a thread, before it remembers any */

static _Thread_local uint8_t unkept;

/* Where a table has another one, its stacks do not count. Counted in twos: the lowest bit, which no
 * table has, keeps ca_stack_cache_find from finding any. The upper part is how many are in
 * ca_stack_cache_suspend. */
static _Atomic uint64_t epoch = 2;
#define ASIDE UINT64_C(1)
#define ONE_ON UINT64_C(2)
#define SUSPENDED (UINT64_C(1) << 48)

static _Atomic bool lavish;

static _Atomic enum { UNTRIED, USABLE, UNUSABLE } state;

static inline uint64_t word(void)
{
    return atomic_load_explicit(&epoch, memory_order_relaxed);
}

static inline uint64_t now(void)
{
    return word() & ~ASIDE;
}

/* --- finding ---------------------------------------------------------------------------------- */

typedef uintptr_t __attribute__((may_alias)) stack_word_t;

static inline size_t place_of(uintptr_t caller, uintptr_t frame, uintptr_t value)
{
    return ((caller ^ frame << 20 ^ value << 7) * 0x9e3779b97f4a7c15u) >> 40 & (HEADS - 1);
}

static inline ca_stack_cache_head_t *one_head(ca_stack_cache_table_t *table, uintptr_t caller,
                                              uintptr_t frame, uint8_t level, uintptr_t value,
                                              bool make)
{
    size_t place = place_of(caller, frame, value);
    for (unsigned probe = 0; probe < PROBES; probe++) {
        ca_stack_cache_head_t *head = &table->heads[place ^ probe];
        if (head->caller == caller && head->frame == frame && head->value == value &&
            head->level == level)
            return head;
        if (head->caller == 0) {
            if (!make)
                return NULL;
            *head = (ca_stack_cache_head_t){
                .caller = caller, .frame = frame, .value = value, .level = level};
            return head;
        }
    }
    return NULL;
}

/* The tree for the stack as it is now. The words are other functions' variables to sanitizers. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static inline ca_stack_cache_head_t *
head_of(ca_stack_cache_table_t *table, uintptr_t caller, uintptr_t frame, bool make)
{
    const stack_word_t *start = (const stack_word_t *)frame;
    ca_stack_cache_head_t *head = one_head(table, caller, frame, 0, 0, make);
    while (head && head->learned)
        head = one_head(table, caller, frame, head->level + 1, start[head->offset], make);
    return head;
}

/* One branch for them all: most words agree. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static inline bool
four_agree(const ca_stack_cache_word_t *words, const stack_word_t *start)
{
    uintptr_t first = start[words[0].offset] ^ words[0].value;
    uintptr_t second = start[words[1].offset] ^ words[1].value;
    uintptr_t third = start[words[2].offset] ^ words[2].value;
    uintptr_t fourth = start[words[3].offset] ^ words[3].value;
    return (first | second | third | fourth) == 0;
}

__attribute__((no_sanitize_address, no_sanitize_thread)) static uint32_t
search(const ca_stack_cache_table_t *table, uint32_t at, const stack_word_t *start)
{
    uint32_t index = 0;
    for (unsigned tried = 0; at != 0 && tried < TRIED_MOST; tried++) {
        const ca_stack_cache_entry_t *entry = &table->units[at].entry;
        const ca_stack_cache_word_t *words = &table->units[at + 1].word,
                                    *end = words + entry->padded;
        const ca_stack_cache_word_t *word = words + index - index % AT_A_TIME;
        while (word != end && four_agree(word, start))
            word += AT_A_TIME;
        if (word == end || CA_MUTATED(stack_unverified))
            return entry->id;
        while (start[word->offset] == word->value)
            word++;
        index = (uint32_t)(word - words);
        at = word->other;
    }
    return 0;
}

/* Marked as busy by the caller. */
static __attribute__((noinline)) uint32_t find(ca_stack_cache_table_t *table, uintptr_t caller,
                                               uintptr_t frame)
{
    const ca_stack_cache_head_t *head = head_of(table, caller, frame, false);
    uint32_t id = head ? search(table, head->first, (const stack_word_t *)frame) : 0;
    if (id)
        table->hits++;
    else
        table->misses++;
    ca_stack_cache_set_busy(table, false);
    return id;
}

/* The first stack that starts here, at the first place where a start may be; for others `find`. */
__attribute__((no_sanitize_address, no_sanitize_thread, always_inline)) static inline uint32_t
find_at(uintptr_t caller, uintptr_t frame, bool aside)
{
    ca_stack_cache_table_t *table = ca_stack_cache_of_thread;
    if (!table || table->epoch != (aside ? now() : word()) || table->busy)
        return 0;
    ca_stack_cache_set_busy(table, true);
    const ca_stack_cache_head_t *head = &table->heads[place_of(caller, frame, 0)];
    if (head->caller != caller || head->frame != frame || (head->level | head->learned) != 0)
        return find(table, caller, frame);
    const ca_stack_cache_entry_t *entry = &table->units[head->first].entry;
    uint32_t id = entry->id; /* 0 where there is none */
    const ca_stack_cache_word_t *word = (const ca_stack_cache_word_t *)(entry + 1),
                                *end = word + entry->padded;
    while (word != end && four_agree(word, (const stack_word_t *)frame))
        word += AT_A_TIME;
    if (word != end || id == 0)
        return find(table, caller, frame);
    table->hits++;
    ca_stack_cache_set_busy(table, false);
    return id;
}

uint32_t ca_stack_cache_find(uintptr_t caller, uintptr_t frame)
{
    return find_at(caller, frame, false);
}

uint32_t ca_stack_cache_find_aside(uintptr_t caller, uintptr_t frame)
{
    return find_at(caller, frame, true);
}

bool ca_stack_cache_is_aside(void)
{
    return word() & ASIDE;
}

void ca_stack_cache_set_aside(bool aside)
{
    if (aside)
        atomic_fetch_or(&epoch, ASIDE);
    else
        atomic_fetch_and(&epoch, ~ASIDE);
}

/* --- keeping ---------------------------------------------------------------------------------- */

static bool is_own(const ca_stack_cache_table_t *table, uintptr_t frame)
{
    return frame >= table->stack_low && frame < table->stack_high;
}

/* In how many places of an entry a word stands: where they are to be read one by one it fills all
 * that are compared at a time. One for all stacks with a start. */
static uint32_t copies(const ca_stack_cache_table_t *table, uintptr_t frame)
{
    return is_own(table, frame) ? 1 : AT_A_TIME;
}

static void forget_all(ca_stack_cache_table_t *table, uint64_t current)
{
    memset(table->heads, 0, sizeof table->heads);
    table->used = 1;
    table->epoch = current;
}

static uint32_t offset_of(const ca_words_t *log, size_t index)
{
    return (uint32_t)((log->words[index].address - log->start.frame) / sizeof(uintptr_t));
}

/* Returns an entry for the words, or 0 where there is no room. */
static uint32_t write_entry(ca_stack_cache_table_t *table, const ca_words_t *log, uint32_t id)
{
    uint32_t at = table->used;
    uint32_t each = copies(table, log->start.frame);
    uint32_t count = (uint32_t)log->count * each;
    uint32_t padded = (count + AT_A_TIME - 1) / AT_A_TIME * AT_A_TIME;
    if (UNITS - at < padded + 1)
        return 0;
    table->units[at].entry = (ca_stack_cache_entry_t){.id = id, .count = count, .padded = padded};
    for (uint32_t i = 0; i < padded; i++) {
        uint32_t from = i < count ? i / each : 0;
        table->units[at + 1 + i].word = (ca_stack_cache_word_t){
            .value = log->words[from].value,
            .offset = offset_of(log, from),
        };
    }
    table->used += padded + 1;
    return at;
}

/* Where an entry with the words belongs in the tree: a link that is 0. NULL where too many are in
 * the way, or what these words cannot follow or be followed by. */
static uint32_t *link_for(ca_stack_cache_table_t *table, ca_stack_cache_head_t *head,
                          const ca_words_t *log)
{
    uint32_t *link = &head->first;
    uint32_t index = 0, each = copies(table, log->start.frame);
    for (unsigned tried = 0, siblings = 0; *link != 0; tried++) {
        uint32_t before = index, count = table->units[*link].entry.count / each;
        ca_stack_cache_unit_t *words = &table->units[*link + 1];
        while (index < count && index < log->count &&
               words[index * each].word.value == log->words[index].value)
            index++;
        if (index == count || index == log->count || tried == TRIED_MOST ||
            words[index * each].word.offset != offset_of(log, index))
            return NULL;
        siblings = index == before ? siblings + 1 : 1;
        /* A word that is learned is read before any other. */
        if (siblings > SIBLINGS_MOST && head->level < LEARNED_MOST && each == 1) {
            head->learned = true;
            head->offset = offset_of(log, index);
            return NULL;
        }
        link = &words[index * each].word.other;
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
static bool keep(ca_stack_cache_table_t *table, uintptr_t caller, uintptr_t frame, uint32_t id)
{
    uint32_t *link = NULL;
    while (!link) {
        ca_stack_cache_head_t *head = head_of(table, caller, frame, true);
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

static bool affordable(const ca_stack_cache_table_t *table)
{
    size_t earned = START_CREDIT + table->hits + table->misses / MISSES_PER_CREDIT;
    return earned >= table->spent + KEEP_COST || lavish;
}

/* Known without the loader, whose lock all threads share. What was loaded since may unwind where
 * that did not: it is noticed with the next start that is not given up. */
static bool is_abandoned(ca_stack_cache_table_t *table, uint64_t current, uintptr_t caller,
                         uintptr_t frame)
{
    const ca_stack_cache_head_t *head =
        table->epoch == current ? one_head(table, caller, frame, 0, 0, false) : NULL;
    return head && head->refusals >= REFUSALS_MOST;
}

static void consider(ca_stack_cache_table_t *table, uintptr_t caller, uintptr_t frame,
                     void *const *frames, size_t count, bool whole, uint32_t id)
{
    uint64_t current = now();
    bool own = is_own(table, frame);
    uintptr_t high = own ? table->stack_high : ca_stack_cache_extent(table, frame);
    if (current >= SUSPENDED || !affordable(table) || high == 0 ||
        is_abandoned(table, current, caller, frame))
        return;
    uint64_t loads = ca_words_loads();
    if (table->epoch != current || table->loads != loads) {
        forget_all(table, current);
        /* A library in the place of another one that was closed where we do not see it. */
        if (table->loads != loads)
            table->rules = (ca_rules_t){0};
        table->loads = loads;
    }
    ca_stack_cache_head_t *head = one_head(table, caller, frame, 0, 0, true);
    table->spent += KEEP_COST;
    ca_words_t *log = &table->log;
    log->start = (ca_unwind_start_t){.caller = (uintptr_t)frames[0],
                                     .frame = frame,
                                     .stack_low = own ? table->stack_low : frame,
                                     .stack_high = high,
                                     .sure = own};
    if (!ca_words_unwind(log, &table->rules, frames, count, whole)) {
        if (head)
            head->refusals++;
        return;
    }
    if (CA_MUTATED(stack_returns_only))
        keep_returns(log, frames, count);
    if (!keep(table, caller, frame, id)) {
        forget_all(table, current);
        keep(table, caller, frame, id);
    }
}

void ca_stack_cache_keep(uintptr_t caller, uintptr_t frame, void *const *frames, size_t count,
                         bool whole, uint32_t id)
{
    if (id == 0 || atomic_load_explicit(&state, memory_order_acquire) != USABLE)
        return;
    if (unkept < UNKEPT) {
        unkept++;
        return;
    }
    ca_lock_assert_none("unwinding");
    int saved = errno;
    int cancel = ca_cancel_hold();
    ca_stack_cache_table_t *table = ca_stack_cache_table();
    if (table && !table->busy) {
        ca_stack_cache_set_busy(table, true);
        consider(table, caller, frame, frames, count, whole, id);
        ca_stack_cache_set_busy(table, false);
    }
    ca_cancel_resume(cancel);
    errno = saved;
}

void ca_stack_cache_start(void)
{
    if (atomic_load_explicit(&state, memory_order_relaxed) != UNTRIED)
        return;
    bool usable = ca_stack_cache_tables_start() && ca_words_usable();
    atomic_store_explicit(&state, usable ? USABLE : UNUSABLE, memory_order_release);
}

void ca_stack_cache_forget(void)
{
    atomic_fetch_add_explicit(&epoch, ONE_ON, memory_order_relaxed);
}

void ca_stack_cache_suspend(void)
{
    atomic_fetch_add(&epoch, SUSPENDED);
}

void ca_stack_cache_go_on(bool forget)
{
    atomic_fetch_add(&epoch, (forget ? ONE_ON : 0) - SUSPENDED);
}

void ca_stack_cache_set_thrift(bool thrift)
{
    lavish = !thrift;
}

size_t ca_stack_cache_hits(void)
{
    return ca_stack_cache_of_thread ? ca_stack_cache_of_thread->hits : 0;
}

size_t ca_stack_cache_kept(void)
{
    return ca_stack_cache_of_thread ? ca_stack_cache_of_thread->kept : 0;
}

void ca_stack_cache_reset_after_fork(void)
{
    ca_stack_cache_tables_reset_after_fork();
    atomic_fetch_and(&epoch, SUSPENDED - 1); /* the thread that was closing a library is not here */
    ca_stack_cache_forget();
}
