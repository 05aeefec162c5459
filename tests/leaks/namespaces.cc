/* What other files do not see has its namespace too, inlined or not, whoever knows the name.
 *
 * builds: O3 g0 g1 lto split
 * expect: 8800 bytes in 1, device: grids::(anonymous namespace)::forget(unsigned long)@forget <
 *     grids::load(int)@load < start(int)@start < main@main
 * expect[g0]: 8800 bytes in 1, device: grids::(anonymous namespace)::forget(unsigned long) <
 *     start(int) < main
 */
#include "tests/leaks/leak.h"

namespace grids
{
namespace
{
FRAME int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}
} // namespace

INLINED int load(int count)
{
    return forget(1100 * static_cast<size_t>(count)) + 1; /* @load */
}
} // namespace grids

FRAME static int start(int count)
{
    return grids::load(count) + 1; /* @start */
}

int main()
{
    CHECK(start(8) == 3); /* @main */
    return 0;
}
