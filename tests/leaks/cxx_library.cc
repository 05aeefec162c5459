// libcxx_library.so: C++ in a program that knows nothing of it.
#include "tests/leaks/leak.h"

struct shelf {
    FRAME int put(size_t bytes)
    {
        void *pointer;
        OK(cudaMalloc(&pointer, bytes)); /* @put */
        return ++count;
    }
    int count = 0;
};

extern "C" SEEN FRAME int shelf_put(size_t bytes)
{
    shelf one;
    return one.put(bytes) + 1; /* @shelf_put */
}
