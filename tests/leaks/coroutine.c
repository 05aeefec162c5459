/* A call stack of the program's own making, small and without a caller.
 *
 * plain: it warns of such stacks
 * expect: 910 bytes in 1, device: forget@forget < step@step
 */
#include <ucontext.h>
#include "tests/leaks/leak.h"

static ucontext_t caller, coroutine;
static int done;

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

FRAME static void step(void)
{
    done = forget(910); /* @step */
}

int main(void)
{
    static char stack[64 << 10];
    CHECK(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = sizeof(stack);
    coroutine.uc_link = &caller;
    makecontext(&coroutine, step, 0);
    CHECK(swapcontext(&caller, &coroutine) == 0 && done == 1);
    return 0;
}
