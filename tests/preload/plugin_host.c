/* Opens a module that uses the runtime with RTLD_LOCAL and lets it work: plugin_host MODULE.
 * Linked with no CUDA library: nothing but that module knows the runtime's symbols. */
#include <dlfcn.h>
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(dlsym(RTLD_DEFAULT, "cudaGetDeviceCount") == NULL); /* else this tests nothing */
    void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!module)
        FAIL("%s", dlerror());
    void (*work)(unsigned) = (void (*)(unsigned))dlsym(module, "plugin_work");
    CHECK(work);
    work(1000);
    return 0;
}
