/* A pair of calls on a stack that the program made, in steady state: the kernel ends the program
 * with the first system call of one. Which stack is the argument: "thread", "coroutine", "bare" (a
 * coroutine's whose first function returns to no code), "many" (some coroutines, in turn), "signal"
 * (an alternate stack). Exit status 77 where the kernel has no such filter. */
#include "api.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)64 << 10)
#define COROUTINES 8
#define PAIRS 1000
#define WARM_ROUNDS 5
#define ROUNDS 7
#define WARM 4000

static volatile unsigned sink;
static ucontext_t resumer;
static ucontext_t coroutines[COROUTINES];
static void (*volatile body)(void);

static NOINLINE void pairs(unsigned count)
{
    void *pointer;
    for (unsigned i = 0; i < count; i++) {
        if (cudaMalloc(&pointer, 1000 + i % 4 * 512) != cudaSuccess ||
            cudaFree(pointer) != cudaSuccess)
            _exit(1);
    }
    sink++;
}

/* Not the library's, which asks for more. */
static void leave(void)
{
    syscall(SYS_exit_group, 0);
}

/* From here on only that. */
static void forbid_system_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof rules[0], rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static NOINLINE void deep(unsigned levels, unsigned count)
{
    volatile char room[64];
    room[0] = (char)levels;
    if (levels)
        deep(levels - 1, count);
    else
        pairs(count);
    sink += (unsigned)room[0];
}

static NOINLINE void measure(void)
{
    for (volatile unsigned i = 0; i < ROUNDS; i++) { /* one place for all rounds */
        if (i == WARM_ROUNDS)
            forbid_system_calls();
        deep(0, PAIRS);
        deep(10, PAIRS);
    }
    leave();
}

static void *new_stack(void)
{
    void *low = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED);
    return low;
}

static void run_coroutine(void)
{
    body();
}

static void make(ucontext_t *coroutine)
{
    CHECK(getcontext(coroutine) == 0);
    coroutine->uc_stack.ss_sp = new_stack();
    coroutine->uc_stack.ss_size = STACK_BYTES;
    coroutine->uc_link = &resumer;
    makecontext(coroutine, run_coroutine, 0);
}

/* No system call, as swapcontext makes one for the mask of signals. */
static jmp_buf main_stack, stacks[COROUTINES];
static unsigned current;

static void yields(void)
{
    for (;;) {
        deep(2, 1);
        if (!_setjmp(stacks[current]))
            _longjmp(main_stack, 1);
    }
}

static NOINLINE void go_on(unsigned which)
{
    current = which;
    if (!_setjmp(main_stack))
        _longjmp(stacks[which], 1);
}

static void begins(void)
{
    if (!_setjmp(stacks[current]))
        swapcontext(&coroutines[current], &resumer);
    yields();
}

static NOINLINE void many(void)
{
    body = begins;
    for (current = 0; current < COROUTINES; current++) {
        make(&coroutines[current]);
        CHECK(swapcontext(&resumer, &coroutines[current]) == 0);
    }
    for (volatile unsigned i = 0; i < 2 * WARM; i++) {
        if (i == WARM)
            forbid_system_calls();
        go_on(i % COROUTINES);
    }
    leave();
}

static void on_signal(int number)
{
    (void)number;
    measure();
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    if (!strcmp(which, "thread")) {
        measure();
    } else if (!strcmp(which, "coroutine")) {
        body = measure;
        make(&coroutines[0]);
        CHECK(swapcontext(&resumer, &coroutines[0]) == 0);
    } else if (!strcmp(which, "many")) {
        many();
    } else if (!strcmp(which, "signal")) {
        stack_t stack = {.ss_sp = new_stack(), .ss_size = STACK_BYTES};
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
        CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
        raise(SIGUSR1);
    }
#if defined(__x86_64__)
    if (!strcmp(which, "bare")) {
        uintptr_t *top = (uintptr_t *)((char *)new_stack() + STACK_BYTES) - 2;
        top[-1] = 0xdeadc0c0deadc0c0;
        __asm__ volatile("mov %0, %%rsp\n\tjmp *%1" : : "r"(top - 1), "r"(measure) : "memory");
    }
#endif
    FAIL("unknown: %s", which);
}
