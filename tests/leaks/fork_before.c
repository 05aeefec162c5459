/* A child from before the first CUDA call is a process like any other: each has its report.
 *
 * expect child: 1100 bytes in 1, device: forget@forget < main@child
 * expect: 2300 bytes in 1, device: forget@forget < main@parent
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
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(forget(1100) == 1); /* @child */
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(forget(2300) == 1); /* @parent */
    return 0;
}
