/* See arena_set.h. */
#include "pool/arena_set.h"

#include <errno.h>
#include <stdatomic.h>
#include "base/mem.h"
#include "base/thread_state.h"
#include "pool/balance.h"
#include "pool/growth/grow.h"
#include "pool/growth/ladder.h"
#include "pool/blocks/rounding.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"

#define NONE CA_ARENA_SET_MOST
#define BIT_OF(index) (UINT64_C(1) << (index))
#define FIRST_MOST ((size_t)1 << 20) /* bytes; requests that bring an arena's first segment */

/* Every thread that allocates gets the next one. */
static unsigned home_of(const ca_arena_set_t *set, const ca_stream_t *stream)
{
    if (stream)
        return ca_stream_arena(stream)->set_index;
    return (ca_thread_number() - 1) % ca_arena_set_open(set);
}

/* Of each arena's first segment, so that growth allows one to all of them. */
static size_t first_bytes(unsigned count)
{
    size_t bytes = CA_GROW_SPARE / count / CA_SEGMENT_UNIT * CA_SEGMENT_UNIT;

    if (bytes < CA_SEGMENT_UNIT)
        return CA_SEGMENT_UNIT;
    return bytes < CA_SEGMENT_FIRST ? bytes : CA_SEGMENT_FIRST;
}

/* One at a time. False where there is no host memory. */
static bool add_arena(ca_arena_set_t *set, const ca_upstream_t *upstream, void *context,
                      const ca_arena_params_t *params)
{
    ca_arena_t *arena = ca_arena_create(upstream, context, params);
    unsigned index = ca_arena_set_count(set);

    if (!arena)
        return false;
    arena->set = set;
    arena->set_index = index;
    set->slots[index].arena = arena;
    ca_arena_set_wake(arena);
    atomic_store_explicit(&set->count, index + 1, memory_order_release);
    return true;
}

ca_arena_set_t *ca_arena_set_create(const ca_upstream_t *upstream, void *context,
                                    const ca_arena_params_t *params, unsigned count, unsigned most)
{
    size_t bytes = sizeof(ca_arena_set_t) + most * sizeof(ca_arena_set_slot_t);
    ca_arena_set_t *set = ca_mem_map(bytes);
    ca_arena_params_t each = *params;

    if (!set)
        return NULL;
    set->most = most;
    set->open_first = count;
    atomic_store(&set->open, count);
    if (!each.segment_first && count > 1)
        each.segment_first = first_bytes(count);
    while (ca_arena_set_count(set) < count)
        if (!add_arena(set, upstream, context, &each))
            break;
    if (ca_arena_set_count(set) == count)
        return set;
    for (unsigned i = 0; i < ca_arena_set_count(set); i++)
        ca_arena_retire(set->slots[i].arena);
    ca_mem_unmap(set, bytes); /* no other thread has seen these arenas */
    return NULL;
}

ca_arena_t *ca_arena_set_home(const ca_arena_set_t *set)
{
    return set->slots[home_of(set, NULL)].arena;
}

/* The first that comes needs no first segment of its own later: it has all there is. When the
 * second comes the first publishes what it has live. */
static void note_home(ca_arena_set_t *set, unsigned home)
{
    if (atomic_load_explicit(&set->homes, memory_order_relaxed) & BIT_OF(home))
        return;
    uint64_t before = atomic_fetch_or(&set->homes, BIT_OF(home));
    if (before == 0) {
        atomic_store(&set->slots[home].begun, true);
    } else if ((before & (before - 1)) == 0) {
        ca_arena_t *first = set->slots[__builtin_ctzll(before)].arena;
        ca_lock_take(&first->lock);
        ca_arena_drop(first);
    }
}

bool ca_arena_set_is_home(const ca_arena_t *arena)
{
    return arena->set_index == home_of(arena->set, NULL);
}

/* --- sums ------------------------------------------------------------------------------------- */

/* As many arenas again become homes. They have no memory of their own yet, and get others'. The
 * thread that retires the arenas takes the lock that is held here, and looks for more of them after
 * that. */
static void open_more(ca_arena_t *arena)
{
    ca_arena_set_t *set = arena->set;
    unsigned open = ca_arena_set_open(set);

    if (atomic_exchange(&set->opening, true))
        return;
    while (ca_arena_set_count(set) < 2 * open)
        if (!add_arena(set, arena->upstream, arena->context, &arena->params))
            break;
    for (unsigned i = open; i < ca_arena_set_count(set); i++)
        atomic_store(&set->slots[i].begun, true);
    if (ca_arena_set_count(set) >= 2 * open)
        atomic_compare_exchange_strong(&set->open, &open, 2 * open);
    atomic_store(&set->opening, false);
}

/* Whether threads wait for each other, as the arena sees it. Others live on what it gives them. */
static void judge(ca_arena_t *arena)
{
    ca_arena_set_t *set = arena->set;
    size_t more = 2 * (size_t)ca_arena_set_open(set);
    bool waits = arena->waits >= arena->takes / CA_ARENA_SET_WAITED;

    arena->takes = arena->waits = 0;
    if (waits && more <= set->most && ca_arena_set_reserved(set) / more >= CA_ARENA_SET_LEAST &&
        ca_balance_gives(arena))
        open_more(arena);
}

static void publish(_Atomic size_t *field, size_t value)
{
    if (atomic_load_explicit(field, memory_order_relaxed) != value)
        atomic_store_explicit(field, value, memory_order_relaxed);
}

void ca_arena_set_publish(ca_arena_t *arena)
{
    ca_arena_set_t *set = arena->set;
    ca_arena_set_slot_t *slot = &set->slots[arena->set_index];

    arena->news = false;
    if (arena->takes >= CA_ARENA_SET_JUDGED)
        judge(arena);
    bool alone = ca_arena_set_alone(set);
    for (unsigned pool = alone ? CA_POOLS : 0; pool < CA_POOLS; pool++)
        publish(&slot->largest[pool], arena->retired ? 0 : ca_bins_hint(&arena->bins[pool]));
    publish(&slot->reserved, arena->retired ? 0 : arena->reserved);
    size_t now_live = arena->retired ? 0 : ca_arena_in_use(arena);
    size_t change = now_live - arena->live_published; /* wraps around where there is less */
    if (change + CA_ARENA_SET_PUBLISH_FROM - 1 < 2 * CA_ARENA_SET_PUBLISH_FROM - 1)
        return;
    /* One arena alone publishes its peak, and the rest when another comes: note_home. */
    if (alone && now_live <= ca_arena_set_live_peak(set) && !arena->retired)
        return;
    arena->live_published = now_live;
    size_t now = atomic_fetch_add_explicit(&set->live, change, memory_order_relaxed) + change;
    if (change <= SIZE_MAX / 2)
        ca_raise_peak(&set->live_peak, now);
}

bool ca_arena_set_claim(const ca_arena_t *arena, size_t bytes, size_t limit)
{
    ca_arena_set_t *set = arena->set;
    size_t before = set ? ca_arena_set_reserved(set) : 0;

    if (!set)
        return true;
    do {
        if (bytes > limit || before > limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&set->reserved, &before, before + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void ca_arena_set_obtained(const ca_arena_t *arena)
{
    if (arena->set)
        ca_raise_peak(&arena->set->reserved_peak, ca_arena_set_reserved(arena->set));
}

void ca_arena_set_forget(const ca_arena_t *arena)
{
    ca_arena_set_t *set = arena->set;

    atomic_store(&set->slots[arena->set_index].begun, false);
    if (arena->set_index != 0)
        return;
    atomic_store(&set->open, set->open_first);
    atomic_store(&set->homes, 0);
    atomic_store(&set->reserved, 0);
    atomic_store(&set->reserved_peak, 0);
    atomic_store(&set->live, 0);
    atomic_store(&set->live_peak, 0);
}

void ca_arena_set_wake(const ca_arena_t *arena)
{
    atomic_fetch_add(&arena->set->awake, 1);
}

void ca_arena_set_sleep(const ca_arena_t *arena)
{
    ca_arena_set_t *set = arena->set;
    unsigned awake = atomic_load(&set->awake);

    while (awake > 1)
        if (atomic_compare_exchange_weak(&set->awake, &awake, awake - 1))
            return;
    for (unsigned i = 0; i < ca_arena_set_count(set); i++)
        ca_block_discard(&set->slots[i].arena->blocks);
    atomic_store(&set->awake, 0); /* last: from now on they may be revived */
}

bool ca_arena_set_asleep(const ca_arena_t *arena)
{
    return arena->set_index != 0 || atomic_load(&arena->set->awake) == 0;
}

void ca_arena_set_give_up(const ca_arena_t *arena, size_t bytes)
{
    if (arena->set)
        atomic_fetch_sub_explicit(&arena->set->reserved, bytes, memory_order_relaxed);
}

/* --- the other arenas ------------------------------------------------------------------------- */

void ca_arena_set_note_free_bytes(ca_arena_t *arena, size_t bytes, ca_free_estimate_t look)
{
    ca_arena_set_t *set = arena->set;

    for (unsigned i = 1; i < ca_arena_set_count(set); i++) {
        ca_arena_t *other = set->slots[(arena->set_index + i) % ca_arena_set_count(set)].arena;
        ca_lock_take(&other->lock);
        other->look = look;
        ca_grow_set_free_bytes(other, bytes);
        ca_lock_drop(&other->lock);
    }
}

/* --- visits ----------------------------------------------------------------------------------- */

typedef struct visit {
    ca_arena_set_t *set;
    ca_stream_t *stream;
    unsigned home;
    size_t bytes;
    ca_block_t **block;
    uint64_t *address;
    bool *reused;
} visit_t;

static ca_arena_t *arena_at(const visit_t *v, unsigned index)
{
    return v->set->slots[index].arena;
}

/* The arena, of those left, whose hint fits most tightly. */
static unsigned tightest(const ca_arena_set_t *set, uint64_t left, ca_pool_t pool, size_t size)
{
    size_t least = SIZE_MAX;
    unsigned found = NONE;

    for (; left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        size_t hint = atomic_load_explicit(&set->slots[i].largest[pool], memory_order_relaxed);
        if (hint >= size && hint < least) {
            least = hint;
            found = i;
        }
    }
    return found;
}

/* The arenas whose hint fits, home first. */
static int take_ready(const visit_t *v)
{
    const ca_arena_set_t *set = v->set;
    const ca_arena_params_t *params = &arena_at(v, 0)->params;
    size_t size = ca_round_request(params, v->bytes ? v->bytes : 1);
    ca_pool_t pool = ca_pool_of(arena_at(v, 0), size);
    uint64_t left = UINT64_MAX >> (64 - ca_arena_set_count(set));
    unsigned next = tightest(set, BIT_OF(v->home), pool, size);

    for (; next != NONE || (next = tightest(set, left, pool, size)) != NONE; next = NONE) {
        left &= ~BIT_OF(next);
        if (ca_arena_alloc_ready_on(arena_at(v, next), NULL, v->bytes, v->block, v->address,
                                    v->reused) == 0)
            return 0;
    }
    return -EAGAIN;
}

/* In one arena after the other, home first. What was freed on the stream is in its own arena; what
 * is ready is so for every stream. */
static int climb(const visit_t *v, unsigned rungs, bool home_alone)
{
    int rc = -ENOMEM;

    for (unsigned i = 0; i < (home_alone ? 1 : ca_arena_set_count(v->set)) && rc == -ENOMEM; i++)
        rc = ca_arena_alloc_rungs(arena_at(v, (v->home + i) % ca_arena_set_count(v->set)),
                                  i == 0 ? v->stream : NULL, v->bytes, rungs, v->block, v->address,
                                  v->reused);
    return rc;
}

/* While home has had no memory, threads would all share the arena that has: its first segment comes
 * before the others are visited, where nothing speaks against growth. Asked for once. */
static bool begins(const visit_t *v)
{
    return !v->stream && v->bytes <= FIRST_MOST &&
           !atomic_load_explicit(&v->set->slots[v->home].begun, memory_order_relaxed);
}

/* Home has clearly less than its part, so that its threads go to other arenas: it gets what is
 * above it where most is. Seldom: for that the caches there are emptied. */
static void level(const visit_t *v)
{
    ca_arena_set_slot_t *slots = v->set->slots, *home = &slots[v->home];
    size_t part = ca_arena_set_reserved(v->set) / ca_arena_set_in_use(v->set);
    size_t has = atomic_load_explicit(&home->reserved, memory_order_relaxed), most = 0;
    unsigned richest = v->home;

    if (has >= part - part / CA_ARENA_SET_UNEVEN ||
        atomic_fetch_add_explicit(&home->levelled, 1, memory_order_relaxed) % CA_ARENA_SET_LEVELLED)
        return;
    for (unsigned i = 0; i < ca_arena_set_count(v->set); i++) {
        size_t its = atomic_load_explicit(&slots[i].reserved, memory_order_relaxed);
        if (its > most) {
            most = its;
            richest = i;
        }
    }
    if (most > part)
        ca_balance(arena_at(v, richest), home->arena,
                   part - has < most - part ? part - has : most - part);
}

int ca_arena_set_alloc(ca_arena_set_t *set, ca_stream_t *stream, size_t bytes, bool ready_only,
                       ca_block_t **block, uint64_t *address, bool *reused)
{
    const visit_t v = {set, stream, home_of(set, stream), bytes, block, address, reused};
    ca_arena_t *home = arena_at(&v, v.home);

    if (bytes > CA_BYTES_MOST)
        return ready_only ? -EAGAIN : -ENOMEM;
    note_home(set, v.home);
    if (ca_arena_alone(home)) {
        int rc = ready_only ? ca_arena_alloc_ready_on(home, stream, bytes, block, address, reused)
                            : ca_arena_alloc_on(home, stream, bytes, block, address, reused);
        /* While this one climbed another may have got a part of the memory. */
        if (rc != -ENOMEM || ca_arena_alone(home))
            return rc;
    }
    if (begins(&v)) {
        if (ready_only)
            return -EAGAIN;
        atomic_store(&set->slots[v.home].begun, true);
        int rc = climb(&v, CA_RUNGS_POLICY, true);
        if (rc != -ENOMEM)
            return rc;
    }
    if (!stream)
        level(&v);
    int rc = stream ? ca_arena_alloc_ready_on(home, stream, bytes, block, address, reused)
                    : take_ready(&v);
    if (rc == 0 || ready_only)
        return rc;
    /* No arena grows before each was looked at, and none waits while another has something to give.
     * What lies in threads' caches comes last of that: it is dear for the threads that lose it, and
     * growth in proportion comes before it. The last row is for what came while others were waited
     * for. */
    static const struct {
        unsigned rungs;
        bool home;  /* there alone */
        bool plain; /* not in the order of a stream: the others' memory would not come back in it */
    } visits[] = {
        {.rungs = CA_RUNGS_PASSED, .plain = true},
        {.rungs = CA_RUNGS_OPEN, .home = true, .plain = true},
        {.rungs = CA_RUNGS_UNSPARED, .plain = true},
        {.rungs = CA_RUNGS_SPARED, .home = true, .plain = true},
        {.rungs = CA_RUNGS_CACHES, .plain = true},
        {.rungs = CA_RUNGS_PASSED | CA_RUNGS_OPEN | CA_RUNGS_SPARED | CA_RUNGS_GROW, .home = true},
        {.rungs = CA_RUNGS_PASSED | CA_RUNGS_CACHES},
        {.rungs = CA_RUNGS_WAIT},
        {.rungs = CA_RUNGS_OVERDUE},
        {.rungs = CA_RUNGS_PASSED | CA_RUNGS_CACHES},
    };
    rc = -ENOMEM;
    for (size_t i = 0; i < sizeof visits / sizeof *visits && rc == -ENOMEM; i++)
        if (!stream || !visits[i].plain)
            rc = climb(&v, visits[i].rungs, visits[i].home);
    return rc;
}
