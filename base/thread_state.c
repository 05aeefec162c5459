#include "base/thread_state.h"

#include <stdatomic.h>

_Thread_local ca_thread_t ca_thread = {
    .generations = {[0 ... CA_APIS - 1] = CA_THREAD_NO_GENERATION},
    .sample_left = -1,
};

static _Atomic unsigned numbers;

unsigned ca_thread_number_slow(void)
{
    ca_thread.number = 1 + atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
    return ca_thread.number;
}
