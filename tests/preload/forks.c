/* A process that forks: the child does no CUDA, leaves through exit, and must not report what its
 * parent holds. The parent leaks one buffer of 5555 bytes and reports it alone. */
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

int main(void)
{
    void *pointer;
    int status = -1;
    OK(cudaMalloc(&pointer, 5555));
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        exit(5);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    OK(cudaMemset(pointer, 1, 5555)); /* the parent goes on as before */
    return 0;
}
