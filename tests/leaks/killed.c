/* A process that is killed has no say, but its journal has.
 *
 * exit: SIGKILL
 * expect: nothing
 * expect journal: 5500 bytes in 1, device: main@main
 */
#include <signal.h>
#include "tests/leaks/leak.h"

int main(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 5500)); /* @main */
    raise(SIGKILL);
    return 1;
}
