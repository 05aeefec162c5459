/* Constructors and destructors by their names; an object that frees is not told.
 *
 * expect: 3200 bytes in 1, device: trace::trace(unsigned long)@constructor < work()@constructed <
 *     main@main
 * expect: 64 bytes in 1, device: trace::~trace()@destructor < work()@destroyed < main@main
 */
#include "tests/leaks/leak.h"

struct trace {
    FRAME explicit trace(size_t bytes)
    {
        OK(cudaMalloc(&data, bytes)); /* @constructor */
        OK(cudaMalloc(&freed, 100000));
    }
    trace(const trace &) = delete;
    trace &operator=(const trace &) = delete;
    FRAME ~trace()
    {
        OK(cudaMalloc(&data, 64)); /* @destructor */
        OK(cudaFree(freed));
    }
    void *data = nullptr, *freed = nullptr;
};

FRAME int work()
{
    trace one(3200); /* @constructed */
    return one.data != nullptr;
} /* @destroyed */

int main()
{
    CHECK(work() == 1); /* @main */
    return 0;
}
