/* Functions that are called as Rust's compiler calls them, by its present scheme and the one
 * before.
 *
 * builds: g0
 * expect: 3100 bytes in 1, device: <r::A<7, true, 'v', -11>>::go@go < r::grüße@old < main@main
 */
#include <unistd.h>
#include "tests/leaks/leak.h"

FRAME int go(size_t bytes) __asm__("_RNvMCs6GmmlP4bgsG_1rINtB2_1AKj7_Kb1_Kc76_Kanb_E2goB2_");
FRAME int old(size_t bytes) __asm__("_ZN1r13gr$ufc$$udf$e17h1fdcb089227d5d07E");

int go(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @go */
    return 1;
}

int old(size_t bytes)
{
    return go(bytes) + 1; /* @old */
}

/* With an argument it ends by _exit. */
int main(int argc, char **argv)
{
    (void)argv;
    CHECK(old(3100) == 2); /* @main */
    if (argc > 1)
        _exit(0);
    return 0;
}
