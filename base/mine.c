#include "base/mine.h"

#include <stdatomic.h>

_Thread_local ca_mine_t ca_mine = {
    .tickets = {[0 ... CA_LANES - 1] = CA_MINE_NO_TICKET},
    .sample_left = -1,
};

static _Atomic unsigned numbers;

unsigned ca_mine_ask_number(void)
{
    ca_mine.number = 1 + atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
    return ca_mine.number;
}
