/* A library that asks for a driver function when the program prints, and prints whose function it
 * was given: by the driver's handle, and as an interposer would, next after itself. Preloaded
 * behind the shim. Named libucm it is what patches functions that it finds. */
#include <dlfcn.h>
#include "check.h"

static void print(const char *how, void *function)
{
    Dl_info info;
    CHECK(function && dladdr(function, &info));
    const char *base = strrchr(info.dli_fname, '/');
    printf("%s: %s\n", how, base ? base + 1 : info.dli_fname);
}

__attribute__((visibility("default"))) int puts(const char *text)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(driver);
    print("handle", dlsym(driver, "cuMemAlloc_v2"));
    print("next", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
    return printf("%s\n", text);
}
