/* Inlined functions are told, each with its line; without debug information nobody knows of them.
 *
 * builds: O3 g0 g1 split dwarf4
 * expect: 1000 bytes in 1, device: grow@grow < load@load < start@start < main@main
 * expect[g0]: 1000 bytes in 1, device: start < main
 */
#include "tests/leaks/leak.h"

static INLINED int grow(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @grow */
    return 1;
}

static INLINED int load(void)
{
    return grow(1000) + 1; /* @load */
}

FRAME static int start(void)
{
    return load() + 1; /* @start */
}

int main(void)
{
    CHECK(start() == 3); /* @main */
    return 0;
}
