/* Stacks that a program makes: coroutines, in memory that is unmapped and comes again, of another
 * size and with nothing behind it: who reads beyond it by what was remembered ends the program. It
 * lies where the thread's own stack might grow to if nothing limited it. */
#include "tests/callgraphs/callgraphs.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <ucontext.h>

#define LEAST_BYTES ((size_t)256 << 10)
#define DEPTH 3 /* coroutines in coroutines, each with a place of its own */

typedef struct coroutine {
    ucontext_t own, resumer;
    uint64_t way;
    unsigned levels;
    bool done;
} coroutine_t;

static __thread unsigned depth;
static __thread void *places[DEPTH];
static __thread coroutine_t *current;

static void body(void)
{
    coroutine_t *self = current;
    check();
    swapcontext(&self->own, &self->resumer);
    go_on(self->way, self->levels);
    swapcontext(&self->own, &self->resumer);
    check();
    self->done = true;
    swapcontext(&self->own, &self->resumer);
    fail("a coroutine that has ended goes on");
}

static void resume(coroutine_t *coroutine)
{
    coroutine_t *outer = current;
    current = coroutine;
    swapcontext(&coroutine->resumer, &coroutine->own);
    current = outer;
}

NOINLINE void in_coroutine(uint64_t way, unsigned levels)
{
    if (depth == DEPTH) {
        go_on(way, levels);
        sink++;
        return;
    }
    /* Their starts are at the same distance from the lower or from the upper end. */
    size_t bytes = LEAST_BYTES << way % 2;
    if (!places[depth])
        places[depth] = (char *)__builtin_frame_address(0) - ((uintptr_t)(depth + 2) << 30);
    void *low = mmap(places[depth], bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (low == MAP_FAILED)
        fail("no memory for a coroutine");
    count(COROUTINES);
    if (low == places[depth])
        count(COROUTINE_SAME_PLACE);
    places[depth] = low;
    depth++;
    coroutine_t coroutine = {.way = way, .levels = levels};
    getcontext(&coroutine.own);
    coroutine.own.uc_stack.ss_sp = low;
    coroutine.own.uc_stack.ss_size = way % 4 < 2 ? LEAST_BYTES : bytes;
    makecontext(&coroutine.own, body, 0);
    while (!coroutine.done)
        resume(&coroutine);
    depth--;
    munmap(low, bytes);
    sink++;
}
