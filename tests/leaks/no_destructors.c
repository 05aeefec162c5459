/* _exit skips every handler, ours too: the report is written before, with the names that symbol
 * tables have, since neither libdw nor the heap may be asked there. In a signal handler as well.
 *
 * exit: 7
 * expect: 5600 bytes in 1, device: forget < main
 */
#include <signal.h>
#include <unistd.h>
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes));
    return 1;
}

static void leave(int number)
{
    (void)number;
    _exit(7);
}

int main(void)
{
    CHECK(signal(SIGUSR1, leave) != SIG_ERR);
    CHECK(forget(5600) == 1);
    raise(SIGUSR1);
    return 0;
}
