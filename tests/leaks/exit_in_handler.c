/* A handler of atexit that calls exit once more: glibc goes on with the handlers that are left.
 *
 * exit: 6
 * expect: 950 bytes in 1, device: forget@forget < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

static void handler(void)
{
    exit(6);
}

int main(void)
{
    CHECK(atexit(handler) == 0);
    CHECK(forget(950) == 1); /* @main */
    return 0;
}
