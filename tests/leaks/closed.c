/* The library that leaked is closed before the report, and another one may lie where it was.
 *
 * arguments: %B/libpool_library.so %B/libcxx_library.so
 * parts: pool_library.c cxx_library.cc
 * expect: 5000 bytes in 1, device: pool_grow@pool_grow < pool_take@pool_take < use@use < main@first
 * expect: 4000 bytes in 1, device: shelf::put(unsigned long)@put < shelf_put@shelf_put < use@use <
 *     main@second
 */
#include <dlfcn.h>
#include "tests/leaks/leak.h"

FRAME static int use(const char *path, const char *function, size_t bytes)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*take)(size_t) = library ? (int (*)(size_t))dlsym(library, function) : NULL;
    CHECK(take && take(bytes) == 2); /* @use */
    CHECK(dlclose(library) == 0);
    return 1;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    CHECK(use(argv[1], "pool_take", 5000) == 1); /* @first */
    CHECK(use(argv[2], "shelf_put", 4000) == 1); /* @second */
    return 0;
}
