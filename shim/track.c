#include "shim/track.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "config/counters.h"
#include "config/log.h"
#include "config/options.h"
#include "registry/stack.h"
#include "shim/record.h"

_Thread_local uint32_t ca_track_runtime_stack;

_Thread_local uint32_t ca_track_this_thread;

uint32_t ca_track_ask_thread(void)
{
    return ca_track_this_thread = (uint32_t)syscall(SYS_gettid);
}

/* Set by the linker: where this shared object begins and ends. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

uint32_t ca_track_stack(void)
{
    static _Atomic bool opened;
    if (ca_options.stacks == CA_STACKS_OFF)
        return 0;
    if (!atomic_load_explicit(&opened, memory_order_relaxed) && !atomic_exchange(&opened, true)) {
        ca_stack_set_own_range((uintptr_t)__ehdr_start, (uintptr_t)_end);
        ca_stack_start(ca_options.stack_depth);
    }
    return ca_stack_capture();
}

/* A context that is retired drops its records once: one that comes later goes by itself. */
bool ca_track_dropped(const ca_context_t *context, uint64_t address)
{
    ca_record_t record;
    return context && atomic_load(&context->state) == CA_CONTEXT_RETIRED &&
           ca_registry_take(address, &record);
}

/* The pool's blocks have a place for the record. */
static int insert(const ca_record_t *record)
{
    bool pooled = record->owner && !record->shared && record->kind != CA_KIND_ALIAS &&
                  record->kind != CA_KIND_EXTERNAL;
    return pooled ? ca_registry_insert_at(ca_block_slot(record->owner), record)
                  : ca_registry_insert(record);
}

/* Notes where and by whom, too. */
static int note(ca_record_t *record)
{
    record->stack = ca_track_runtime_stack ? ca_track_runtime_stack : ca_track_stack();
    record->thread = ca_track_thread();
    int result = insert(record);
    if (result == -ENOMEM)
        ca_warn_once("no host memory for the registry: some allocations are not tracked");
    else if (atomic_load_explicit(&ca_record_on, memory_order_relaxed))
        ca_record_alloc(record);
    return result == -EEXIST ? 0 : result;
}

int ca_track_alloc(ca_kind_t kind, uint64_t address, size_t bytes, const ca_context_t *context,
                   CUstream stream, void *owner)
{
    ca_record_t record = {
        .address = address,
        .bytes = bytes,
        .kind = kind,
        .device = context ? context->device : 0,
        .context = context ? context->number : 0,
        .stream = (uint64_t)(uintptr_t)stream,
        .owner = owner,
    };
    int result = note(&record);
    if (result == 0)
        ca_track_dropped(context, address);
    return result;
}

void ca_track_process_alloc(ca_kind_t kind, uint64_t address, size_t bytes, uint8_t device)
{
    ca_record_t record = {.address = address, .bytes = bytes, .kind = kind, .device = device};
    note(&record);
}

void ca_track_driver_alloc(ca_kind_t kind, uint64_t address, size_t bytes,
                           const ca_context_t *before, CUstream stream)
{
    const ca_context_t *now = ca_context_known();
    if (now && (!before || before == now))
        ca_track_alloc(kind, address, bytes, now, stream, NULL);
}

void ca_track_restore(const ca_record_t *record)
{
    insert(record);
    if (atomic_load_explicit(&ca_record_on, memory_order_relaxed))
        ca_record_alloc(record);
    ca_track_dropped(ca_context_numbered(record->context), record->address);
}

CUresult ca_track_wrong_free(uint64_t address)
{
    /* The last few addresses, so that a loop over one bad pointer says it once. */
    static _Atomic uint64_t said[64];
    _Atomic uint64_t *slot = &said[(address >> 9) % 64];
    CUresult code = ca_context_check();
    if (code != CUDA_SUCCESS)
        return code;
    ca_count(wrong_frees);
    if (atomic_exchange(slot, address) != address)
        ca_warn("free of %#llx: it lies in pooled memory but is not the start of a live "
                "allocation (freed twice, or an interior pointer); refused",
                (unsigned long long)address);
    return CUDA_ERROR_INVALID_VALUE;
}

void ca_track_reset_after_fork(void)
{
    ca_track_this_thread = 0; /* the child's only thread is the one that runs this */
    ca_track_runtime_stack = 0;
}
