/* Reports by signal: dump_signal WAY [NUMBER], a line on stdout for each step; the one asked for is
 * NUMBER, otherwise SIGUSR1.
 *
 *   live        1000 bytes, then the signal, then `REPORT` once a file of that name is there; so
 *               twice, the second time after 1000 bytes more
 *   own         a handler of the program's own before the first context: it gets the signal
 *   later       one after it
 *   fork        children by fork and by a raw clone: the signal ends them, as by default
 *   quiet       no CUDA: how many threads there are
 *   stopped     1000 bytes, then the signal, then nothing more
 *   returns     the same, then the end of main
 *   leaves      the same, then _exit(0)
 *   busy        as returns, while two threads go on allocating
 *   ignored     the signal is ignored before the first context: REPORT once its file is there
 *   again       the signal until it ends the process
 *
 * The signal goes to the process; the files are waited for in the current directory. */
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

static volatile sig_atomic_t heard;
static int number = SIGUSR1;

static void hear(int which)
{
    heard += which == number;
}

static void allocate(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 1000));
}

/* What comes of a signal comes later, from another thread. */
static void wait_for(const char *file)
{
    for (int tries = 0; access(file, F_OK) != 0; tries++) {
        CHECK(tries < 20000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    puts(file);
}

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static int child_status(bool raw)
{
    int status = -1;
    fflush(stdout);
    pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    if (child == 0) {
        raise(number);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void live(void)
{
    CHECK(kill(getpid(), number) == 0);
    wait_for("leaks-1");
    allocate();
    CHECK(kill(getpid(), number) == 0);
    wait_for("leaks-2");
}

static void have_children(void)
{
    for (int raw = 0; raw < 2; raw++)
        printf("child %s\n", child_status(raw) == number ? "ended by the signal" : "went on");
    CHECK(kill(getpid(), number) == 0);
    wait_for("leaks-1");
}

static void *go_on(void *unused)
{
    void *pointer = unused;
    for (;;) {
        OK(cudaMalloc(&pointer, 5000));
        OK(cudaFree(pointer));
    }
    return pointer;
}

/* The first is handled when kill returns. */
static void end(const char *way)
{
    pthread_t threads[2];
    for (int i = 0; i < 2 && strcmp(way, "busy") == 0; i++)
        CHECK(pthread_create(&threads[i], NULL, go_on, NULL) == 0);
    do {
        CHECK(kill(getpid(), number) == 0);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    } while (strcmp(way, "again") == 0);
    if (strcmp(way, "leaves") == 0)
        _exit(0);
    while (strcmp(way, "stopped") == 0)
        pause();
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    number = argc > 2 ? atoi(argv[2]) : number;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (strcmp(way, "own") == 0)
        signal(number, hear);
    if (strcmp(way, "ignored") == 0)
        signal(number, SIG_IGN);
    if (strcmp(way, "quiet") != 0)
        allocate();
    if (strcmp(way, "later") == 0)
        signal(number, hear);
    if (strcmp(way, "live") == 0) {
        live();
    } else if (strcmp(way, "fork") == 0) {
        have_children();
    } else if (strcmp(way, "quiet") == 0) {
        printf("threads %d\n", threads());
    } else if (strcmp(way, "ignored") == 0) {
        CHECK(kill(getpid(), number) == 0);
        wait_for("leaks-1");
    } else if (strcmp(way, "own") == 0 || strcmp(way, "later") == 0) {
        raise(number);
        printf("heard %d\n", (int)heard);
    } else {
        end(way);
    }
    return 0;
}
