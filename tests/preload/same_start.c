/* Stacks that start at the same place, return address and stack pointer, and go different ways from
 * there: the library must tell each as it is, however often it has seen another one. */
#include "api.h"

#define FRAMES 3 /* allocate's, its caller's, that one's caller's */

static void *expected[FRAMES];
static volatile unsigned sink; /* written after calls, so that none becomes a jump */

static NOINLINE void allocate(void)
{
    void *pointer, *stack[FRAMES];
    expected[1] = __builtin_return_address(0);
    OK(cudaMalloc(&pointer, 1000));
    cachealloc_info_t info = {.size = sizeof(info), .stack = stack, .stack_capacity = FRAMES};
    OK(cachealloc_info(pointer, &info));
    CHECK(info.stack_count == FRAMES);
    for (int i = 1; i < FRAMES; i++)
        if (stack[i] != expected[i])
            FAIL("frame %d is %p, should be %p", i, stack[i], expected[i]);
    OK(cudaFree(pointer));
    sink++;
}

/* One wrapper, many callers. */
static NOINLINE void wrapper(void)
{
    expected[2] = __builtin_return_address(0);
    allocate();
    sink++;
}

static NOINLINE void one_caller(void)
{
    wrapper();
    sink++;
}

static NOINLINE void other_caller(void)
{
    wrapper();
    sink += 2;
}

/* The stack pointer is the same where `inner` has taken what `outer` has not. Of the first such
 * call `inner` notes where its return address is: in the second, that is one of `outer`'s
 * variables, and has the value it had. */
static void **slot, *left_there;

static NOINLINE void inner(size_t room)
{
    volatile char *rest = __builtin_alloca(room);
    rest[0] = 1;
    expected[2] = __builtin_return_address(0);
    if (!slot) {
        slot = (void **)__builtin_frame_address(0) + 1;
        left_there = *slot;
    }
    allocate();
    sink += (unsigned)rest[0];
}

static NOINLINE void outer(size_t room, bool other)
{
    char *rest = __builtin_alloca(room);
    memset(rest, 0, room);
    if (slot && (char *)slot >= rest && (char *)slot < rest + room)
        *slot = left_there;
    if (other) {
        inner(1024 - room);
        sink += 2u + (unsigned)rest[0];
    } else {
        inner(1024 - room);
        sink += 1u + (unsigned)rest[0];
    }
}

int main(void)
{
    if (!api_there())
        return 0;
    for (unsigned i = 0; i < 40; i++)
        if (i / 4 % 2)
            other_caller();
        else
            one_caller();
    for (unsigned i = 0; i < 40; i++)
        outer(i / 4 % 2 ? 512 : 64, i / 4 % 2);
    return 0;
}
