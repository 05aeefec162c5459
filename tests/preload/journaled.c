/* What a journal has to say of it is known to whoever runs it:
 *
 *   journaled hold COUNT PATH  allocates COUNT, 1000 bytes each, in 7 stacks, and frees every
 * third; before that it leaves its directory and closes every descriptor but the first three;
 * writes its report to PATH and is killed journaled churn THREADS    each of them holds 10 of 1000
 * bytes and its number, and frees and allocates one after the other until it is killed journaled
 * end HOW          leaks 1000 bytes, and ends by exit, _exit, abort or return
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "check.h"
#include "include/cachealloc.h"

#define NOINLINE __attribute__((noipa))
#define HELD 10

static void *allocate(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes));
    return pointer;
}

/* Seven ways down. */
NOINLINE static void *by_way(unsigned way)
{
    void *pointer = way ? by_way(way - 1) : allocate(1000);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return pointer;
}

static void hold(unsigned count, const char *path)
{
    static void *held[100000];
    __typeof__(cachealloc_dump) *dump = (__typeof__(dump))dlsym(RTLD_DEFAULT, "cachealloc_dump");
    CHECK(dump && count <= 100000);
    held[0] = by_way(0); /* from here on there is a journal */
    CHECK(chdir("/") == 0);
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    for (unsigned i = 1; i < count; i++)
        held[i] = by_way(i % 7);
    for (unsigned i = 0; i < count; i += 3)
        OK(cudaFree(held[i]));
    CHECK(dump(path) == 0);
    raise(SIGKILL);
}

static void *churn(void *number)
{
    void *held[HELD];
    for (int i = 0; i < HELD; i++)
        held[i] = allocate(1000 + (size_t)number);
    for (unsigned i = 0;; i++) {
        OK(cudaFree(held[i % HELD]));
        held[i % HELD] = allocate(1000 + (size_t)number);
        if (i == 20 * HELD && number == 0) {
            puts("churning");
            fflush(stdout);
        }
    }
    return NULL;
}

static void end(const char *how)
{
    allocate(1000);
    if (strcmp(how, "exit") == 0)
        exit(3);
    if (strcmp(how, "_exit") == 0)
        _exit(3);
    if (strcmp(how, "abort") == 0)
        abort();
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    if (strcmp(argv[1], "hold") == 0) {
        hold((unsigned)atoi(argv[2]), argv[3]);
    } else if (strcmp(argv[1], "end") == 0) {
        end(argv[2]);
    } else {
        pthread_t thread;
        for (int i = 1; i < atoi(argv[2]); i++)
            CHECK(pthread_create(&thread, NULL, churn, (void *)(size_t)i) == 0);
        churn(NULL);
    }
    return 0;
}
