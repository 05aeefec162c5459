/* The child of a process with CUDA has none: it reports nothing, its parent's memory least of all.
 *
 * expect: 2300 bytes in 1, device: forget@forget < main@main
 */
#include <sys/wait.h>
#include <unistd.h>
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

int main(void)
{
    int status = -1;
    CHECK(forget(2300) == 1); /* @main */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
