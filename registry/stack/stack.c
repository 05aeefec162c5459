/* Interned call stacks.
 *
 * A stack is written once into a chunk of mapped memory and never changes or moves. Two structures
 * lead to it: `pages`, from id to stack, and a hash table of (hash, id) words. Both are only ever
 * added to, so looking a known stack up takes no lock: the word of a table bucket is stored, with
 * release order, after the stack it names. A full table is replaced by one twice its size; the old
 * one stays mapped, because a reader may be in it (all old ones together are as large as the
 * newest). Memory goes back never: ids in records must stay valid until the report. */
#include "registry/stack/stack.h"

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/mem.h"
#include "base/mutation.h"
#include "base/thread_state.h"
#include "registry/python/python.h"
#include "registry/stack/stack_cache.h"
#include "registry/stack/stack_cache_tables.h"
#include "registry/stack/modules.h"
#include "registry/stack/unload.h"
#include "registry/stack/unwind.h"
#include "registry/stack/unwind_words.h"

#define OWN_FRAMES 10 /* most frames of ours that are made up for: unwind, capture, api, hook */
#define PAGE_BITS 12
#define PAGE_STACKS (1u << PAGE_BITS)
#define PAGES 4096u /* 16 million stacks */
#define CHUNK_BYTES ((size_t)1 << 20)
#define LEAST_BUCKETS 4096u

typedef struct ca_stack {
    uint32_t count;
    uint32_t epoch; /* when it was first seen: see modules.h */
    uintptr_t frames[];
} ca_stack_t;

typedef struct ca_stack_table {
    size_t mask;
    _Atomic uint64_t buckets[]; /* upper half of the hash, id; 0 is free */
} ca_stack_table_t;

/* Id n is entry n - 1. Written before the table's bucket, under the lock. */
static const ca_stack_t **pages[PAGES];
static _Atomic(ca_stack_table_t *) table;
static _Atomic uint32_t stacks; /* written under the lock */

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_STACKS);
static char *chunk; /* under the lock, as is what follows */
static size_t chunk_left;

static ca_stack_listener_t *_Atomic listener;
static _Atomic unsigned depth;
static _Atomic uintptr_t own_low, own_high;
/* Frames asked for beyond `depth`: as many as had to be left out so far, since each costs time. */
static _Atomic unsigned own_frames;

/* Two sums side by side, because the chain of multiplications is what takes the time. */
static uint64_t hash_frames(const uintptr_t *frames, size_t count)
{
    uint64_t a = 0x9e3779b97f4a7c15u ^ count;
    uint64_t b = 0xc2b2ae3d27d4eb4fu;
    size_t i = 0;
    for (; i + 1 < count; i += 2) {
        a = (a ^ frames[i]) * 0xff51afd7ed558ccdu;
        b = (b ^ frames[i + 1]) * 0xc4ceb9fe1a85ec53u;
    }
    if (i < count)
        a = (a ^ frames[i]) * 0xff51afd7ed558ccdu;
    uint64_t hash = a ^ (b << 32 | b >> 32);
    hash ^= hash >> 32;
    hash *= 0x9fb21c651e98df25u;
    return hash ^ hash >> 28;
}

static inline const ca_stack_t *stack_of(uint32_t id)
{
    return pages[(id - 1) >> PAGE_BITS][(id - 1) & (PAGE_STACKS - 1)];
}

/* The id of a known stack or 0; `free_bucket` is then where it belongs in `in`. */
static uint32_t look_up(ca_stack_table_t *in, uint64_t hash, const uintptr_t *frames, size_t count,
                        size_t *free_bucket)
{
    for (size_t at = hash & in->mask;; at = (at + 1) & in->mask) {
        uint64_t word = atomic_load_explicit(&in->buckets[at], memory_order_acquire);
        if (word == 0) {
            *free_bucket = at;
            return 0;
        }
        if (word >> 32 != hash >> 32)
            continue;
        const ca_stack_t *stack = stack_of((uint32_t)word);
        if (stack->count == count && memcmp(stack->frames, frames, count * sizeof *frames) == 0)
            return (uint32_t)word;
    }
}

static uint64_t bucket_word(uint64_t hash, uint32_t id)
{
    return (hash >> 32 << 32) | id;
}

/* A table with room for one more. Under the lock. NULL without memory. */
static ca_stack_table_t *roomy_table(void)
{
    ca_stack_table_t *old = atomic_load_explicit(&table, memory_order_relaxed);
    uint32_t known = atomic_load_explicit(&stacks, memory_order_relaxed);
    if (old && (size_t)known * 2 <= old->mask)
        return old;
    size_t buckets = old ? (old->mask + 1) * 2 : LEAST_BUCKETS;
    ca_stack_table_t *bigger = ca_mem_map(sizeof *bigger + buckets * sizeof bigger->buckets[0]);
    if (!bigger)
        return NULL;
    bigger->mask = buckets - 1;
    for (uint32_t id = 1; id <= known; id++) {
        const ca_stack_t *stack = stack_of(id);
        uint64_t hash = hash_frames(stack->frames, stack->count);
        size_t at = hash & bigger->mask;
        while (atomic_load_explicit(&bigger->buckets[at], memory_order_relaxed) != 0)
            at = (at + 1) & bigger->mask;
        atomic_store_explicit(&bigger->buckets[at], bucket_word(hash, id), memory_order_relaxed);
    }
    atomic_store_explicit(&table, bigger, memory_order_release);
    return bigger;
}

/* Writes a new stack and gives it an id, which no thread can look up yet. Under the lock. */
static uint32_t store(const uintptr_t *frames, size_t count, uint32_t epoch)
{
    uint32_t index = atomic_load_explicit(&stacks, memory_order_relaxed);
    size_t bytes = sizeof(ca_stack_t) + count * sizeof *frames;
    if (index >> PAGE_BITS >= PAGES)
        return 0;
    const ca_stack_t ***page = &pages[index >> PAGE_BITS];
    if (!*page)
        *page = ca_mem_map(PAGE_STACKS * sizeof **page);
    if (chunk_left < bytes) {
        chunk = ca_mem_map(CHUNK_BYTES);
        chunk_left = chunk ? CHUNK_BYTES : 0;
    }
    if (!*page || !chunk)
        return 0;
    ca_stack_t *stack = (ca_stack_t *)(void *)chunk;
    chunk += bytes;
    chunk_left -= bytes;
    stack->count = (uint32_t)count;
    stack->epoch = epoch;
    memcpy(stack->frames, frames, count * sizeof *frames);
    (*page)[index & (PAGE_STACKS - 1)] = stack;
    atomic_store_explicit(&stacks, index + 1, memory_order_release);
    ca_stack_listener_t *added = atomic_load_explicit(&listener, memory_order_relaxed);
    if (added)
        added(index + 1, epoch, frames, count);
    return index + 1;
}

static uint32_t add(uint64_t hash, const uintptr_t *frames, size_t count, uint32_t epoch)
{
    uint32_t id = 0;
    ca_lock_take(&lock);
    ca_stack_table_t *in = roomy_table();
    if (in) {
        size_t at = 0;
        id = look_up(in, hash, frames, count, &at); /* another thread may have been first */
        if (id == 0 && (id = store(frames, count, epoch)) != 0)
            atomic_store_explicit(&in->buckets[at], bucket_word(hash, id), memory_order_release);
    }
    ca_lock_drop(&lock);
    return id;
}

uint32_t ca_stack_intern(const uintptr_t *frames, size_t count)
{
    if (count == 0)
        return 0;
    uint64_t hash = hash_frames(frames, count);
    ca_stack_table_t *in = atomic_load_explicit(&table, memory_order_acquire);
    size_t unused;
    uint32_t id = in ? look_up(in, hash, frames, count, &unused) : 0;
    if (id != 0)
        return id;
    ca_modules_note(); /* the libraries that it goes through are there now */
    ca_python_judge();
    return add(hash, frames, count, ca_modules_epoch());
}

uint32_t ca_stack_intern_of(const uintptr_t *frames, size_t count, uint32_t epoch)
{
    return count ? add(hash_frames(frames, count), frames, count, epoch) : 0;
}

void ca_stack_listen(ca_stack_listener_t *added)
{
    atomic_store(&listener, added);
}

void ca_stack_set_own_range(uintptr_t low, uintptr_t high)
{
    atomic_store_explicit(&own_low, low, memory_order_relaxed);
    atomic_store_explicit(&own_high, high, memory_order_relaxed);
    ca_stack_cache_forget();
}

void ca_stack_start(unsigned most_frames)
{
    if (most_frames > CA_STACK_NATIVE_MAX)
        most_frames = CA_STACK_NATIVE_MAX;
    atomic_store_explicit(&depth, most_frames, memory_order_relaxed);
    ca_stack_cache_forget();
    ca_stack_cache_start();
    ca_unwind_start();
}

/* Where the caller of ca_stack_capture is among the frames, `count` where it is not. */
static size_t find_caller(void *const *frames, size_t count, uintptr_t caller)
{
    for (size_t i = 0; i < count && i < OWN_FRAMES; i++)
        if ((uintptr_t)frames[i] == caller)
            return i;
    return count;
}

/* How many frames at the inner end are ours: up to the caller of ca_stack_capture, then what lies
 * in our shared object. */
static size_t own_part(void *const *frames, size_t count, uintptr_t caller)
{
    size_t own = find_caller(frames, count, caller);
    if (own == count)
        own = 0;
    uintptr_t low = atomic_load_explicit(&own_low, memory_order_relaxed);
    uintptr_t high = atomic_load_explicit(&own_high, memory_order_relaxed);
    while (own < count && (uintptr_t)frames[own] - low < high - low)
        own++;
    return own;
}

/* Without the cache, which may keep it under `key`. In line: what calls adds a frame of ours. */
static inline __attribute__((always_inline)) uint32_t capture(uintptr_t caller, uintptr_t frame,
                                                              size_t most, uintptr_t key)
{
    void *frames[CA_STACK_NATIVE_MAX + OWN_FRAMES];
    ca_unwound_t unwound = {.sps = NULL};
    size_t extra = atomic_load_explicit(&own_frames, memory_order_relaxed);
    if (CA_MUTATED(unwind_in_lock))
        ca_lock_take(&lock);
    size_t count = ca_unwind(frames, most + extra, &unwound);
    size_t own = own_part(frames, count, caller);
    if (own > extra && count == most + extra && extra < OWN_FRAMES) {
        extra = own < OWN_FRAMES ? own : OWN_FRAMES;
        atomic_store_explicit(&own_frames, (unsigned)extra, memory_order_relaxed);
        count = ca_unwind(frames, most + extra, &unwound);
        own = own_part(frames, count, caller);
    }
    size_t kept = count - own < most ? count - own : most;
    uint32_t id = ca_stack_intern((const uintptr_t *)frames + own, kept);
    size_t first = find_caller(frames, count, caller);
    bool whole = kept < most && count < most + extra;
    if (first < count)
        ca_stack_cache_keep(key, frame, frames + first, own + kept - first, whole, id);
    return id;
}

/* The native stack unwound again, for where each of its frames lies. */
static __attribute__((noinline)) uint32_t merge(ca_python_thread_t *python, uint32_t native,
                                                uintptr_t caller)
{
    void *frames[CA_STACK_NATIVE_MAX + OWN_FRAMES + 1];
    uintptr_t sps[CA_STACK_NATIVE_MAX + OWN_FRAMES + 1];
    ca_unwound_t unwound = {.sps = sps};
    size_t most = atomic_load_explicit(&depth, memory_order_relaxed), words_count = 0;
    size_t extra = atomic_load_explicit(&own_frames, memory_order_relaxed);
    size_t count = ca_unwind(frames, most + extra + 1, &unwound);
    size_t own = own_part(frames, count, caller);
    if (count == own || unwound.handler)
        return native;
    const ca_native_part_t part = {
        .frames = (const uintptr_t *)frames + own,
        .sps = sps + own,
        .count = count - own < most ? count - own : most,
        .sp_count = count - own,
    };
    int cancel = ca_cancel_hold();
    const uintptr_t *words = ca_python_merge(python, &part, &words_count);
    uint32_t id = words ? ca_stack_intern(words, words_count) : native;
    ca_python_keep(python, native, id);
    ca_cancel_resume(cancel);
    return id ? id : native;
}

static inline uint32_t capture_native(uintptr_t caller, uintptr_t frame)
{
    return capture(caller, frame, atomic_load_explicit(&depth, memory_order_relaxed), caller);
}

/* That of a thread of a framework's own in a process with Python: of what asked for its work no
 * Python frame tells, and 16 frames of a dispatcher do not lead there. So it has as many frames as
 * a stack with Python frames. */
static uint32_t deep_stack(uintptr_t caller, uintptr_t frame)
{
    uintptr_t key = ~caller; /* no address of code */
    uint32_t id = ca_stack_cache_find_aside(key, frame);
    size_t most = atomic_load_explicit(&depth, memory_order_relaxed) + ca_python_depth();
    if (id == 0)
        id = capture(caller, frame, most < CA_STACK_NATIVE_MAX ? most : CA_STACK_NATIVE_MAX, key);
    return id;
}

/* With the Python frames of the thread, where it has some. */
static uint32_t beside_python(uintptr_t caller, uintptr_t frame)
{
    const ca_python_at_t at = ca_python_here();
    if (at.frame == 0)
        return deep_stack(caller, frame);
    uint32_t native = ca_stack_cache_find_aside(caller, frame);
    if (native == 0)
        native = capture_native(caller, frame);
    ca_stack_cache_table_t *table = ca_stack_cache_table();
    if (!table || native == 0)
        return native;
    if (!table->python && !(table->python = ca_python_thread_new()))
        return native;
    uint32_t id = ca_python_find(table->python, &at, native);
    return id ? id : merge(table->python, native, caller);
}

/* What the cache does not find at once: none, as long as there may be Python frames, so that a
 * process without Python does not ask for them in each capture. What is new may find Python. */
static __attribute__((noinline)) uint32_t capture_slowly(uintptr_t caller, uintptr_t frame)
{
    if (!ca_python_is_on()) {
        uint32_t id = ca_stack_cache_is_aside() ? ca_stack_cache_find_aside(caller, frame) : 0;
        if (id == 0)
            id = capture_native(caller, frame);
        if (!ca_python_is_on())
            return id;
    }
    return beside_python(caller, frame);
}

__attribute__((noinline)) uint32_t ca_stack_capture(void)
{
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    uint32_t id = ca_stack_cache_find(caller, frame);
    if (id == 0)
        id = capture_slowly(caller, frame);
    __asm__ volatile("" ::: "memory"); /* the frame stays: no jump to that */
    return id;
}

size_t ca_stack_frames(uint32_t id, uintptr_t *frames, size_t max)
{
    if (id == 0 || id > atomic_load_explicit(&stacks, memory_order_acquire))
        return 0;
    const ca_stack_t *stack = stack_of(id);
    size_t count = stack->count < max ? stack->count : max;
    memcpy(frames, stack->frames, count * sizeof *frames);
    return count;
}

uint32_t ca_stack_epoch(uint32_t id)
{
    bool known = id != 0 && id <= atomic_load_explicit(&stacks, memory_order_acquire);
    return known ? stack_of(id)->epoch : 0;
}

const char *ca_stack_unwinder(void)
{
    return ca_unwind_name();
}

size_t ca_stack_count(void)
{
    return atomic_load_explicit(&stacks, memory_order_acquire);
}

void ca_stack_reset_after_fork(void)
{
    /* What the parent mapped stays mapped, for the reason given in registry.c. */
    ca_lock_init(&lock, CA_RANK_STACKS);
    memset(pages, 0, sizeof pages);
    chunk = NULL;
    chunk_left = 0;
    atomic_store_explicit(&table, NULL, memory_order_relaxed);
    atomic_store_explicit(&stacks, 0, memory_order_relaxed);
    ca_modules_reset_after_fork();
    ca_unload_reset_after_fork();
    ca_unwind_reset_after_fork();
    ca_stack_cache_reset_after_fork();
    ca_python_reset_after_fork();
}
