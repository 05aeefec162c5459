/* Leaks known counts and bytes in functions with known names.
 *
 *   leaks            three kinds in two functions (the figures are in test_leaks.py)
 *   leaks none       the same, and frees all of it; leaks none _exit: and ends by that
 *   leaks clearenv  the three kinds, after its environment is gone
 *   leaks chdir     the three kinds, and then it is in another directory
 *   leaks stacks N   N leaks of 1000, 2000, ... bytes, each with a call stack of its own (N <= 8)
 *   leaks last       77 bytes, below a call that never returns
 *   leaks many N     N leaks of 512 bytes, all in one place
 *   leaks lines      100 and 300 bytes in two lines of one function, which is called twice
 *   leaks threads    1000 bytes by each of two threads "loader", one "saver" and four "worker",
 *                    2000 by the main thread, which then calls itself "renamed"
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <unistd.h>
#include "check.h"

#define KEPT 6
static void *kept_device[KEPT];
static void *kept_pinned;
/* Volatile: an unrolled loop has several calls, and so several stacks. */
static volatile int tiles = 3, tables = 2;

__attribute__((noinline)) static void forget_tiles(void)
{
    for (int i = 0; i < tiles; i++)
        OK(cudaMalloc(&kept_device[i], 100000));
    OK(cudaMallocHost(&kept_pinned, 4096));
}

__attribute__((noinline)) static void forget_tables(void)
{
    for (int i = 0; i < tables; i++)
        OK(cudaMallocManaged(&kept_device[3 + i], 3000, cudaMemAttachGlobal));
    OK(cudaMalloc(&kept_device[5], 77));
}

/* Depth makes the stacks differ; the volatile keeps the calls from becoming jumps. */
__attribute__((noinline)) static int forget_at_depth(unsigned depth, size_t bytes)
{
    volatile int calls = 1;
    void *pointer;
    if (depth == 0)
        OK(cudaMalloc(&pointer, bytes));
    else
        calls += forget_at_depth(depth - 1, bytes);
    return calls;
}

__attribute__((noinline, noreturn)) static void forget_and_leave(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes));
    exit(0);
}

/* Ends with the call: what it would return to belongs to the next function. */
__attribute__((noinline, noreturn)) static void forget_last(void)
{
    forget_and_leave(77);
}

__attribute__((noinline)) static void forget_many(uint64_t count)
{
    void *pointer;
    for (uint64_t i = 0; i < count; i++)
        OK(cudaMalloc(&pointer, 512));
}

__attribute__((noinline)) static void forget_by_lines(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 100));
    OK(cudaMalloc(&pointer, 300));
}

static void *forget_in_thread(void *name)
{
    void *pointer;
    pthread_setname_np(pthread_self(), name);
    OK(cudaMalloc(&pointer, 1000));
    return NULL;
}

static void forget_in_threads(void)
{
    static char *const names[] = {"loader", "loader", "saver", "worker",
                                  "worker", "worker", "worker"};
    void *pointer;
    OK(cudaMalloc(&pointer, 2000));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, forget_in_thread, names[i]) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    pthread_setname_np(pthread_self(), "renamed");
}

int main(int argc, char **argv)
{
    void *freed[64];
    for (int i = 0; i < 64; i++) /* what was freed is cached: it must never show up as a leak */
        OK(cudaMalloc(&freed[i], 1000 * (size_t)(i + 1)));
    for (int i = 0; i < 64; i++)
        OK(cudaFree(freed[i]));
    if (argc > 2 && strcmp(argv[1], "stacks") == 0) {
        unsigned count = (unsigned)number_argument(argc, argv, 2, 1);
        for (unsigned i = 0; i < count; i++)
            CHECK(forget_at_depth(i, 1000 * ((size_t)i + 1)) == (int)i + 1);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "many") == 0) {
        forget_many(number_argument(argc, argv, 2, 1));
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "lines") == 0) {
        forget_by_lines();
        forget_by_lines();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "threads") == 0) {
        forget_in_threads();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "last") == 0)
        forget_last();
    if (argc > 1 && strcmp(argv[1], "clearenv") == 0)
        CHECK(clearenv() == 0);
    forget_tiles();
    forget_tables();
    if (argc > 1 && strcmp(argv[1], "chdir") == 0)
        CHECK(chdir("/") == 0);
    if (argc > 1 && strcmp(argv[1], "none") == 0) {
        for (int i = 0; i < KEPT; i++)
            OK(cudaFree(kept_device[i]));
        OK(cudaFreeHost(kept_pinned));
        if (argc > 2 && strcmp(argv[2], "_exit") == 0)
            _exit(0);
    }
    return 0;
}
