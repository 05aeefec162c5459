/* A stripped library, open until the end: what it exports has its name, the rest module and offset.
 *
 * arguments: %B/libpool_stripped.so
 * expect: 444 bytes in 1, device: ?[libpool_stripped.so] < pool_take < main@main
 */
#include <dlfcn.h>
#include "tests/leaks/leak.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*take)(size_t) = library ? (int (*)(size_t))dlsym(library, "pool_take") : NULL;
    CHECK(take && take(444) == 2); /* @main */
    return 0;
}
