/* Reports by signal: dump_signal WAY, a line on stdout for each step; SIGUSR1 is the one asked for.
 *
 *   live        1000 bytes, then the signal, then `REPORT` once a file of that name is there; so
 *               twice, the second time after 1000 bytes more
 *   own         a handler of the program's own before the first context: it gets the signal
 *   later       one after it
 *   fork        a child: the signal ends it, as by default
 *   quiet       no CUDA: how many threads there are
 *
 * The signal goes to the process; the files are waited for in the current directory. */
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

static volatile sig_atomic_t heard;

static void hear(int number)
{
    heard += number == SIGUSR1;
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

static int child_status(void)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        raise(SIGUSR1);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    if (strcmp(way, "own") == 0)
        signal(SIGUSR1, hear);
    if (strcmp(way, "quiet") != 0)
        allocate();
    if (strcmp(way, "later") == 0)
        signal(SIGUSR1, hear);
    if (strcmp(way, "live") == 0) {
        CHECK(kill(getpid(), SIGUSR1) == 0);
        wait_for("leaks-1");
        allocate();
        CHECK(kill(getpid(), SIGUSR1) == 0);
        wait_for("leaks-2");
    } else if (strcmp(way, "fork") == 0) {
        printf("child %s\n", child_status() == SIGUSR1 ? "ended by the signal" : "went on");
        CHECK(kill(getpid(), SIGUSR1) == 0);
        wait_for("leaks-1");
    } else if (strcmp(way, "quiet") == 0) {
        printf("threads %d\n", threads());
    } else {
        raise(SIGUSR1);
        printf("heard %d\n", (int)heard);
    }
    return 0;
}
