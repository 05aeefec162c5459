/* Two processes on one device: each in turn needs what the other one has freed, and tries again for
 * a second when there is none. pressure [MILLISECONDS]
 *
 * Prints for each turn whether it got its memory: "got" or "out of memory". */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

#define MIB ((size_t)1 << 20)
#define TURNS 2 /* of each process */
#define BUFFERS_MOST 64

static uint64_t patience_ns;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool get(void **buffer, size_t bytes)
{
    struct timespec step = {.tv_nsec = 1000000};
    uint64_t begin = now_ns();
    while (cudaMalloc(buffer, bytes) != cudaSuccess) {
        ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
        if (now_ns() - begin > patience_ns)
            return false;
        nanosleep(&step, NULL);
    }
    OK(cudaMemset(*buffer, 1, 4096));
    return true;
}

/* Takes three quarters of the device and frees them again. */
static const char *turn(void)
{
    void *buffers[BUFFERS_MOST];
    size_t count = 0, available, total;
    bool all = true;
    OK(cudaMemGetInfo(&available, &total));
    size_t wanted = total / 4 * 3 / (16 * MIB);
    CHECK(wanted <= BUFFERS_MOST);
    while (count < wanted && (all = get(&buffers[count], 16 * MIB)))
        count++;
    while (count > 0)
        OK(cudaFree(buffers[--count]));
    return all ? "got" : "out of memory";
}

/* The one who reads a byte has its turn. */
static int play(int from, int to)
{
    char byte = 0;
    for (int i = 0; i < TURNS; i++) {
        CHECK(read(from, &byte, 1) == 1);
        puts(turn());
        fflush(stdout);
        CHECK(write(to, &byte, 1) == 1);
    }
    CHECK(read(from, &byte, 1) >= 0); /* what is cached stays until the other one is done */
    return 0;
}

int main(int argc, char **argv)
{
    int here[2], there[2], status;
    patience_ns = number_argument(argc, argv, 1, 1000) * 1000000u;
    CHECK(pipe(here) == 0 && pipe(there) == 0);
    CHECK(write(here[1], "", 1) == 1);
    pid_t child = fork(); /* before CUDA is used */
    CHECK(child >= 0);
    if (child == 0) {
        close(here[0]);
        close(there[1]);
        return play(there[0], here[1]);
    }
    close(there[0]);
    close(here[1]);
    CHECK(play(here[0], there[1]) == 0);
    close(there[1]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}
