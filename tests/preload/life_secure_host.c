/* A program that runs with rights which its caller lacks, and has the shim by its own will (the
 * loader ignores LD_PRELOAD there): life_secure_host SHIM [any|leak]. Skips where it has no such
 * rights, unless `any` says that it need not have any. `leak`: some memory that joined stays. */
#include <dlfcn.h>
#include <sys/auxv.h>
#include "check.h"

int main(int argc, char **argv)
{
    if ((argc == 2 || strcmp(argv[2], "any") != 0) && !getauxval(AT_SECURE)) {
        printf("set-group-id does nothing for files here\n");
        return 77;
    }
    void *shim = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!shim)
        FAIL("%s", dlerror());
    int (*set_pin_mode)(int) = (int (*)(int))dlsym(shim, "cachealloc_set_pin_mode");
    CHECK(set_pin_mode);
    OK(set_pin_mode(1)); /* reads the configuration */
    if (argc > 2 && strcmp(argv[2], "leak") == 0) {
        int (*join)(void *, size_t, void *, void *) =
            (int (*)(void *, size_t, void *, void *))dlsym(shim, "cachealloc_register");
        CHECK(join);
        OK(join(&argc, sizeof argc, NULL, NULL));
    }
    return 4;
}
