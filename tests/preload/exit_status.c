/* Exit statuses: exit_status HOW STATUS BYTES, after a leak of BYTES (none for 0).
 *
 *   exit, return, _exit      in that way
 *   stdio                    as exit, with text in the buffers of stdout
 *   reader                   the same, while a thread waits in a read of stdin, a pipe
 *   handler                  exit(1), and exit(STATUS) in a handler that runs later
 *   destructor               exit, and a destructor that prints
 *   fork                     as exit, after a child that allocates nothing has exited with 0 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

static int wanted;
static atomic_bool about_to_read;
static const char *how = "";

static void *read_stdin(void *arg)
{
    atomic_store(&about_to_read, true);
    while (getchar() != EOF)
        ;
    return arg;
}

static void leave_again(void)
{
    exit(wanted); /* in glibc the rest of the handlers follow, then that status */
}

__attribute__((destructor)) static void say(void)
{
    if (strcmp(how, "destructor") == 0)
        printf("destroyed");
}

static void run_child(void)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        exit(0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    CHECK(argc == 4);
    how = argv[1];
    wanted = atoi(argv[2]);
    if (strcmp(how, "handler") == 0)
        atexit(leave_again);
    void *pointer;
    OK(cudaMalloc(&pointer, 100));
    OK(cudaFree(pointer));
    if (atoi(argv[3]))
        OK(cudaMalloc(&pointer, (size_t)atoi(argv[3])));
    if (strcmp(how, "_exit") == 0)
        _exit(wanted);
    if (strcmp(how, "reader") == 0) {
        int ends[2];
        CHECK(pipe(ends) == 0 && dup2(ends[0], STDIN_FILENO) == STDIN_FILENO);
        OK(pthread_create(&thread, NULL, read_stdin, NULL));
        while (!atomic_load(&about_to_read))
            sched_yield();
    }
    if (strcmp(how, "stdio") == 0 || strcmp(how, "reader") == 0)
        printf("buffered");
    if (strcmp(how, "fork") == 0)
        run_child();
    if (strcmp(how, "return") == 0)
        return wanted;
    exit(strcmp(how, "handler") == 0 ? 1 : wanted);
}
