/* See order.h. The lock guards the debts and the streams that have paid; all else is single words,
 * which threads read without it. A program frees a block only after the submissions that touch it
 * have returned, and uses it again only after the allocation has: that orders what other threads
 * see here. */
#include "pool/fence/order.h"

#include "base/counters.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/thread_state.h"
#include "base/mutation.h"
#include "pool/fence/fence_order.h"

#define DEBTS 4u
#define PAYERS 64u
#define ASKS_AGAIN 64u /* submissions of payers */
/* No stream has this number. The fence that is begun next marks it, as any other. */
#define NO_STREAM (~CA_ORDER_QUIET - 2)
_Static_assert((NO_STREAM | CA_ORDER_QUIET) < CA_ORDER_SEVERAL, "marked, it is another number");
#define MOST_NS ((uint64_t)1000 * 1000 * 1000)

typedef struct debt {
    void *fence; /* NULL: the place is free */
    uint64_t began, number;
    unsigned users;  /* threads that wait for it, outside the lock */
    unsigned joined; /* streams that were made to wait for it */
    bool owed;
    bool lent; /* its epoch names the fence, too, and releases it */
} debt_t;

_Atomic uint64_t ca_order_current, ca_order_newest;
ca_order_gate_t ca_order_gate;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_ORDER);
static debt_t debts[DEBTS];
static _Atomic uint64_t owner; /* the stream that is behind them by itself */
static _Atomic uint64_t
    opened; /* debts so far; not their fences' numbers, which may come in any order */
static struct {
    uint64_t stream, opened; /* it was made to wait for all debts of then */
} payers[PAYERS];
static unsigned next_payer, payer_submissions; /* as a payer */

static const ca_upstream_t *upstream;
static uint64_t wait_ns;
static _Atomic uint64_t proved; /* fences up to this number have passed, too */

/* The current stream, quiet or not. */
static uint64_t stream_now(void)
{
    uint64_t current = atomic_load(&ca_order_current);

    if (current == CA_ORDER_SEVERAL)
        return atomic_load(&ca_order_gate.last);
    return ca_order_is_quiet(current) ? current & ~CA_ORDER_QUIET : current;
}

/* The next submission elsewhere is checked again: there is a fence that it does not know of. Under
 * the lock. */
static void recheck_next(void)
{
    uint64_t several = CA_ORDER_SEVERAL;

    if (!CA_MUTATED(order_several_kept))
        atomic_compare_exchange_strong(&ca_order_current, &several,
                                       atomic_load(&ca_order_gate.last));
}

void ca_order_unquiet(void)
{
    uint64_t current = atomic_load(&ca_order_current);

    while (ca_order_is_quiet(current) && !CA_MUTATED(order_not_woken) &&
           !atomic_compare_exchange_weak(&ca_order_current, &current, current & ~CA_ORDER_QUIET)) {
    }
}

/* Work may be in flight that no fence begun up to now is behind, and that is not in order. Under
 * the lock where the current stream changes too: a request sees both or neither. */
static void note_several(void)
{
    ca_order_unquiet();
    ca_raise(&ca_order_gate.several_until, ca_fence_newest() + 1);
}

/* --- debts ------------------------------------------------------------------------------------ */

/* Under the lock. */
static void recount(void)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < DEBTS; i++)
        if (debts[i].fence && debts[i].owed && debts[i].number > most)
            most = debts[i].number;
    atomic_store(&ca_order_newest, most);
}

/* The fence, if neither a debt nor an epoch needs it any more: then the caller alone releases it.
 * The lock is held. */
static void *unused_fence(debt_t *debt)
{
    void *fence = debt->owed || debt->users ? NULL : debt->fence;

    if (fence)
        debt->fence = NULL;
    return debt->lent ? NULL : fence;
}

/* What that returned of each. */
static void release(void *context, void *const unused[DEBTS])
{
    for (unsigned i = 0; i < DEBTS; i++)
        if (unused[i])
            ca_upstream_fence_release(upstream, context, unused[i]);
}

/* A number for a poll: what was recorded before has a lower one. */
static uint64_t next_number(void)
{
    ca_lock_take(&lock);
    recheck_next();
    uint64_t number = ca_fence_number();
    ca_lock_drop(&lock);
    return number;
}

/* The number comes before the mark, and both before the record. A submission that is behind the
 * record checks again after them, and takes the mark away before its memory is freed; a thread that
 * finds a mark that was made after that finds a number from after it, too. */
uint64_t ca_order_record_begins(void)
{
    ca_lock_take(&lock);
    recheck_next();
    uint64_t number = ca_fence_number(), current = atomic_load(&ca_order_current);
    atomic_store(&ca_order_gate.quiet, number);
    if (!ca_order_is_quiet(current) && current != CA_ORDER_OFF)
        atomic_compare_exchange_strong(&ca_order_current, &current, current | CA_ORDER_QUIET);
    ca_lock_drop(&lock);
    return number;
}

/* Under the lock, where that may be. What is owed from before the stream changed has passed:
 * ca_order_may says so. A fence begun after another one was recorded stands behind it too. */
static debt_t *make_place(uint64_t began, uint64_t current, void **released, uint64_t *most)
{
    debt_t *place = NULL;

    for (debt_t *debt = debts; debt < debts + DEBTS; debt++) {
        if (debt->fence &&
            (debt->number < began || owner != current || CA_MUTATED(order_unnumbered))) {
            debt->owed = false;
            if (debt->lent)
                unused_fence(debt);
            else if (!*released)
                *released = unused_fence(debt);
        }
        if (!debt->fence)
            place = debt;
        else if (debt->owed && debt->number > *most)
            *most = debt->number;
    }
    return place;
}

/* Under the lock: the place of a fence that is no longer its epoch's, or NULL. */
static debt_t *take_back(const void *fence)
{
    for (debt_t *debt = debts; debt < debts + DEBTS; debt++)
        if (debt->fence == fence) {
            debt->lent = false;
            return debt;
        }
    return NULL;
}

bool ca_order_take(const void *context, void *fence, uint64_t began, uint64_t number, void *former,
                   void *released[2])
{
    uint64_t most = 0;

    released[0] = released[1] = NULL;
    ca_lock_take(&lock);
    bool may = ca_order_may(context);
    uint64_t current = stream_now();
    debt_t *place = may ? make_place(began, current, &released[0], &most) : NULL;
    if (place) {
        if (former && !take_back(former))
            released[1] = former;
        *place =
            (debt_t){.fence = fence, .began = began, .number = number, .owed = true, .lent = true};
        atomic_store(&owner, current);
        opened++;
    }
    if (may)
        atomic_store(&ca_order_newest, place && number > most ? number : most);
    ca_lock_drop(&lock);
    return place;
}

bool ca_order_give_up(void *fence)
{
    ca_lock_take(&lock);
    debt_t *debt = take_back(fence);
    bool unused = !debt || unused_fence(debt);
    ca_lock_drop(&lock);
    return unused;
}

/* Fences that were recorded before this one was begun have passed too. Their debts end here,
 * because each submission to another stream is dear while there are any. The thread that uses the
 * place of the debt next releases its fence. */
void ca_order_passed(const void *context, uint64_t began)
{
    if (atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed) != context)
        return;
    ca_raise(&ca_order_gate.passed, began);
    if (!ca_order_owed())
        return;
    ca_lock_take(&lock);
    for (unsigned i = 0; i < DEBTS; i++)
        debts[i].owed &= debts[i].number >= began;
    recount();
    ca_lock_drop(&lock);
}

bool ca_order_has_passed(const void *context, uint64_t number)
{
    return context && atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed) == context &&
           number <= atomic_load_explicit(&proved, memory_order_relaxed);
}

/* How a thread goes about a debt. */
typedef enum { ASK, WAIT_OWN, WAIT, JOIN } way_t;

/* Whether plain CUDA would have made the thread wait for it. */
static bool slept_for(const debt_t *debt, const void *context)
{
    return debt->number <= ca_fence_freed_after(context);
}

/* By a thread that plain CUDA would not have made to wait. Returns whether it has passed. */
static bool wait_with_bound(void *context, void *fence)
{
    static _Atomic bool said;

    if (ca_upstream_fence_wait(upstream, context, fence, wait_ns) == 1)
        return true;
    bool done = ca_upstream_fence_wait(upstream, context, fence, MOST_NS) == 1;
    ca_count(order_waits);
    if (!done && !atomic_exchange(&said, true))
        ca_info("a stream waits, on the device, for work that this thread has not waited for: "
                "memory was handed out behind it (reuse:order)");
    return done;
}

/* One stream is made to wait without a question, which is dearer, and in vain behind work that
 * takes long. Where several follow it may have passed meanwhile, and then none of the others need
 * wait. */
static bool asks_first(const debt_t *debt)
{
    return debt->joined && !(debt->joined & (debt->joined - 1));
}

/* Returns whether it has passed, or with JOIN whether the stream is behind it now. */
static bool go_about(void *context, const debt_t *debt, way_t way, void *queue)
{
    bool slept = slept_for(debt, context);

    if (ca_order_has_passed(context, debt->number))
        return true;
    if (way == JOIN && slept && asks_first(debt) &&
        ca_upstream_fence_query(upstream, context, debt->fence) == 1)
        return true;
    if (way == JOIN && slept && ca_upstream_fence_join(upstream, context, queue, debt->fence) == 0)
        return false;
    if (ca_upstream_fence_query(upstream, context, debt->fence) == 1)
        return true;
    if (way == ASK)
        return false;
    if (slept)
        return ca_upstream_fence_wait(upstream, context, debt->fence, CA_WAIT_OWN) == 1;
    if (way == WAIT_OWN)
        return false;
    bool done = wait_with_bound(context, debt->fence);
    if (!done && way == JOIN)
        (void)ca_upstream_fence_join(upstream, context, queue, debt->fence);
    return done;
}

/* Each debt, outside the lock. Whether all have passed. */
static bool go_about_all(way_t way, void *queue)
{
    void *context = atomic_load(&ca_order_gate.only);
    debt_t copy[DEBTS];
    void *unused[DEBTS];
    bool done[DEBTS] = {false}, all = true;

    if (!context)
        return true;
    ca_lock_take(&lock);
    for (unsigned i = 0; i < DEBTS; i++) {
        copy[i] = debts[i];
        if (!copy[i].fence || !copy[i].owed)
            copy[i].fence = NULL;
        else
            debts[i].users++;
    }
    ca_lock_drop(&lock);
    for (unsigned i = 0; i < DEBTS; i++)
        if (copy[i].fence) {
            done[i] = go_about(context, &copy[i], way, queue);
            if (done[i])
                ca_order_passed(context, copy[i].began);
            all &= done[i];
        }
    ca_lock_take(&lock);
    for (unsigned i = 0; i < DEBTS; i++) {
        unused[i] = NULL;
        if (!copy[i].fence)
            continue;
        debts[i].users--;
        debts[i].joined += way == JOIN && !done[i];
        debts[i].owed &= !done[i];
        unused[i] = unused_fence(&debts[i]);
    }
    recount();
    ca_lock_drop(&lock);
    release(context, unused);
    return all;
}

bool ca_order_owes(const void *context)
{
    return atomic_load_explicit(&ca_order_newest, memory_order_relaxed) && context &&
           atomic_load(&ca_order_gate.only) == context;
}

bool ca_order_paid(const void *context)
{
    return !ca_order_owes(context) || go_about_all(WAIT_OWN, NULL);
}

void ca_order_leave(void)
{
    if (ca_order_owed() && !CA_MUTATED(order_exported))
        (void)go_about_all(WAIT, NULL);
}

/* --- submissions ------------------------------------------------------------------------------ */

/* Makes the stream wait for what is owed, `now` debts having been opened. */
static void pay(uint64_t stream, void *queue, unsigned work, uint64_t now)
{
    bool has_paid = false;

    ca_lock_take(&lock);
    for (unsigned i = 0; i < PAYERS; i++)
        has_paid |=
            payers[i].stream == stream && (payers[i].opened >= now || CA_MUTATED(order_flag));
    bool asks = has_paid && ++payer_submissions % ASKS_AGAIN == 0;
    ca_lock_drop(&lock);
    if (has_paid && !(work & CA_WORK_COPY)) {
        if (asks) /* a program may never free anything again, which would find out */
            (void)go_about_all(ASK, NULL);
        return;
    }
    /* No stream can be made to wait while it is captured; and what a copy does by the host is
     * behind no stream's wait. */
    if (work & CA_WORK_COPY || atomic_load(&ca_order_gate.held)) {
        (void)go_about_all(WAIT, NULL);
        return;
    }
    (void)go_about_all(JOIN, queue);
    ca_lock_take(&lock);
    unsigned place = next_payer++ % PAYERS;
    for (unsigned i = 0; i < PAYERS; i++)
        if (payers[i].stream == stream)
            place = i;
    payers[place].stream = stream;
    payers[place].opened = now;
    ca_lock_drop(&lock);
}

static bool must_pay(uint64_t stream, unsigned work)
{
    return ca_order_owed() && !CA_MUTATED(order_skipped) &&
           (stream != owner || (work & CA_WORK_EARLY && !CA_MUTATED(order_pdl)));
}

static bool stop(const char *why)
{
    if (atomic_exchange(&ca_order_gate.ended, true))
        return false;
    ca_lock_take(&lock);
    recheck_next();
    ca_lock_drop(&lock);
    if (atomic_load(&ca_order_current) != CA_ORDER_OFF)
        ca_info("memory in flight is not reused from now on: %s", why);
    return true;
}

/* Makes the stream the current one; false where there is a debt that it has not waited for. It has
 * to wait first, because threads that submit to the current stream do not come here. The first
 * stream is no change, as nothing was submitted before it. Where one thread makes two changes in a
 * row, the hooks need not report the next: until a fence is begun, all that this thread submits is
 * behind none. */
static bool change(uint64_t stream, uint64_t paid)
{
    unsigned thread = ca_thread_number();

    ca_lock_take(&lock);
    if (opened != paid && must_pay(stream, CA_WORK)) {
        ca_lock_drop(&lock);
        return false;
    }
    uint64_t before = stream_now();
    bool changes = before != CA_ORDER_OFF && before != stream;
    unsigned last = changes ? atomic_exchange(&ca_order_gate.changer, thread) : thread;
    if (changes) {
        bool several = before && last == thread && !ca_order_owed();
        atomic_store(&ca_order_gate.last, stream);
        atomic_store(&ca_order_current, several ? CA_ORDER_SEVERAL : stream);
    }
    if (changes && before)
        note_several();
    ca_lock_drop(&lock);
    if (changes && before && last != thread && !CA_MUTATED(order_second_thread))
        stop("a second thread uses a second stream");
    return true;
}

/* Nothing is handed out any more, which is set before this reads what is owed: once nothing is owed
 * either, no submission is checked. */
static void go_off(void)
{
    ca_lock_take(&lock);
    if (!ca_order_owed())
        atomic_store(&ca_order_current, CA_ORDER_OFF);
    ca_lock_drop(&lock);
}

void ca_order_before_other(uint64_t stream, void *queue, unsigned work)
{
    bool off = atomic_load_explicit(&ca_order_gate.ended, memory_order_relaxed);
    ca_order_unquiet();
    uint64_t current = stream_now(), now;
    bool other = !off && stream != current;

    if (!work && stream == current)
        return;
    if (current && current != stream)
        ca_count(submissions_elsewhere);
    if ((other && current) || (!off && work & CA_WORK_HELD && !CA_MUTATED(order_held)))
        note_several();
    do {
        now = atomic_load(&opened);
        if (must_pay(stream, work))
            pay(stream, queue, work, now);
    } while (other && !change(stream, now));
    if (off && !ca_order_owed())
        go_off();
}

void ca_order_after_other(uint64_t stream, unsigned work)
{
    ca_order_unquiet();
    if ((!work && stream == stream_now()) || (CA_MUTATED(order_held) && work & CA_WORK_HELD))
        return;
    if (atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed) &&
        !atomic_load_explicit(&ca_order_gate.ended, memory_order_relaxed))
        note_several();
}

void ca_order_waits_for(uint64_t stream)
{
    if (!atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed) ||
        atomic_load_explicit(&ca_order_gate.ended, memory_order_relaxed))
        return;
    uint64_t current = stream_now();
    if (stream && current && stream != current &&
        atomic_load(&ca_order_gate.changer) != ca_thread_number())
        stop("a second thread waits for a second stream");
}

uint64_t ca_order_wait_begins(uint64_t stream)
{
    void *context = atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed);

    if (!context || atomic_load_explicit(&ca_order_gate.ended, memory_order_relaxed))
        return 0;
    /* Before the check: what another stream gets in between is behind no fence up to this number.
     */
    uint64_t begun = next_number();
    if (stream && (stream != stream_now() || !ca_order_may(context)) &&
        !CA_MUTATED(order_false_proof))
        return 0;
    return begun;
}

void ca_order_wait_ended(uint64_t begun)
{
    void *context = atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed);

    if (!begun || !context)
        return;
    ca_raise(&ca_order_gate.passed, begun);
    ca_raise(&proved, begun);
}

void ca_order_stream_ends(uint64_t stream)
{
    if (!atomic_load_explicit(&ca_order_gate.only, memory_order_relaxed) ||
        CA_MUTATED(order_stream_ended))
        return;
    ca_lock_take(&lock);
    uint64_t current = stream_now();
    if (current && current != CA_ORDER_OFF && (!stream || current == stream)) {
        atomic_store(&ca_order_current, NO_STREAM);
        note_several();
    }
    for (unsigned i = 0; i < PAYERS; i++)
        if (!stream || payers[i].stream == stream)
            payers[i].stream = 0;
    if (!stream || owner == stream)
        owner = NO_STREAM;
    ca_lock_drop(&lock);
}

/* --- life ------------------------------------------------------------------------------------- */

void ca_order_start(const ca_upstream_t *with, void *context, uint64_t nanoseconds)
{
    if (atomic_load(&ca_order_gate.ended))
        return;
    upstream = with;
    wait_ns = nanoseconds;
    atomic_store(&ca_order_gate.only, context);
}

void ca_order_forget(const void *context)
{
    void *unused[DEBTS], *owner = atomic_load(&ca_order_gate.only);

    if (owner != context || !context)
        return;
    ca_lock_take(&lock);
    for (unsigned i = 0; i < DEBTS; i++) {
        debts[i].owed = false;
        unused[i] = unused_fence(&debts[i]);
    }
    recount();
    atomic_store(&ca_order_gate.only, NULL);
    ca_lock_drop(&lock);
    release(owner, unused);
}

void ca_order_end(const char *why)
{
    if (CA_MUTATED(order_other_context))
        return;
    if (why && !stop(why))
        return;
    atomic_store(&ca_order_gate.ended, true);
    ca_lock_take(&lock);
    owner = NO_STREAM;
    ca_lock_drop(&lock);
    ca_order_leave();
    /* As long as anything is owed every stream comes by, that one too. */
    atomic_store(&ca_order_current, ca_order_owed() ? NO_STREAM : CA_ORDER_OFF);
}

bool ca_order_is_over(void)
{
    return atomic_load_explicit(&ca_order_gate.ended, memory_order_relaxed);
}

void ca_order_hold(bool on)
{
    if (on)
        atomic_fetch_add(&ca_order_gate.held, 1);
    else
        atomic_fetch_sub(&ca_order_gate.held, 1);
}

void ca_order_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_ORDER);
    for (unsigned i = 0; i < DEBTS; i++)
        debts[i] = (debt_t){0};
    for (unsigned i = 0; i < PAYERS; i++)
        payers[i].stream = 0;
    atomic_store(&ca_order_gate.only, NULL);
    atomic_store(&ca_order_gate.ended, false);
    atomic_store(&ca_order_gate.held, 0);
    atomic_store(&ca_order_newest, 0);
    atomic_store(&ca_order_gate.several_until, 0);
    atomic_store(&ca_order_gate.passed, 0);
    atomic_store(&proved, 0);
    atomic_store(&ca_order_gate.quiet, 0);
    atomic_store(&ca_order_gate.last, 0);
    atomic_store(&ca_order_current, 0);
}
