/* abort runs no handler of ours: nothing is said.
 *
 * exit: SIGABRT
 * expect: nothing
 * expect journal: 5500 bytes in 1, device: main@main
 */
#include <sys/resource.h>
#include "tests/leaks/leak.h"

int main(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 5500)); /* @main */
    CHECK(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) == 0);
    abort();
}
