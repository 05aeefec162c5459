/* cachealloc_dump alone: api_dump PATH... writes a report to each path, `-` for none, and prints
 * what the calls answered. 1000 bytes are live from the first one on; where there is an argument
 * `fork` the rest is a child's. */
#include <sys/wait.h>
#include <unistd.h>
#include "api.h"

int main(int argc, char **argv)
{
    void *pointer;
    if (!cachealloc_dump) {
        puts("no shim");
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "fork") == 0) {
            int status;
            fflush(stdout);
            pid_t child = fork();
            if (child > 0)
                return waitpid(child, &status, 0) == child ? 0 : 1;
        } else {
            printf("%d\n", cachealloc_dump(strcmp(argv[i], "-") == 0 ? NULL : argv[i]));
            if (i == 1)
                OK(cudaMalloc(&pointer, 1000));
        }
    }
    fflush(stdout);
    return 0;
}
