/* A process that is killed has no say. What a journal on disk would tell of it belongs here, as one
 * more `expect` line, once there is one.
 *
 * exit: SIGKILL
 * expect: nothing
 */
#include <signal.h>
#include "tests/leaks/leak.h"

int main(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 5500));
    raise(SIGKILL);
    return 1;
}
