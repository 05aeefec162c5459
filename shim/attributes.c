/* Lane D, watching cuPointerSetAttribute for CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: memory operations on
 * the whole driver allocation become synchronous, with us the whole segment. It is unset when the
 * last block of a segment that was given it is freed. */
#include "shim/attributes.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/options.h"
#include "pool/arena.h"
#include "shim/driver_table.h"
#include "shim/hit.h"

#define MARKS_MAX 1024

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static struct {
    uint64_t address;
    uint64_t segment; /* base of the driver's allocation */
} marks[MARKS_MAX];
_Atomic size_t ca_attributes_marks;

/* Returns whether the mark is there now. */
static bool mark(uint64_t address, uint64_t segment)
{
    bool marked = true;
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks), i = 0;
    while (i < count && marks[i].address != address)
        i++;
    if (i == count && count < MARKS_MAX) {
        marks[count].address = address;
        marks[count].segment = segment;
        atomic_store(&ca_attributes_marks, count + 1);
        ca_hit_settle();
    } else {
        marked = i < count;
    }
    ca_lock_drop(&lock);
    return marked;
}

/* Takes the mark off. Whether it was the last one of its segment. */
static bool unmark(uint64_t address)
{
    bool last = false;
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks);
    for (size_t i = 0; i < count; i++) {
        if (marks[i].address != address)
            continue;
        uint64_t segment = marks[i].segment;
        marks[i] = marks[--count];
        last = true;
        for (size_t k = 0; k < count; k++)
            last &= marks[k].segment != segment;
    }
    atomic_store(&ca_attributes_marks, count);
    ca_hit_settle();
    ca_lock_drop(&lock);
    return last;
}

void ca_attributes_clear(uint64_t address)
{
    if (!ca_attributes_any() || !unmark(address))
        return;
    unsigned off = 0;
    __typeof__(cuPointerSetAttribute) *set = ca_driver()->cuPointerSetAttribute;
    if (set)
        set(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

CA_EXPORT CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                                 CUdeviceptr address)
{
    CA_REAL(cuPointerSetAttribute);
    CUresult code = real(value, attribute, address);
    if (code != CUDA_SUCCESS || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        !(ca_pool_owns(address) || ca_options.backend == CA_BACKEND_ASYNC))
        return code;
    CUdeviceptr segment = 0;
    __typeof__(cuMemGetAddressRange_v2) *range = ca_driver()->cuMemGetAddressRange_v2;
    if (!*(const unsigned *)value)
        unmark(address);
    else if (!range || range(&segment, NULL, address) != CUDA_SUCCESS || !mark(address, segment))
        ca_warn_once("SYNC_MEMOPS stays set on some pooled memory");
    return code;
}

void ca_attributes_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    atomic_store(&ca_attributes_marks, 0);
}
