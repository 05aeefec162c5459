/* Driver hooks, what pointers are: attributes of the pool's memory that are not the driver's to
 * tell; and watching what sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: memory operations on the whole
 * driver allocation become synchronous, with us the whole segment. A block is marked, wherever in
 * it the program pointed, and the flag is unset with the last mark of a segment: when the block is
 * freed, or the program unsets it there. Where a mark could not be made it is never unset again:
 * memory that is at work over RDMA relies on it, and what has it needlessly is slower alone.
 *
 * Drivers refuse the flag for mapped memory, so for what lies in an expandable segment. Nothing can
 * replace it: where it is asked for the host, or a device on the bus, reads behind copies that
 * have not waited. So a warning says so, and the program gets other memory from then on. */
#include "shim/upstream/attributes.h"
#include <string.h>
#include "base/lock.h"
#include "base/log.h"
#include "config/options.h"
#include "pool/arena.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/expandable.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/unseen.h"

#define MARKS_MAX 1024

typedef struct mark {
    uint64_t address; /* of the block */
    uint64_t segment; /* base of the driver's allocation */
    uint16_t context; /* its number */
} mark_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static mark_t marks[MARKS_MAX];
_Atomic size_t ca_attributes_marks;
static _Atomic bool unmarked; /* some memory has the flag, and no mark */

typedef enum { FULL, THERE, ADDED } added_t;

static added_t add(const mark_t *mark)
{
    added_t what = THERE;
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks), i = 0;
    while (i < count && marks[i].address != mark->address)
        i++;
    if (i == count && count < MARKS_MAX) {
        marks[count] = *mark;
        atomic_store(&ca_attributes_marks, count + 1);
        ca_fast_invalidate();
        what = ADDED;
    } else if (i == count) {
        what = FULL;
    }
    ca_lock_drop(&lock);
    return what;
}

/* Takes the marks off that lie at `address` or, where that is 0, in `context`. Whether there were
 * any; `segment` (may be NULL) is set to that of one. */
static bool take_off(uint64_t address, uint16_t context, uint64_t *segment)
{
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks), kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (address ? marks[i].address != address : marks[i].context != context)
            marks[kept++] = marks[i];
        else if (segment)
            *segment = marks[i].segment;
    }
    if (kept != count) {
        atomic_store(&ca_attributes_marks, kept);
        ca_fast_invalidate();
    }
    ca_lock_drop(&lock);
    return kept != count;
}

/* Whether the flag must stay on the segment. */
static bool wanted(uint64_t segment)
{
    bool marked = atomic_load(&unmarked);
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks);
    for (size_t i = 0; i < count && !marked; i++)
        marked = marks[i].segment == segment;
    ca_lock_drop(&lock);
    return marked;
}

static CUresult set_flag(CUdeviceptr address, unsigned value)
{
    __typeof__(cuPointerSetAttribute) *set = ca_driver()->cuPointerSetAttribute;
    return set ? set(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) : CUDA_ERROR_NOT_SUPPORTED;
}

void ca_attributes_clear(uint64_t address)
{
    uint64_t segment;
    if (!ca_attributes_any() || !take_off(address, 0, &segment) || wanted(segment))
        return;
    set_flag(address, 0);
    if (wanted(segment)) /* another thread set it on a neighbour meanwhile */
        set_flag(address, 1);
}

void ca_attributes_drop_context(const ca_context_t *context)
{
    if (ca_attributes_any())
        take_off(0, atomic_load(&context->number), NULL);
}

/* The driver is asked for its own allocations alone: it answers in the context that is current. */
static bool describe(uint64_t address, mark_t *mark)
{
    ca_pool_place_t place = ca_pool_place(address);
    CUdeviceptr segment = place.segment, block = place.cached ? 0 : place.block;
    __typeof__(cuMemGetAddressRange_v2) *range = ca_driver()->cuMemGetAddressRange_v2;
    ca_allocation_t record;
    if (!segment && range && range(&segment, NULL, address) == CUDA_SUCCESS)
        block = segment; /* by backend:async, each is its own segment */
    *mark = (mark_t){.address = block, .segment = segment};
    mark->context = block && ca_registry_find(block, &record) ? record.context : 0;
    return block != 0;
}

/* The flag is about to be set. The mark comes first: a thread that unsets it on the segment looks
 * for marks afterwards. */
typedef struct setting {
    bool ours;
    added_t added;
    mark_t mark;
} setting_t;

static setting_t begin(CUdeviceptr address)
{
    setting_t set = {.ours = ca_pool_owns(address) || ca_options.backend == CA_BACKEND_ASYNC};
    if (set.ours && describe(address, &set.mark))
        set.added = add(&set.mark);
    return set;
}

static CUresult end(const setting_t *set, CUdeviceptr address, CUresult code)
{
    if (set->ours && code == CUDA_SUCCESS && set->added == FULL) {
        atomic_store(&unmarked, true);
        set_flag(address, 1); /* it may have been unset before that */
        ca_warn_once("SYNC_MEMOPS stays set on some pooled memory");
    } else if (code != CUDA_SUCCESS && set->added == ADDED) {
        take_off(set->mark.address, 0, NULL);
    }
    if ((code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_INVALID_VALUE) &&
        ca_range_holds(address))
        ca_expandable_refused("synchronous access (SYNC_MEMOPS)");
    return code;
}

static void unset(CUdeviceptr address)
{
    mark_t mark;
    if (!describe(address, &mark))
        return;
    take_off(mark.address, 0, NULL);
    if (wanted(mark.segment) && set_flag(address, 1) != CUDA_SUCCESS)
        ca_warn_once("SYNC_MEMOPS was unset on other memory, too");
}

/* Libraries ask about memory that devices on the bus, or other processes, are to reach: those are
 * in no stream's order. */
static void leave_order(CUdeviceptr address)
{
    ca_unseen_scan();
    if (ca_order_owed() && ca_pool_owns(address))
        ca_order_leave();
}

CA_EXPORT CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                                 CUdeviceptr address)
{
    CA_REAL(cuPointerSetAttribute);
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !value)
        return real(value, attribute, address);
    leave_order(address);
    if (*(const unsigned *)value) {
        setting_t set = begin(address);
        return end(&set, address, real(value, attribute, address));
    }
    CUresult code = real(value, attribute, address);
    if (code == CUDA_SUCCESS && (ca_pool_owns(address) || ca_options.backend == CA_BACKEND_ASYNC))
        unset(address);
    /* What cannot be set is not set. */
    return code == CUDA_ERROR_NOT_SUPPORTED && ca_range_holds(address) ? CUDA_SUCCESS : code;
}

bool ca_address_find(uint64_t address, ca_allocation_t *record)
{
    uint64_t block = ca_pool_owns(address) ? ca_pool_block_at(address) : 0;
    return block && ca_registry_find(block, record) && address - record->address < record->bytes;
}

bool ca_address_range_own(uint64_t address, ca_allocation_t *record)
{
    return ca_address_find(address, record) &&
           (record->kind == CA_KIND_PINNED || ca_range_holds(address));
}

static void write_context(void *value, uint16_t number)
{
    const ca_context_t *context = ca_context_numbered(number);
    CUcontext handle;
    memcpy(&handle, value, sizeof handle);
    if (handle || !context)
        return;
    handle = atomic_load(&context->handle);
    memcpy(value, &handle, sizeof handle);
}

/* Of pinned memory the driver tells the segment's range, of mapped memory that of all addresses
 * that were reserved, and no context. */
static void write_own(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    ca_allocation_t record;
    bool asked = attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                 attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                 attribute == CU_POINTER_ATTRIBUTE_CONTEXT;
    if (!asked || !value || !ca_address_range_own(address, &record))
        return;
    const CUdeviceptr base = record.address;
    const size_t bytes = record.bytes;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        memcpy(value, &base, sizeof base);
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        memcpy(value, &bytes, sizeof bytes);
    else
        write_context(value, record.context);
}

/* UCX asks whether memory has IPC handles, and goes another way where it has none. */
static void note_asked(CUpointer_attribute attribute)
{
    if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
        ca_expandable_sign("a program asked whether memory has IPC handles");
}

/* "Querying this attribute has a side effect of setting the attribute
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS" (cuda.h). */
CA_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                                 CUdeviceptr address)
{
    CA_REAL(cuPointerGetAttribute);
    leave_order(address);
    note_asked(attribute);
    if (__builtin_expect(attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS, 1)) {
        CUresult code = real(value, attribute, address);
        if (code == CUDA_SUCCESS)
            write_own(value, attribute, address);
        return code;
    }
    setting_t set = begin(address);
    return end(&set, address, real(value, attribute, address));
}

static CUresult with_own(CUresult code, unsigned count, const CUpointer_attribute *attributes,
                         void **values, CUdeviceptr address)
{
    for (unsigned i = 0; code == CUDA_SUCCESS && attributes && values && i < count; i++)
        write_own(values[i], attributes[i], address);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                                  void **values, CUdeviceptr address)
{
    CA_REAL(cuPointerGetAttributes);
    leave_order(address);
    unsigned i = 0;
    for (unsigned k = 0; attributes && k < count; k++)
        note_asked(attributes[k]);
    while (attributes && i < count && attributes[i] != CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        i++;
    if (__builtin_expect(!attributes || i == count, 1))
        return with_own(real(count, attributes, values, address), count, attributes, values,
                        address);
    setting_t set = begin(address);
    return with_own(end(&set, address, real(count, attributes, values, address)), count, attributes,
                    values, address);
}

void ca_attributes_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    atomic_store(&ca_attributes_marks, 0);
    atomic_store(&unmarked, false);
}
