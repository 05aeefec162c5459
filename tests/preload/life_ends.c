/* Ways to end, after a leak of 2222 bytes: life_ends WAY [ARGUMENT]
 *
 *   return, exit, _exit, _Exit, quick_exit   with status 4 (and a line from a handler)
 *   abort, term, kill, segv                  by a signal
 *   handled                                  by _exit(7) in a handler of SIGSEGV
 *   interrupted                              by exit(9) in the handler of a timer, amid allocations
 *   amid MICROSECONDS                        by exit(9) in such a handler, amid malloc and free
 *   asked COUNT                              by exit(9) after that many of a timer's handlers each
 *                                            asked for the statistics, amid allocations
 *   atexit                                   frees the leak and leaks 3000 bytes in a handler
 *   early                                    tries the same in a handler that was there before CUDA
 *   pthread_exit                             main ends first, another thread leaks 1000 bytes more
 *   running                                  by return from main while threads allocate
 *   cancelled                                by exit(4) of a thread that is to be cancelled
 *   small                                    by exit(4) of a thread with a stack of 64 KiB
 *   lowered                                  by exit(4), its stack limited to 64 KiB from now on
 *
 * and states to end in, by return:
 *
 *   closed, full, pipe     stderr is closed, a full device, a pipe that nobody reads any more
 *   reused PATH            started without a stderr: the next file to be opened gets its number
 *   replaced PATH          the same, with a stderr that is closed first, and the file is read, too
 *   descriptors            no more descriptors, from the first CUDA call on
 *   chroot PATH            in a root with nothing in it, from after the first CUDA call on */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define THREADS 3

static void *kept;

static void leak(size_t bytes)
{
    void *freed[20];
    for (int i = 0; i < 20; i++)
        OK(cudaMalloc(&freed[i], 1000 << i % 10));
    OK(cudaMalloc(&kept, bytes));
    for (int i = 0; i < 20; i++)
        OK(cudaFree(freed[i]));
}

static void say(void)
{
    if (write(STDOUT_FILENO, "handler\n", 8) != 8)
        _exit(98);
}

static void leave_7(int number)
{
    (void)number;
    say();
    _exit(7);
}

static void leave_9(int number)
{
    (void)number;
    exit(9); /* NOLINT(bugprone-signal-handler): programs do, and it works without the shim */
}

static void end_handled(int number)
{
    (void)number;
    signal(SIGSEGV, leave_7);
    raise(SIGSEGV);
}

static void end_by_signal(int number)
{
    /* No core file, however the machine is set up. */
    CHECK(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) == 0);
    if (number == SIGABRT)
        abort();
    raise(number);
}

static void end_quickly(int status)
{
    CHECK(at_quick_exit(say) == 0);
    quick_exit(status);
}

static void end_with_handler(int status)
{
    atexit(say);
    exit(status);
}

/* --- amid allocations --------------------------------------------------------------------------*/

/* Until the process ends: what the calls answer then is the driver's affair. */
static void *allocate(void *arg)
{
    _Atomic int *ready = arg;
    for (unsigned i = 0;; i++) {
        void *pointer = NULL;
        if (cudaMalloc(&pointer, 500 << i % 8) == cudaSuccess)
            cudaFree(pointer);
        if (i == 10 && ready)
            atomic_fetch_add(ready, 1);
    }
    return NULL;
}

static void end_interrupted(int microseconds)
{
    struct itimerval timer = {.it_value = {.tv_usec = microseconds}};
    signal(SIGALRM, leave_9);
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    allocate(NULL);
}

static void *sleep_on(void *unused)
{
    for (;;)
        pause();
    return unused;
}

/* Beside another thread, or malloc takes no lock. */
static void end_amid(int microseconds)
{
    struct itimerval timer = {.it_value = {.tv_usec = microseconds}};
    void *blocks[16] = {0};
    pthread_t thread;
    signal(SIGALRM, leave_9);
    OK(pthread_create(&thread, NULL, sleep_on, NULL));
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (size_t i = 0;; i++) {
        void **block = &blocks[i * 7 % 16];
        free(*block);
        *block = malloc(2000 + i * 37 % 5000);
    }
}

static volatile sig_atomic_t asked;

/* What was interrupted has some time before it is again. */
static void ask(int number)
{
    static const struct itimerval timer = {.it_value = {.tv_usec = 100}};
    cachealloc_stats_t stats;
    if (number != 0)
        shim_stats(&stats);
    asked++;
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void end_asked(int count)
{
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    ask(0);
    while (asked < count) {
        void *pointer = NULL;
        if (cudaMalloc(&pointer, 500 << asked % 8) == cudaSuccess)
            cudaFree(pointer);
    }
    exit(9);
}

static void end_while_running(int status)
{
    static _Atomic int ready;
    pthread_t thread;
    for (int i = 0; i < THREADS; i++)
        OK(pthread_create(&thread, NULL, allocate, &ready));
    while (atomic_load(&ready) < THREADS)
        sched_yield();
    printf("threads at work\n");
    exit(status);
}

/* --- exit handlers and threads -----------------------------------------------------------------*/

static void swap_leaks(void)
{
    OK(cudaFree(kept));
    leak(3000);
}

/* A handler that was there before CUDA: the driver has ended, on hardware at least. */
static void swap_leaks_if_it_may(void)
{
    void *more = NULL;
    int freed = (int)cudaFree(kept), taken = (int)cudaMalloc(&more, 3000);
    printf("%d %d\n", freed, taken);
}

static void end_atexit(int status)
{
    atexit(swap_leaks);
    exit(status);
}

static pthread_t first;

static void *outlive(void *arg)
{
    OK(pthread_join(first, NULL));
    leak(1000);
    printf("last thread\n");
    return arg;
}

static void end_last_thread(int status)
{
    pthread_t thread;
    (void)status;
    first = pthread_self();
    OK(pthread_create(&thread, NULL, outlive, NULL));
    pthread_exit(NULL);
}

/* exit is no cancellation point, as long as nothing is written. */
static void *exit_cancelled(void *arg)
{
    OK(pthread_cancel(pthread_self()));
    exit(*(int *)arg);
}

static void end_cancelled(int status)
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, exit_cancelled, &status));
    OK(pthread_join(thread, NULL));
    FAIL("the thread did not end the process");
}

static void *exit_with(void *arg)
{
    exit(*(int *)arg);
}

static void end_small(int status)
{
    pthread_attr_t attributes;
    pthread_t thread;
    OK(pthread_attr_init(&attributes));
    OK(pthread_attr_setstacksize(&attributes, (size_t)64 << 10));
    OK(pthread_create(&thread, &attributes, exit_with, &status));
    OK(pthread_join(thread, NULL));
    FAIL("the thread did not end the process");
}

static void end_lowered(int status)
{
    CHECK(setrlimit(RLIMIT_STACK, &(struct rlimit){64 << 10, 64 << 10}) == 0);
    exit(status);
}

static const struct way {
    const char *name;
    void (*end)(int);
    int argument;
} ways[] = {{"exit", end_with_handler, 4},
            {"_exit", _exit, 4},
            {"_Exit", _Exit, 4},
            {"quick_exit", end_quickly, 4},
            {"abort", end_by_signal, SIGABRT},
            {"term", end_by_signal, SIGTERM},
            {"kill", end_by_signal, SIGKILL},
            {"segv", end_by_signal, SIGSEGV},
            {"handled", end_handled, 0},
            {"interrupted", end_interrupted, 1000},
            {"amid", end_amid, 1000},
            {"asked", end_asked, 1000},
            {"atexit", end_atexit, 4},
            {"pthread_exit", end_last_thread, 0},
            {"running", end_while_running, 4},
            {"cancelled", end_cancelled, 4},
            {"small", end_small, 4},
            {"lowered", end_lowered, 4}};

/* --- states ------------------------------------------------------------------------------------*/

static void become_stderr(int fd)
{
    CHECK(fd >= 0 && dup2(fd, STDERR_FILENO) == STDERR_FILENO && close(fd) == 0);
}

static void break_stderr(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
    become_stderr(ends[1]);
}

/* The first call needs some for the driver. */
static void use_all_descriptors(void)
{
    OK(cudaGetDeviceCount(&(int){0}));
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){16, 16}) == 0);
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
        ;
}

/* As a program does that writes its results with plain calls. */
static void write_results(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd == STDERR_FILENO);
    CHECK(write(fd, "results\n", 8) == 8);
}

static void replace_stderr(const char *path)
{
    CHECK(close(STDERR_FILENO) == 0);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd == STDERR_FILENO);
    CHECK(write(fd, "results\n", 8) == 8);
}

static void leave_root(const char *path)
{
    if (chroot(path) != 0) {
        printf("chroot is not allowed here\n");
        exit(77);
    }
    CHECK(chdir("/") == 0);
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "return";
    const char *argument = argc > 2 ? argv[2] : "0";
    if (strcmp(way, "reused") == 0)
        write_results(argument);
    if (strcmp(way, "descriptors") == 0)
        use_all_descriptors();
    if (strcmp(way, "early") == 0)
        atexit(swap_leaks_if_it_may);
    leak(2222);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        if (strcmp(ways[i].name, way) == 0)
            ways[i].end(argc > 2 ? atoi(argument) : ways[i].argument);
    if (strcmp(way, "closed") == 0)
        CHECK(close(STDERR_FILENO) == 0);
    else if (strcmp(way, "full") == 0)
        become_stderr(open("/dev/full", O_WRONLY));
    else if (strcmp(way, "pipe") == 0)
        break_stderr();
    else if (strcmp(way, "replaced") == 0)
        replace_stderr(argument);
    else if (strcmp(way, "chroot") == 0)
        leave_root(argument);
    return 4;
}
