/* A wrapper of cudaMalloc: libpool_library.a and .so, and libpool_stripped.so, in which only
 * what other modules see has a name. */
#include "tests/leaks/pool_library.h"
#include "tests/leaks/leak.h"

FRAME static int pool_grow(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @pool_grow */
    return 1;
}

SEEN FRAME int pool_take(size_t bytes)
{
    return pool_grow(bytes) + 1; /* @pool_take */
}
