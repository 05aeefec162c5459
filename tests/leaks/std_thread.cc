/* A std::thread: below the member function that it runs are frames of the library, which has names.
 *
 * conf: fold:off
 * expect: 3600 bytes in 2, device, 2 threads std_thread: loader::forget(unsigned long)@forget <
 *     loader::run(unsigned long)@run < ... < [libstdc++*]
 */
#include <thread>
#include "tests/leaks/leak.h"

struct loader {
    FRAME int forget(size_t bytes)
    {
        void *pointer;
        OK(cudaMalloc(&pointer, bytes)); /* @forget */
        return 1;
    }
    FRAME void run(size_t bytes)
    {
        done += forget(bytes); /* @run */
    }
    int done = 0;
};

int main()
{
    loader one;
    for (int i = 0; i < 2; i++)
        std::thread(&loader::run, &one, 1800).join();
    CHECK(one.done == 2);
    return 0;
}
