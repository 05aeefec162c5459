/* See fence_order.h. */
#include "pool/fence/fence_order.h"

#include <stdatomic.h>

#define CONTEXTS 4u

static _Atomic uint64_t newest;

/* Of the contexts that this thread freed in last. One that falls out makes waits bounded that need
 * not be. */
static _Thread_local struct {
    const void *context;
    uint64_t number;
} freed[CONTEXTS];

static unsigned place_of(const void *context)
{
    return (unsigned)((uintptr_t)context >> 6) % CONTEXTS;
}

uint64_t ca_fence_number(void)
{
    return atomic_fetch_add(&newest, 1) + 1;
}

uint64_t ca_fence_newest(void)
{
    return atomic_load(&newest);
}

void ca_fence_note_free(const void *context, uint64_t number)
{
    unsigned at = place_of(context);

    if (freed[at].context != context)
        freed[at].number = 0;
    freed[at].context = context;
    if (freed[at].number < number)
        freed[at].number = number;
}

uint64_t ca_fence_freed_after(const void *context)
{
    unsigned at = place_of(context);

    return freed[at].context == context ? freed[at].number : 0;
}
