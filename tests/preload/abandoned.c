/* An allocation waits for memory in flight until its time is up, and goes on; what it waited for
 * happens later. For the pool: in the plain program the frees wait, for ever.
 *
 * abandoned other    the work of another device does not count as done when that happens
 * abandoned reset    the device is reset before it happens, and used again
 * abandoned fork     a child is forked before it happens, does no CUDA and exits
 * abandoned exit     the program ends before it happens
 * abandoned ends     the thread that waits takes no signals, and ends when nothing is to be waited
 *                    for
 * abandoned refused  no thread can be had
 *
 * abandoned CASE [AFTER_MS]: how long it takes to happen when another thread makes it */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "gate.h"
#include "shim_stats.h"

#define BIG ((size_t)64 << 20)
#define ALLOCATIONS 4 /* one more than the pool holds without a wait */

static gate_t gate = GATE_CLOSED;
static uint64_t after_ms;
static bool no_threads;
static atomic_bool refusing;
static _Atomic unsigned refused;

typedef int create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* The shim's calls come here too. */
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*body)(void *), void *argument)
{
    create_t *real = (create_t *)dlsym(RTLD_NEXT, "pthread_create");
    if (!atomic_load(&refusing))
        return real(thread, attributes, body, argument);
    atomic_fetch_add(&refused, 1);
    return EAGAIN;
}

static void pause_ms(uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

/* Frees a buffer that work behind the gate uses, and allocates until the pool is out of proportion:
 * from then on allocations wait. None is given what was freed. */
static void allocate_past(gate_t *closed, cudaStream_t stream)
{
    cachealloc_stats_t before, after;
    char *in_use, *fresh;
    OK(cudaMalloc((void **)&in_use, BIG));
    gate_hold(closed, stream);
    OK(cudaMemsetAsync(in_use, 42, 64, stream));
    CHECK(shim_stats(&before));
    OK(cudaFree(in_use));
    atomic_store(&refusing, no_threads);
    for (size_t i = 0; i < ALLOCATIONS; i++) {
        OK(cudaMalloc((void **)&fresh, BIG));
        CHECK(fresh + BIG <= in_use || in_use + BIG <= fresh);
        OK(cudaFree(fresh));
    }
    atomic_store(&refusing, false);
    CHECK(shim_stats(&after) && after.fence_waits > before.fence_waits);
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(stream));
    ANSWERS(cudaSuccess, cudaGetLastError());
}

static void work_on(void)
{
    gate_t another = GATE_CLOSED;
    cudaStream_t stream;
    cachealloc_trim();
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    allocate_past(&another, stream);
    gate_open(&another);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}

static void *open_later(void *unused)
{
    pause_ms(after_ms);
    gate_open(&gate);
    return unused;
}

/* The gate opens while an allocation waits on the other device, behind another gate. */
static void other(void)
{
    pthread_t opener;
    OK(cudaSetDevice(1));
    OK(cudaFree(NULL));
    OK(pthread_create(&opener, NULL, open_later, NULL));
    work_on();
    OK(pthread_join(opener, NULL));
    OK(cudaSetDevice(0));
}

static void reset(void)
{
    pthread_t opener;
    OK(pthread_create(&opener, NULL, open_later, NULL));
    OK(cudaDeviceReset());
    OK(pthread_join(opener, NULL));
}

static void in_child(void)
{
    int status = -1;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        exit(5);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

/* Goes on as before, until somebody waits in the driver again, where that can be told. */
static void wait_again(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(library);
    uint64_t (*calls)(const char *) = (uint64_t(*)(const char *))dlsym(library, "simcuda_calls");
    int (*fail)(const char *, const char *, uint64_t, int) =
        (int (*)(const char *, const char *, uint64_t, int))dlsym(library, "simcuda_fail");
    if (fail) /* none: counts from here on */
        fail("cuEventSynchronize", "libcachealloc.so", 0, 0);
    do
        work_on();
    while (calls && calls("cuEventSynchronize") == 0);
}

/* Reads the line of the waiting thread's status that begins with `key`. False: no such thread. */
static bool status_of_waiting(const char *key, char *line, int bytes)
{
    bool found = false, is_it = false;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; !found && (task = readdir(tasks));) {
        char path[300];
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        for (is_it = false; status && !found && fgets(line, bytes, status);) {
            is_it = is_it || strcmp(line, "Name:\tcachealloc\n") == 0;
            found = is_it && strncmp(line, key, strlen(key)) == 0;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return found;
}

static void ends(void)
{
    char line[256];
    while (!status_of_waiting("SigBlk:", line, sizeof(line))) /* it may not have run yet */
        pause_ms(1);
    uint64_t blocked = strtoull(line + strlen("SigBlk:"), NULL, 16);
    for (int number = 1; number < 32; number++)
        CHECK(number == SIGKILL || number == SIGSTOP || blocked >> (number - 1) & 1);
    gate_open(&gate);
    while (status_of_waiting("Name:", line, sizeof(line)))
        pause_ms(10);
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    const char *name = argc > 1 ? argv[1] : "exit";
    after_ms = number_argument(argc, argv, 2, 50);
    no_threads = strcmp(name, "refused") == 0;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    allocate_past(&gate, stream);
    CHECK(!no_threads == !atomic_load(&refused));
    if (strcmp(name, "exit") == 0)
        return 0;
    if (strcmp(name, "other") == 0)
        other();
    else if (strcmp(name, "reset") == 0)
        reset();
    else if (strcmp(name, "fork") == 0)
        in_child();
    else if (strcmp(name, "ends") == 0)
        ends();
    gate_open(&gate);
    if (strcmp(name, "reset") != 0)
        OK(cudaDeviceSynchronize());
    if (no_threads)
        work_on();
    else
        wait_again();
    return 0;
}
