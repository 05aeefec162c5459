/* Processes that a program makes, and what CUDA is to them.
 *
 *   life_children before              fork, CUDA in the child, then CUDA in the parent
 *   life_children after HOW END       CUDA, then a child made by HOW that ends by END
 *   life_children storm               as `after fork exit`, 40 times, while threads allocate
 *   life_children daemon PATH         double fork, setsid, 0, 1 and 2 closed, CUDA in the daemon
 *   life_children spawned             what the children that exec become: CUDA of their own
 *
 * HOW: fork, _Fork, clone, vfork, spawn.  END: exit, _exit, exec. Each process leaks another number
 * of bytes, so that their reports can be told apart: the child of `before` 1111, the parent 2222, a
 * spawned one 3333, the daemon 4444. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

#define CHILDREN 40
#define THREADS 3

extern char **environ;
static char *self;

/* Leaves `bytes` behind, and freed memory in whatever cache there is. Without any work for the
 * device, whose driver may have threads for that. */
static void *leak_idle(size_t bytes)
{
    void *freed[20], *kept;
    for (int i = 0; i < 20; i++)
        OK(cudaMalloc(&freed[i], 1000 << i % 10));
    OK(cudaMalloc(&kept, bytes));
    for (int i = 0; i < 20; i++)
        OK(cudaFree(freed[i]));
    return kept;
}

static void *leak(size_t bytes)
{
    void *kept = leak_idle(bytes);
    OK(cudaMemset(kept, 1, bytes));
    return kept;
}

/* The status of `child` as one number: 1000 and more for a signal. */
static int status_of(pid_t child)
{
    int status = -1;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int before(void)
{
    pid_t child = fork();
    if (child == 0) {
        leak(1111);
        exit(3);
    }
    int status = status_of(child);
    leak(2222);
    printf("child %d\n", status);
    return 4;
}

/* One system call, and no handler of pthread_atfork. */
static pid_t clone_alone(void)
{
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static pid_t (*fork_named(const char *how))(void)
{
    if (strcmp(how, "clone") == 0)
        return clone_alone;
    if (strcmp(how, "fork") == 0)
        return fork;
    pid_t (*found)(void) = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork");
    if (!found) {
        printf("no _Fork before glibc 2.34\n");
        exit(77);
    }
    return found;
}

static void end_by(const char *how)
{
    char *arguments[] = {self, "spawned", NULL};
    if (strcmp(how, "exec") == 0)
        execv(self, arguments);
    else if (strcmp(how, "exit") == 0)
        exit(5);
    _exit(6);
}

/* Only what vfork allows: the child has its parent's memory. */
static pid_t vfork_and(const char *end)
{
    char *arguments[] = {self, "spawned", NULL};
    bool exec = strcmp(end, "exec") == 0;
    pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork): the point */
    if (child == 0) {
        if (exec)
            execv(self, arguments);
        _exit(6);
    }
    return child;
}

static pid_t spawn(void)
{
    pid_t child = -1;
    char *arguments[] = {self, "spawned", NULL};
    OK(posix_spawn(&child, self, NULL, NULL, arguments, environ));
    return child;
}

/* Nobody tells the driver of a child by clone, and it goes on: this can only be done where no other
 * thread of the parent's may have been inside it. What the child allocates is none of its parent's
 * cache: cachealloc_info, where somebody has it, knows nothing of it. */
static void allocate_unseen(void)
{
    int (*info)(const void *, void *) =
        (int (*)(const void *, void *))dlsym(RTLD_DEFAULT, "cachealloc_info");
    struct {
        size_t size;
        char rest[256];
    } found = {.size = sizeof(found)};
    void *mine = NULL;
    OK(cudaMalloc(&mine, 777));
    CHECK(!info || info(mine, &found) != 0);
}

static pid_t fork_and(const char *how, const char *end, void *pointer)
{
    pid_t child = fork_named(how)();
    if (child != 0)
        return child;
    if (strcmp(how, "fork") == 0) { /* the driver knows of that one, as we do */
        int codes[2];
        void *mine = NULL;
        codes[0] = (int)cudaMalloc(&mine, 777);
        codes[1] = (int)cudaFree(pointer);
        printf("in the child cudaMalloc %d, cudaFree %d\n", codes[0], codes[1]);
        fflush(stdout);
    } else if (strcmp(how, "clone") == 0) {
        allocate_unseen();
    }
    end_by(end);
    return -1;
}

static int after(const char *how, const char *end)
{
    pid_t child;
    void *pointer = strcmp(how, "clone") == 0 ? leak_idle(2222) : leak(2222);
    if (strcmp(how, "vfork") == 0)
        child = vfork_and(end);
    else if (strcmp(how, "spawn") == 0)
        child = spawn();
    else
        child = fork_and(how, end, pointer);
    printf("child %d\n", status_of(child));
    OK(cudaMemset(pointer, 2, 2222)); /* the parent goes on as before */
    OK(cudaFree(pointer));
    leak(2222);
    return 4;
}

static _Atomic bool enough;

static void *allocate(void *arg)
{
    while (!atomic_load(&enough)) {
        void *pointers[4];
        for (int i = 0; i < 4; i++)
            OK(cudaMalloc(&pointers[i], 500 << i));
        for (int i = 0; i < 4; i++)
            OK(cudaFree(pointers[i]));
    }
    return arg;
}

static int storm(void)
{
    pthread_t threads[THREADS];
    leak(2222);
    for (int i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, allocate, NULL));
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) {
            void *pointer;
            exit(cudaMalloc(&pointer, 777) == cudaSuccess ? 1 : 5);
        }
        CHECK(status_of(child) == 5);
    }
    atomic_store(&enough, true);
    for (int i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));
    printf("done\n");
    return 4;
}

/* What the daemon has to say goes into `path`, which gets no descriptor below 3. */
static int make_daemon(const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        CHECK(setsid() > 0);
        if (fork() != 0)
            _exit(0);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
        CHECK(fd > 2 && chdir("/") == 0);
        for (int i = 0; i < 3; i++)
            close(i);
        leak(4444);
        CHECK(write(fd, "at work\n", 8) == 8);
        return 9; /* and its report, wherever that goes */
    }
    printf("child %d\n", status_of(child));
    return 4;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "before";
    self = argv[0];
    if (strcmp(name, "before") == 0)
        return before();
    if (strcmp(name, "after") == 0 && argc > 3)
        return after(argv[2], argv[3]);
    if (strcmp(name, "storm") == 0)
        return storm();
    if (strcmp(name, "daemon") == 0 && argc > 2)
        return make_daemon(argv[2]);
    CHECK(strcmp(name, "spawned") == 0);
    leak(3333);
    return 8;
}
