/* The wrapper of cudaMalloc is linked into the program.
 *
 * parts: pool_library.c
 * expect: 333 bytes in 1, device: pool_grow@pool_grow < pool_take@pool_take < main@main
 */
#include "tests/leaks/leak.h"
#include "tests/leaks/pool_library.h"

int main(void)
{
    CHECK(pool_take(333) == 2); /* @main */
    return 0;
}
