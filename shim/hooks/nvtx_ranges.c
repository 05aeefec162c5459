/* A thread's ranges lie in a page of their own, mapped for its first one: thread-local storage of a
 * library that is preloaded is scarce. */
#include "shim/hooks/nvtx_ranges.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/lock.h"
#include "base/mem.h"
#include "base/text.h"
#include "shim/cuda/life_state.h"

#define BEGIN "begin "
#define END "end "
#define DEPTH 32u
#define STARTED 256u /* at a time; a power of two, since a range's number ends in its place */

typedef struct open {
    ca_nvtx_name_t name;
    uint16_t domain;
    uint16_t level; /* in that domain */
    bool marked;
} open_t;

typedef struct thread_ranges {
    unsigned count; /* of `open`, outermost first */
    uint16_t levels[CA_NVTX_DOMAINS_MOST];
    open_t open[DEPTH];
} thread_ranges_t;

typedef struct started {
    uint64_t number; /* 0: free */
    ca_nvtx_name_t name;
} started_t;

static pthread_key_t key;
static bool have_key;
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static started_t started[STARTED]; /* under the lock, as is: */
static uint64_t last_number;

/* Asleep it stays: a process that never uses CUDA has nothing to report. */
static bool serves(void)
{
    return atomic_load_explicit(&ca_life_state, memory_order_acquire) == CA_LIFE_ACTIVE &&
           ca_life_active();
}

static bool mark(const char *what, const ca_nvtx_name_t name)
{
    if (!serves())
        return false;
    char whole[sizeof(ca_nvtx_name_t) + 8];
    ca_text_t text;
    ca_text_init(&text, whole, sizeof whole);
    ca_text_printf(&text, "%s%s", what, name);
    ca_marks_add(whole);
    return true;
}

void ca_nvtx_mark(const ca_nvtx_name_t name)
{
    (void)mark("", name);
}

/* --- of a thread ------------------------------------------------------------------------------ */

static void leave(void *ranges)
{
    ca_mem_unmap(ranges, sizeof(thread_ranges_t));
}

static thread_ranges_t *find_ranges(void)
{
    return have_key ? pthread_getspecific(key) : NULL;
}

static thread_ranges_t *make_ranges(void)
{
    thread_ranges_t *ranges = have_key ? ca_mem_map(sizeof *ranges) : NULL;
    if (ranges && pthread_setspecific(key, ranges) != 0) {
        leave(ranges);
        ranges = NULL;
    }
    return ranges;
}

int ca_nvtx_push(unsigned domain, const ca_nvtx_name_t name)
{
    thread_ranges_t *ranges = find_ranges();
    if (!ranges)
        ranges = make_ranges();
    if (!ranges || ranges->levels[domain] == UINT16_MAX)
        return CA_NVTX_ERROR;
    unsigned level = ranges->levels[domain]++;
    if (ranges->count < DEPTH) {
        open_t *open = &ranges->open[ranges->count++];
        memcpy(open->name, name, sizeof open->name);
        open->domain = (uint16_t)domain;
        open->level = (uint16_t)level;
        open->marked = mark(BEGIN, open->name);
    }
    return (int)level;
}

/* Domains have levels of their own, so the one that ends need not be the innermost. */
static bool take_out(thread_ranges_t *ranges, unsigned domain, unsigned level, open_t *found)
{
    for (unsigned i = ranges->count; i-- > 0;) {
        open_t *open = &ranges->open[i];
        if (open->domain != domain || open->level != level)
            continue;
        *found = *open;
        ranges->count--;
        memmove(open, open + 1, (ranges->count - i) * sizeof *open);
        return true;
    }
    return false;
}

int ca_nvtx_pop(unsigned domain)
{
    thread_ranges_t *ranges = find_ranges();
    if (!ranges || ranges->levels[domain] == 0)
        return CA_NVTX_ERROR;
    unsigned level = --ranges->levels[domain];
    open_t ended;
    if (take_out(ranges, domain, level, &ended))
        (void)mark(END, ended.name);
    return (int)level;
}

/* --- of the process --------------------------------------------------------------------------- */

/* Numbers do not come again, and each ends in its place. */
uint64_t ca_nvtx_start(const ca_nvtx_name_t name)
{
    uint64_t number = 0;
    ca_lock_take(&lock);
    for (unsigned tries = 0; tries < STARTED && !number; tries++) {
        started_t *place = &started[++last_number % STARTED];
        if (place->number == 0) {
            memcpy(place->name, name, sizeof place->name);
            place->number = number = last_number;
        }
    }
    ca_lock_drop(&lock);
    if (number)
        (void)mark(BEGIN, name);
    return number;
}

void ca_nvtx_end(uint64_t range)
{
    ca_nvtx_name_t name;
    started_t *place = &started[range % STARTED];
    ca_lock_take(&lock);
    bool known = range != 0 && place->number == range;
    if (known) {
        memcpy(name, place->name, sizeof name);
        place->number = 0;
    }
    ca_lock_drop(&lock);
    if (known)
        (void)mark(END, name);
}

/* --- the ends of a process -------------------------------------------------------------------- */

void ca_nvtx_ranges_prepare(void)
{
    have_key = pthread_key_create(&key, leave) == 0;
}

void ca_nvtx_ranges_begun(void)
{
    thread_ranges_t *ranges = find_ranges();
    for (unsigned i = 0; ranges && i < ranges->count; i++)
        if (!ranges->open[i].marked)
            ranges->open[i].marked = mark(BEGIN, ranges->open[i].name);
}

void ca_nvtx_ranges_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_MEMORY);
}
