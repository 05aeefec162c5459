#include "shim/life/handler.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)64 << 10)

#if defined(__x86_64__)
#define RESTORERS_MOST 8
#define WORDS 128 /* at a time */
#define DEPTH (64u << 10)
#define HAS_RESTORER 0x04000000u

/* As the kernel has it (rt_sigaction). On this processor a handler returns to `restorer`. */
typedef struct action {
    uintptr_t handler;
    unsigned long flags;
    uintptr_t restorer;
    unsigned long mask;
} action_t;

/* Of all handlers; one, where the C library installed them. */
static size_t find_restorers(uintptr_t restorers[RESTORERS_MOST])
{
    size_t count = 0;
    for (int number = 1; number < _NSIG; number++) {
        action_t action;
        if (syscall(SYS_rt_sigaction, number, NULL, &action, sizeof action.mask) != 0 ||
            action.handler <= (uintptr_t)SIG_IGN || !(action.flags & HAS_RESTORER))
            continue;
        size_t i = 0;
        while (i < count && restorers[i] != action.restorer)
            i++;
        if (i == count && count < RESTORERS_MOST)
            restorers[count++] = action.restorer;
    }
    return count;
}

/* Through the kernel, which answers where the stack ends. Bytes read, none there. */
static size_t read_stack(uintptr_t address, void *to, size_t bytes)
{
    struct iovec here = {to, bytes}, there = {(void *)address, bytes};
    ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    return got > 0 ? (size_t)got : 0;
}

/* The kernel's frame begins with the return address, and the ucontext_t that follows says which
 * alternate stack there was. */
static bool frame_is_on_alternate_stack(uintptr_t frame)
{
    stack_t stack;
    uintptr_t at = frame + sizeof(uintptr_t) + offsetof(ucontext_t, uc_stack);
    return read_stack(at, &stack, sizeof stack) == sizeof stack &&
           frame - (uintptr_t)stack.ss_sp < stack.ss_size;
}

/* For the return address that the kernel gave a handler, DEPTH bytes up the stack at most: one that
 * was left there by an earlier handler may be taken for it. */
static bool find_return(bool *on_alternate)
{
    uintptr_t restorers[RESTORERS_MOST], words[WORDS];
    size_t count = find_restorers(restorers), got = WORDS;
    uintptr_t at = (uintptr_t)__builtin_frame_address(0);
    const uintptr_t end = at + DEPTH;
    for (; count && at < end && got == WORDS; at += sizeof words) {
        got = read_stack(at, words, sizeof words) / sizeof *words;
        for (size_t i = 0; i < got; i++)
            for (size_t k = 0; k < count; k++)
                if (words[i] == restorers[k]) {
                    *on_alternate = frame_is_on_alternate_stack(at + i * sizeof *words);
                    return true;
                }
    }
    return false;
}
#else
static bool find_return(bool *on_alternate)
{
    (void)on_alternate;
    return false;
}
#endif

/* A stack that is disarmed as long as a handler has it (SS_AUTODISARM) is known from its frame. */
static bool in_handler(bool *on_alternate)
{
    int saved = errno;
    stack_t now;
    *on_alternate = sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_ONSTACK);
    bool found = *on_alternate || find_return(on_alternate);
    errno = saved;
    return found;
}

/* One thread's at a time. */
static struct {
    atomic_flag in_use;
    void (*function)(bool in_handler);
    ucontext_t there, back;
    char stack[STACK_BYTES];
} roomy = {.in_use = ATOMIC_FLAG_INIT};

static void call_there(void)
{
    roomy.function(true);
}

void ca_handler_call(void (*function)(bool in_handler))
{
    bool on_alternate, found = in_handler(&on_alternate);
    if (!on_alternate) {
        function(found);
        return;
    }
    if (atomic_flag_test_and_set(&roomy.in_use) || getcontext(&roomy.there) != 0)
        return;
    roomy.function = function;
    roomy.there.uc_stack = (stack_t){.ss_sp = roomy.stack, .ss_size = sizeof roomy.stack};
    roomy.there.uc_link = &roomy.back;
    makecontext(&roomy.there, call_there, 0);
    (void)swapcontext(&roomy.back, &roomy.there);
    atomic_flag_clear(&roomy.in_use);
}
