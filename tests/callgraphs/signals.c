/* Frames of signal handlers, on the stack that was interrupted and on one of their own. */
#include "tests/callgraphs/callgraphs.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>

#define ALTERNATE_BYTES ((size_t)1 << 20)

/* Volatile: to the compiler, raise comes back here from nowhere. */
static __thread volatile uint64_t way_there;
static __thread volatile unsigned levels_there;
static __thread volatile bool on_alternate; /* a second one would begin at its start again */

static void handler(int number)
{
    uint64_t way = way_there;
    unsigned levels = levels_there;
    count(SIGNALS);
    go_on(way, levels);
    sink += (unsigned)number;
}

static void raise_one(int number, uint64_t way, unsigned levels)
{
    way_there = way;
    levels_there = levels;
    raise(number);
    sink++;
}

NOINLINE void on_signal(uint64_t way, unsigned levels)
{
    raise_one(SIGUSR1, way, levels);
    sink++;
}

NOINLINE void on_alternate_stack(uint64_t way, unsigned levels)
{
    if (on_alternate) {
        raise_one(SIGUSR1, way, levels);
    } else {
        on_alternate = true;
        raise_one(SIGUSR2, way, levels);
        on_alternate = false;
    }
    sink++;
}

int signals_start(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
    stack_t stack = {.ss_size = ALTERNATE_BYTES};
    stack.ss_sp =
        mmap(NULL, ALTERNATE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp == MAP_FAILED || sigaltstack(&stack, NULL) != 0 ||
        sigaction(SIGUSR1, &action, NULL) != 0)
        return -1;
    action.sa_flags |= SA_ONSTACK;
    return sigaction(SIGUSR2, &action, NULL);
}
