/* Ends that skip destructors, after a leak of 2222 bytes: exits WAY [ARGUMENT]
 *
 *   _exit, _Exit STATUS     at once
 *   quick                   quick_exit(4), whose handler frees the leak and leaks 3000 bytes
 *   nested                  exit(4), and _exit(5) in an atexit handler
 *   interrupted MICROS      _exit(9) in the handler of a timer, amid allocations, malloc and dlopen
 *   fault BYTES             _exit(7) in a handler of SIGSEGV, on a stack with that many to spare
 *   fault-exit BYTES        exit(7) there
 *   disarmed BYTES          _exit(7) there, and the kernel does not tell that it is such a stack
 *   disarmed-exit BYTES     exit(7) there
 *   blocked                 exit(4) into a full pipe; the handler of a timer calls _exit(7)
 *   thread                  _exit(6) of a thread while main allocates
 *   vfork                   child by vfork that calls _exit(3); then 1000 bytes more, and exit(4)
 *   exit MODULE             exit(4), with a module open whose destructor calls _exit(8)
 *   amid SECONDS PATH       exit(4), while a report to PATH takes so long in another thread
 *   amid-quick SECONDS PATH _exit(0) there */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define NOINLINE __attribute__((noinline))
#define DISARMED ((int)(1u << 31)) /* SS_AUTODISARM of linux/signal.h */

static void *kept;
static int status_of_handler;
static atomic_uint seconds; /* for the next report */
static atomic_bool has_begun;

/* Which a report asks for: as slow as the names of a large program. */
__attribute__((visibility("default"))) int gethostname(char *name, size_t bytes)
{
    unsigned left = atomic_exchange(&seconds, 0);
    if (left)
        atomic_store(&has_begun, true);
    while (left)
        left = sleep(left);
    snprintf(name, bytes, "slow");
    return 0;
}

static NOINLINE void leak_here(size_t bytes)
{
    OK(cudaMalloc(&kept, bytes));
}

static void swap_leaks(void)
{
    OK(cudaFree(kept));
    leak_here(3000);
}

static void leave(int number)
{
    (void)number;
    _exit(status_of_handler);
}

static void leave_by_exit(int number)
{
    (void)number;
    exit(status_of_handler);
}

static void leave_5(void)
{
    _exit(5);
}

static void leave_after(int microseconds, int status)
{
    struct itimerval timer = {.it_value = {.tv_usec = microseconds}};
    status_of_handler = status;
    signal(SIGALRM, leave);
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* Until the process ends: in the pool, in the heap and in the loader by turns. */
static void *work(void *arg)
{
    for (unsigned i = 0;; i++) {
        void *pointer = NULL, *memory = malloc(100 << i % 8);
        if (cudaMalloc(&pointer, 500 << i % 8) == cudaSuccess)
            cudaFree(pointer);
        free(memory);
        void *module = i % 16 ? NULL : dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        if (module)
            dlclose(module);
    }
    return arg;
}

static void *leave_soon(void *arg)
{
    void *pointer;
    for (int i = 0; i < 100; i++) {
        OK(cudaMalloc(&pointer, 4096));
        OK(cudaFree(pointer));
    }
    _exit(6);
    return arg;
}

/* Who writes below it faults again, which nobody handles. */
static void *guarded(size_t bytes)
{
    char *pages = mmap(NULL, bytes + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + 4096, bytes, PROT_READ | PROT_WRITE) == 0);
    return pages + 4096;
}

static NOINLINE void fault_with(size_t spare, int flags, void (*handler)(int))
{
    size_t least = getauxval(AT_MINSIGSTKSZ) + (getauxval(AT_MINSIGSTKSZ) ? 0 : 8192),
           bytes = (least + spare + 63) / 64 * 64;
    stack_t stack = {.ss_sp = guarded(bytes), .ss_size = bytes, .ss_flags = flags};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    status_of_handler = 7;
    CHECK(sigaltstack(&stack, NULL) == 0);
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    raise(SIGSEGV);
}

static void fill_stderr(void)
{
    int ends[2];
    char block[4096] = {0};
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    while (write(ends[1], block, sizeof block) > 0)
        ;
    CHECK(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
}

static void end_child(void)
{
    int status = -1;
    pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork): the point */
    if (child == 0)
        _exit(3);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    leak_here(1000);
}

static void *dump(void *path)
{
    OK(cachealloc_dump(path));
    return NULL;
}

static void begin_report(unsigned slow, char *path)
{
    pthread_t thread;
    atomic_store(&seconds, slow);
    OK(pthread_create(&thread, NULL, dump, path));
    OK(pthread_detach(thread)); /* ThreadSanitizer wants it so, or waited for */
    while (!atomic_load(&has_begun))
        sched_yield();
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "return", *module = argc > 2 ? argv[2] : "";
    int argument = (int)number_argument(argc, argv, 2, 4);
    pthread_t thread;
    leak_here(2222);
    if (strcmp(way, "_exit") == 0) {
        _exit(argument);
    } else if (strcmp(way, "_Exit") == 0) {
        _Exit(argument);
    } else if (strcmp(way, "quick") == 0) {
        CHECK(at_quick_exit(swap_leaks) == 0);
        quick_exit(4);
    } else if (strcmp(way, "nested") == 0) {
        atexit(leave_5);
    } else if (strcmp(way, "interrupted") == 0) {
        leave_after(argument, 9);
        OK(pthread_create(&thread, NULL, work, NULL));
        work(NULL);
    } else if (strcmp(way, "fault") == 0) {
        fault_with((size_t)argument, 0, leave);
    } else if (strcmp(way, "fault-exit") == 0) {
        fault_with((size_t)argument, 0, leave_by_exit);
    } else if (strcmp(way, "disarmed") == 0) {
        fault_with((size_t)argument, DISARMED, leave);
    } else if (strcmp(way, "disarmed-exit") == 0) {
        fault_with((size_t)argument, DISARMED, leave_by_exit);
    } else if (strcmp(way, "blocked") == 0) {
        fill_stderr();
        leave_after(200000, 7);
    } else if (strcmp(way, "thread") == 0) {
        OK(pthread_create(&thread, NULL, leave_soon, NULL));
        work(NULL);
    } else if (strcmp(way, "vfork") == 0) {
        end_child();
    } else if (strcmp(way, "exit") == 0) {
        CHECK(dlopen(module, RTLD_NOW));
    } else if (strncmp(way, "amid", 4) == 0) {
        begin_report((unsigned)argument, argv[3]);
        if (strcmp(way, "amid-quick") == 0)
            _exit(0);
    }
    exit(4);
}
