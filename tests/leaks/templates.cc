/* Each instance of a template is a function of its own, named as in the source.
 *
 * builds: O0 O3 g0 g1
 * expect: 8000 bytes in 1, device: int tiles::cache<double, 2>::grow<char>(unsigned long)@grow <
 *     int tiles::fill<double>(unsigned long)@fill < main@doubles
 * expect: 4000 bytes in 1, device: int tiles::cache<float, 2>::grow<char>(unsigned long)@grow <
 *     int tiles::fill<float>(unsigned long)@fill < main@floats
 */
#include "tests/leaks/leak.h"

namespace tiles
{
template <typename T, int N> struct cache {
    template <typename U> FRAME int grow(size_t count)
    {
        OK(cudaMalloc(reinterpret_cast<void **>(&data), count * sizeof(T) * sizeof(U))); /* @grow */
        return N;
    }
    T *data = nullptr;
};

template <typename T> FRAME int fill(size_t count)
{
    cache<T, 2> one;
    return one.template grow<char>(count) + 1; /* @fill */
}
} // namespace tiles

int main()
{
    CHECK(tiles::fill<double>(1000) == 3); /* @doubles */
    CHECK(tiles::fill<float>(1000) == 3);  /* @floats */
    return 0;
}
