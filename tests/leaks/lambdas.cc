/* A lambda is named after the function in which it stands.
 *
 * builds: O0 g0
 * expect: 2500 bytes in 1, device:
 *     plan()::{lambda(unsigned long)#1}::operator()(unsigned long) const@lambda <
 *     int apply<plan()::{lambda(unsigned long)#1}>(plan()::{lambda(unsigned long)#1} const&)@apply
 * < plan()@plan < main@main
 */
#include "tests/leaks/leak.h"

template <typename F> FRAME int apply(const F &function)
{
    return function(2500) + 1; /* @apply */
}

FRAME int plan()
{
    auto forget = [](size_t bytes) FRAME {
        void *pointer;
        OK(cudaMalloc(&pointer, bytes)); /* @lambda */
        return 1;
    };
    return apply(forget) + 1; /* @plan */
}

int main()
{
    CHECK(plan() == 3); /* @main */
    return 0;
}
