/* See pin_mode.h.
 *
 * The wish is stored first, then applied to the contexts there are; a new context is published
 * first, then looks at the wish: so none is missed. One that both sides find is pinned once,
 * because each context remembers whether it is. */
#include "shim/upstream/pin_mode.h"

#include "base/lock.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS); /* of `wishes` and of every `pin_mode` */
static size_t wishes;                                   /* calls with `on` not yet taken back */

/* `bit` of the context's mask stands for this arena. Returns whether it changed. Under the lock. */
static void apply(ca_context_t *context, ca_arena_t *arena, unsigned bit)
{
    if (!arena || (context->pin_mode & bit) == (wishes ? bit : 0))
        return;
    context->pin_mode ^= bit;
    ca_arena_pin(arena, wishes > 0);
}

void ca_pin_mode_apply(ca_context_t *context)
{
    ca_lock_take(&lock);
    apply(context, context->arena, 1);
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++)
        apply(context, atomic_load(&context->pinned[i]), 2u << i);
    ca_lock_drop(&lock);
}

void ca_pin_mode_forget(ca_context_t *context)
{
    ca_lock_take(&lock);
    context->pin_mode = 0;
    ca_lock_drop(&lock);
}

void ca_pin_mode_set(bool on)
{
    ca_context_t *living[CA_CONTEXTS_MAX];

    ca_lock_take(&lock);
    if (on)
        wishes++;
    else if (wishes)
        wishes--;
    ca_lock_drop(&lock);
    size_t count = ca_contexts_living(living);
    for (size_t i = 0; i < count; i++)
        ca_pin_mode_apply(living[i]);
}

void ca_pin_mode_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    wishes = 0;
}
