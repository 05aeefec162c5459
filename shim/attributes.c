/* Lane D, watching cuPointerSetAttribute for CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: memory operations on
 * the whole driver allocation become synchronous, with us the whole segment. A block is marked,
 * wherever in it the program pointed, and the flag is unset with the last mark of a segment: when
 * the block is freed, or the program unsets it there. */
#include "shim/attributes.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/options.h"
#include "pool/arena.h"
#include "registry/registry.h"
#include "shim/driver_table.h"
#include "shim/hit.h"

#define MARKS_MAX 1024

typedef struct mark {
    uint64_t address; /* of the block */
    uint64_t segment; /* base of the driver's allocation */
    uint16_t context; /* its number */
} mark_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static mark_t marks[MARKS_MAX];
_Atomic size_t ca_attributes_marks;

/* Returns whether the mark is there now. */
static bool add(const mark_t *mark)
{
    bool marked = true;
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks), i = 0;
    while (i < count && marks[i].address != mark->address)
        i++;
    if (i == count && count < MARKS_MAX) {
        marks[count] = *mark;
        atomic_store(&ca_attributes_marks, count + 1);
        ca_hit_settle();
    } else {
        marked = i < count;
    }
    ca_lock_drop(&lock);
    return marked;
}

/* Takes the marks off that lie at `address` or, where that is 0, in `context`. Whether there were
 * any, the last of their segments. */
static bool take_off(uint64_t address, uint16_t context)
{
    bool last = false;
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks), kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (address ? marks[i].address != address : marks[i].context != context) {
            marks[kept++] = marks[i];
            continue;
        }
        last = true;
        for (size_t k = 0; k < count; k++)
            last &= k == i || marks[k].segment != marks[i].segment;
    }
    if (kept != count) {
        atomic_store(&ca_attributes_marks, kept);
        ca_hit_settle();
    }
    ca_lock_drop(&lock);
    return last;
}

static bool segment_marked(uint64_t segment)
{
    bool marked = false;
    ca_lock_take(&lock);
    size_t count = atomic_load(&ca_attributes_marks);
    for (size_t i = 0; i < count && !marked; i++)
        marked = marks[i].segment == segment;
    ca_lock_drop(&lock);
    return marked;
}

void ca_attributes_clear(uint64_t address)
{
    if (!ca_attributes_any() || !take_off(address, 0))
        return;
    unsigned off = 0;
    __typeof__(cuPointerSetAttribute) *set = ca_driver()->cuPointerSetAttribute;
    if (set)
        set(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

void ca_attributes_drop_context(uint16_t context)
{
    if (ca_attributes_any())
        take_off(0, context);
}

/* Of the block that the address lies in; false where that cannot be told. */
static bool describe(uint64_t address, mark_t *mark)
{
    CUdeviceptr segment = 0;
    __typeof__(cuMemGetAddressRange_v2) *range = ca_driver()->cuMemGetAddressRange_v2;
    if (!range || range(&segment, NULL, address) != CUDA_SUCCESS)
        return false;
    uint64_t block = ca_pool_block_at(address); /* 0: by backend:async, each is its own segment */
    ca_record_t record;
    *mark = (mark_t){.address = block ? block : segment, .segment = segment};
    mark->context = ca_registry_find(mark->address, &record) ? record.context : 0;
    return true;
}

CA_EXPORT CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                                 CUdeviceptr address)
{
    CA_REAL(cuPointerSetAttribute);
    CUresult code = real(value, attribute, address);
    if (code != CUDA_SUCCESS || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        !(ca_pool_owns(address) || ca_options.backend == CA_BACKEND_ASYNC))
        return code;
    mark_t mark;
    const unsigned on = 1;
    bool known = describe(address, &mark);
    if (*(const unsigned *)value) {
        if (!known || !add(&mark))
            ca_warn_once("SYNC_MEMOPS stays set on some pooled memory");
    } else if (known) {
        take_off(mark.address, 0);
        if (segment_marked(mark.segment) && real(&on, attribute, address) != CUDA_SUCCESS)
            ca_warn_once("SYNC_MEMOPS was unset on other memory, too");
    }
    return code;
}

void ca_attributes_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    atomic_store(&ca_attributes_marks, 0);
}
