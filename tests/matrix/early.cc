/* A C++ program that works before main, in main, from atexit and in a static destructor; with
 * early_library.c, whose constructor comes even before a preloaded library's. */
#include <cstdio>
#include <cstdlib>

extern "C" long long matrix_work(void);
extern "C" long long early_sum;

namespace
{
struct worker {
    worker()
    {
        std::printf("constructor: %lld\n", matrix_work());
    }
    ~worker()
    {
        std::printf("static destructor: %lld\n", matrix_work());
        std::fflush(stdout);
    }
} global;

void at_exit()
{
    std::printf("atexit: %lld\n", matrix_work());
}
} // namespace

int main()
{
    std::printf("library: %lld\n", early_sum);
    std::printf("main: %lld\n", matrix_work());
    return std::atexit(at_exit);
}
