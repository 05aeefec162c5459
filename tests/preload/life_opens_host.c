/* Opens the library as a program does that wants to know its version, and closes it again:
 * life_opens_host LIBRARY. Linked with no CUDA library, and run without the preload. */
#include <dlfcn.h>
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        FAIL("%s", dlerror());
    CHECK(dlsym(library, "cachealloc_version"));
    CHECK(dlclose(library) == 0);
    printf("closed\n");
    return 4;
}
