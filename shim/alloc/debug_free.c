/* What was there is known from the ring of freed records (registry/table/freed.h). Frees that were
 * those of the fast path are not in it, or each would cost more; but where such a block still lies
 * in a thread's cache, its record has the stack and the thread of its last allocation. With
 * debug:frees there is no fast path, and the ring has every free. */
#include "shim/alloc/debug_free.h"
#include "base/lock.h"
#include "base/log.h"
#include "config/options.h"
#include "base/text.h"
#include "pool/cache/cache.h"
#include "registry/table/freed.h"
#include "shim/alloc/debug_notice.h"
#include "shim/alloc/track.h"

/* For a record that another thread has taken out and is about to note: 10 ms in all. */
#define TRIES 100
#define TRY_PAUSE_NS 100000

typedef unsigned long long number_t;

typedef struct found {
    enum { NOTHING, LIVE, FREED } what;
    ca_freed_t was; /* of LIVE its record alone */
    bool rounded;   /* its bytes are the block's: at most so many were asked for */
    bool unsure;    /* frees of the fast path may have come since */
} found_t;

uint32_t ca_debug_take_stack(void)
{
    return ca_track_runtime_stack ? ca_track_runtime_stack : ca_track_stack();
}

void ca_debug_note_free(const ca_allocation_t *record, uint32_t stack)
{
    if (!record->shared) /* a name of several: the memory stays */
        ca_freed_note(record, stack, ca_options.debug & CA_DEBUG_FREES ? ca_track_thread() : 0);
}

/* --- what is known ---------------------------------------------------------------------------- */

static bool spans_bytes(const ca_allocation_t *record)
{
    switch ((ca_kind_t)record->kind) {
    case CA_KIND_DEVICE:
    case CA_KIND_PITCHED:
    case CA_KIND_ASYNC:
    case CA_KIND_MANAGED:
    case CA_KIND_PINNED:
        return true;
    default:
        return false;
    }
}

/* In memory that the driver served; takes time in proportion to all that is live. */
static bool find_live_of_driver(uint64_t address, ca_allocation_t *record)
{
    ca_allocation_t *records;
    size_t count;
    unsigned busy;
    bool found = false;
    if (ca_registry_snapshot(&records, &count, &busy) != 0)
        return false;
    for (size_t i = 0; i < count && !found; i++)
        if (spans_bytes(&records[i]) && address - records[i].address < records[i].bytes) {
            *record = records[i];
            found = true;
        }
    ca_registry_snapshot_free(records, count);
    return found;
}

static bool find_live(uint64_t address, bool pooled, ca_allocation_t *record)
{
    if (!pooled)
        return find_live_of_driver(address, record);
    uint64_t start = ca_pool_block_at(address);
    return start && start != address && ca_registry_find(start, record);
}

/* From the block's record. */
static void describe_cached(const ca_pool_place_t *cached, found_t *found)
{
    const ca_context_t *context = cached->context;
    uint32_t stack = (uint32_t)cached->payload, thread = (uint32_t)(cached->payload >> 32);
    const ca_allocation_t *noted = &found->was.record;
    if (found->what == FREED && noted->address == cached->block && noted->stack == stack &&
        noted->thread == thread)
        return; /* the ring knows more of the same */
    found->what = FREED;
    found->rounded = true;
    found->was = (ca_freed_t){
        .record = {.address = cached->block,
                   .bytes = cached->bytes,
                   .kind = cached->host ? CA_KIND_PINNED : CA_KIND_DEVICE,
                   .device = context->device,
                   .stack = stack,
                   .thread = thread},
    };
}

/* What was freed says nothing of an address that came again since: in memory of the driver's, and
 * where its context went is not known. */
static bool find_freed(uint64_t address, bool pooled, ca_freed_t *freed)
{
    if (!ca_freed_find(address, freed))
        return false;
    const ca_allocation_t *record = &freed->record;
    const ca_context_t *context = ca_context_numbered(record->context);
    bool destroyed =
        record->context && (!context || atomic_load(&context->state) == CA_CONTEXT_RETIRED);
    return !destroyed && (pooled || record->address == address);
}

static void classify(uint64_t address, found_t *found)
{
    bool pooled = ca_pool_owns(address);
    *found = (found_t){.what = NOTHING};
    if (find_live(address, pooled, &found->was.record)) {
        found->what = LIVE;
        return;
    }
    if (find_freed(address, pooled, &found->was)) {
        found->what = FREED;
        found->unsure = pooled && !(ca_options.debug & CA_DEBUG_ANY) &&
                        found->was.record.bytes <= CA_CACHE_MOST;
    }
    ca_pool_place_t place = pooled ? ca_pool_place(address) : (ca_pool_place_t){0};
    if (place.cached && place.payload != 0) {
        describe_cached(&place, found);
        found->unsure = false;
    }
}

/* --- what is said ----------------------------------------------------------------------------- */

static void add_allocation(ca_text_t *text, const found_t *found)
{
    const ca_allocation_t *record = &found->was.record;
    ca_text_printf(text, "%s%llu bytes of %s memory on device %u", found->rounded ? "up to " : "",
                   (number_t)record->bytes, ca_kind_name((ca_kind_t)record->kind),
                   (unsigned)record->device);
}

static void add_offset(ca_text_t *text, uint64_t address, const ca_allocation_t *record)
{
    if (address != record->address)
        ca_text_printf(text, ", at offset %llu of an allocation",
                       (number_t)(address - record->address));
}

static void add_finding(ca_text_t *text, uint64_t address, const found_t *found)
{
    const ca_allocation_t *record = &found->was.record;
    if (found->what == NOTHING) {
        ca_text_printf(text, "it lies in pooled memory but is not the start of a live allocation "
                             "(freed twice, or an interior pointer)");
    } else if (found->what == LIVE) {
        ca_text_printf(text, "it lies inside a live allocation, at offset %llu of ",
                       (number_t)(address - record->address));
        add_allocation(text, found);
        ca_text_printf(text, " at %#llx", (number_t)record->address);
    } else {
        ca_text_printf(text, "it was freed before");
        add_offset(text, address, record);
        ca_text_printf(text, found->unsure ? " and was, when last noted, " : " and was ");
        add_allocation(text, found);
    }
}

static void say(uint64_t address, const found_t *found)
{
    ca_notice_t notice = {.count = 0};
    ca_text_t text;
    ca_text_init(&text, notice.text, sizeof notice.text);
    ca_text_printf(&text, "free of %#llx: ", (number_t)address);
    add_finding(&text, address, found);
    ca_text_printf(&text, "; refused");
    const ca_allocation_t *record = &found->was.record;
    if (found->what != NOTHING)
        ca_notice_add(&notice, "allocated", record->stack, record->thread);
    if (found->what == FREED)
        ca_notice_add(&notice, "freed", found->was.stack, found->was.thread);
    ca_notice_add(&notice, found->what == FREED ? "freed again" : "this free", ca_track_stack(),
                  ca_track_thread());
    ca_notice_say(&notice);
}

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);

/* The last few addresses, so that a loop over some bad pointers says each once. */
static bool is_new(uint64_t address)
{
    static uint64_t said[64];
    static size_t next;
    bool known = false;
    ca_lock_take(&lock);
    for (size_t i = 0; i < 64; i++)
        known |= said[i] == address;
    if (!known)
        said[next++ % 64] = address;
    ca_lock_drop(&lock);
    return !known;
}

void ca_debug_explain_free(uint64_t address)
{
    found_t found;
    if (!is_new(address) || !ca_notice_wanted())
        return;
    classify(address, &found);
    for (int i = 0; i < TRIES && found.what == NOTHING; i++) {
        ca_sleep(TRY_PAUSE_NS);
        classify(address, &found);
    }
    say(address, &found);
}

CUresult ca_debug_explain_refusal(uint64_t address, CUresult code)
{
    found_t found;
    if (code != CUDA_ERROR_INVALID_VALUE || ca_options.log < CA_LOG_WARN || !is_new(address))
        return code;
    classify(address, &found);
    if (found.what != NOTHING && ca_notice_wanted())
        say(address, &found);
    return code;
}

void ca_debug_explain_kind(const ca_allocation_t *record, ca_frees_t call, CUresult code)
{
    bool of_host = record->kind == CA_KIND_PINNED;
    const found_t found = {.was.record = *record};
    ca_notice_t notice = {.count = 0};
    ca_text_t text;
    if (code != CUDA_ERROR_INVALID_VALUE || of_host == (call == CA_FREES_HOST) ||
        !spans_bytes(record) || !is_new(record->address) || !ca_notice_wanted())
        return;
    ca_text_init(&text, notice.text, sizeof notice.text);
    ca_text_printf(&text, "free of %#llx: ", (number_t)record->address);
    add_allocation(&text, &found);
    ca_text_printf(&text, ", which %s frees, not %s; refused",
                   of_host ? "cudaFreeHost" : "cudaFree", of_host ? "cudaFree" : "cudaFreeHost");
    ca_notice_add(&notice, "allocated", record->stack, record->thread);
    ca_notice_add(&notice, "this free", ca_track_stack(), ca_track_thread());
    ca_notice_say(&notice);
}

void ca_debug_free_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    ca_freed_reset_after_fork();
}
