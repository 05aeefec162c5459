/* See unknown_entry.h. A trampoline is never freed: the program keeps its address. */
#include "shim/driver/unknown_entry.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/mutation.h"
#include "pool/fence/order.h"
#include "shim/cuda/submissions.h"

static const char *const known[] = {
#define CA_NO_WORK(name) #name,
#include "shim/hooks/known_entries.def"
};

/* shim/driver/unknown_trampolines.S */
extern __attribute__((visibility("hidden"))) const char ca_unknown_trampolines[];
__attribute__((visibility("hidden"))) void *ca_unknown_called(uint64_t index);

static void *_Atomic real[CA_UNKNOWN_MOST];

static int compare(const void *name, const void *entry)
{
    return strcmp(name, *(const char *const *)entry);
}

static bool is_known(const char *name)
{
    return bsearch(name, known, sizeof(known) / sizeof(known[0]), sizeof(known[0]), compare) !=
           NULL;
}

void *ca_unknown_called(uint64_t index)
{
    ca_order_end("an entry point of the driver was called that is not known here");
    return atomic_load_explicit(&real[index], memory_order_relaxed);
}

/* The index of `address`, or the next free one, which it gets. -1 where all are in use. */
static int index_of(void *address)
{
    for (int i = 0; i < CA_UNKNOWN_MOST; i++) {
        void *there = NULL;
        if (atomic_compare_exchange_strong(&real[i], &there, address) || there == address)
            return i;
    }
    return -1;
}

void *ca_unknown_entry(void *address, const char *name)
{
    if (atomic_load_explicit(&ca_order_current, memory_order_relaxed) == CA_ORDER_OFF ||
        is_known(name) || CA_MUTATED(order_unseen))
        return address;
    int index = index_of(address);
    if (index < 0) {
        ca_order_end("more entry points of the driver were looked up than can be watched");
        return address;
    }
    return (void *)(uintptr_t)(ca_unknown_trampolines + (size_t)index * CA_UNKNOWN_BYTES);
}
