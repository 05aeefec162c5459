#include "shim/alloc/track.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/counters.h"
#include "base/log.h"
#include "config/options.h"
#include "registry/python/python.h"
#include "registry/stack/stack.h"
#include "registry/table/allocated.h"
#include "registry/table/threads.h"
#include "shim/alloc/debug_free.h"
#include "shim/cuda/driver_table.h"
#include "shim/alloc/recorder.h"

_Thread_local uint32_t ca_track_runtime_stack;

_Thread_local uint32_t ca_track_this_thread;

uint32_t ca_track_get_thread(void)
{
    ca_track_this_thread = (uint32_t)syscall(SYS_gettid);
    ca_threads_note(ca_track_this_thread);
    ca_thread_counts_join(); /* or a thread that has no cache counts where all others do */
    return ca_track_this_thread;
}

/* Set by the linker: where this shared object begins and ends. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

/* Every allocation has its stack, and the unwinder is open: the fast path need not ask for more. */
static _Atomic bool always;

uint32_t ca_track_stack(void)
{
    static _Atomic bool opened;
    if (ca_options.stacks.which == CA_STACKS_OFF)
        return 0;
    if (!atomic_load_explicit(&opened, memory_order_relaxed) && !atomic_exchange(&opened, true)) {
        ca_stack_set_own_range((uintptr_t)__ehdr_start, (uintptr_t)_end);
        ca_stack_start(ca_options.stack_depth);
        atomic_store_explicit(&always, ca_options.stacks.which == CA_STACKS_ALL,
                              memory_order_relaxed);
    }
    return ca_stack_capture();
}

uint32_t ca_track_stack_drawn(size_t bytes)
{
    if (__builtin_expect(atomic_load_explicit(&always, memory_order_relaxed), 1)) {
        ca_thread.sample_left = -1;
        return ca_stack_capture();
    }
    return ca_sample_draw(bytes) ? ca_track_stack() : 0;
}

void ca_track_start(void)
{
    const ca_choice_t *stacks = &ca_options.stacks;
    ca_python_start((ca_python_choice_t)ca_options.python, ca_options.python_depth);
    ca_sample_start(stacks->which == CA_STACKS_ALL   ? CA_SAMPLE_ALL
                    : stacks->which == CA_STACKS_OFF ? CA_SAMPLE_NONE
                                                     : stacks->bytes);
}

/* A context that is retired drops its records once: one that comes later goes by itself. */
bool ca_track_dropped(const ca_context_t *context, uint64_t address)
{
    return context && atomic_load(&context->state) == CA_CONTEXT_RETIRED &&
           ca_registry_take_of(address, atomic_load(&context->number));
}

void ca_track_history(ca_event_kind_t event, const ca_allocation_t *record)
{
    bool freed = event == CA_EVENT_FREE;
    if (record->shared)
        return;
    ca_history_note(.event = (uint8_t)event, .address = record->address, .bytes = record->bytes,
                    .stream = ca_registry_stream(record),
                    .stack = freed ? ca_track_stack() : record->stack, .thread = ca_track_thread(),
                    .device = record->device, .kind = record->kind);
    (freed ? ca_allocated_freed : ca_allocated_add)(record);
}

/* The pool's blocks have a place for the record. */
static int insert(const ca_allocation_t *record, bool replaces)
{
    bool pooled = record->owner && !record->shared && record->kind != CA_KIND_ALIAS &&
                  record->kind != CA_KIND_EXTERNAL;
    if (pooled)
        return (replaces ? ca_registry_insert_at
                         : ca_registry_insert_at_new)(ca_block_record(record->owner), record);
    int result = (replaces ? ca_registry_insert : ca_registry_insert_new)(record);
    return result == -EEXIST ? 0 : result;
}

int ca_track_insert(ca_context_t *context, const ca_allocation_t *record)
{
    if (!context)
        return insert(record, true);
    /* A call that may destroy it waits for the threads that are in there. */
    ca_in_flight_enter(&context->entered);
    int result = insert(record, atomic_load(&context->state) == CA_CONTEXT_SERVING);
    ca_in_flight_leave(&context->entered);
    if (result == 0)
        ca_track_dropped(context, record->address);
    return result;
}

/* Notes the place and the thread, too. */
static int complete_and_insert(ca_context_t *context, ca_allocation_t *record)
{
    record->stack = ca_sample_passes(record->bytes) || !ca_sample_draw(record->bytes) ? 0
                    : ca_track_runtime_stack ? ca_track_runtime_stack
                                             : ca_track_stack();
    record->thread = ca_track_thread();
    int result = ca_track_insert(context, record);
    if (result == -ENOMEM)
        ca_warn_once("no host memory for the registry: some allocations are not tracked");
    if (result == 0 && atomic_load_explicit(&ca_recorder_on, memory_order_relaxed))
        ca_recorder_alloc(record);
    if (result == 0 && atomic_load_explicit(&ca_history_on, memory_order_relaxed))
        ca_track_history(CA_EVENT_ALLOC, record);
    return result;
}

int ca_track_alloc(ca_kind_t kind, uint64_t address, size_t bytes, ca_context_t *context,
                   CUstream stream, void *owner)
{
    ca_allocation_t record = {
        .address = address,
        .bytes = bytes,
        .kind = kind,
        .device = context ? context->device : 0,
        .context = context ? context->number : 0,
        .stream = (uint64_t)(uintptr_t)stream,
        .owner = owner,
    };
    return complete_and_insert(context, &record);
}

void ca_track_process_alloc(ca_kind_t kind, uint64_t address, size_t bytes, uint8_t device)
{
    ca_allocation_t record = {.address = address, .bytes = bytes, .kind = kind, .device = device};
    complete_and_insert(NULL, &record);
}

void ca_track_driver_alloc(ca_kind_t kind, uint64_t address, size_t bytes,
                           const ca_context_t *before, CUstream stream)
{
    ca_context_t *now = ca_context_known();
    if (now && (!before || before == now))
        ca_track_alloc(kind, address, bytes, now, stream, NULL);
}

void ca_track_restore(const ca_allocation_t *record)
{
    ca_track_insert(record->context ? ca_context_numbered(record->context) : NULL, record);
    if (atomic_load_explicit(&ca_recorder_on, memory_order_relaxed))
        ca_recorder_alloc(record);
}

/* While the record was out, another thread could not tell the pointer from one that is not ours,
 * and its free went to the driver as well. Only memory that the driver served can go so. */
static bool went_meanwhile(const ca_allocation_t *record, CUresult code)
{
    unsigned type;
    __typeof__(cuPointerGetAttribute) *ask = ca_driver()->cuPointerGetAttribute;
    return code == CUDA_ERROR_INVALID_VALUE && !record->owner && ask &&
           ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, record->address) ==
               CUDA_ERROR_INVALID_VALUE;
}

CUresult ca_track_refused(const ca_allocation_t *record, ca_frees_t call, CUresult code)
{
    if (went_meanwhile(record, code))
        return ca_debug_explain_refusal(record->address, code);
    ca_track_restore(record);
    ca_debug_explain_kind(record, call, code);
    return code;
}

CUresult ca_track_invalid_free(uint64_t address)
{
    CUresult code = ca_context_check();
    if (code != CUDA_SUCCESS)
        return code;
    ca_count(wrong_frees);
    ca_debug_explain_free(address);
    return CUDA_ERROR_INVALID_VALUE;
}

void ca_track_reset_after_fork(void)
{
    ca_track_this_thread = 0; /* the child's only thread is the one that runs this */
    ca_track_runtime_stack = 0;
    ca_threads_reset_after_fork();
}
