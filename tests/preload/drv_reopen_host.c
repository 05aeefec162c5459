/* Opens the driver, calls it, closes it and opens it again, when it lies elsewhere: the addresses
 * of before are good for nothing. */
#include <dlfcn.h>
#include <sys/mman.h>
#include "check.h"

typedef int (*alloc_t)(unsigned long long *, size_t);

int main(void)
{
    for (int i = 0; i < 3; i++) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        CHECK(driver);
        alloc_t allocate = (alloc_t)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
        CHECK(allocate);
        printf("%d\n", allocate(NULL, 0));
        Dl_info info;
        CHECK(dladdr(dlsym(driver, "cuHere"), &info));
        OK(dlclose(driver));
        /* Where nobody keeps it loaded something else takes its place; MAP_FAILED elsewhere. */
        void *place = mmap(info.dli_fbase, 4096, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(place == info.dli_fbase || place == MAP_FAILED);
    }
    return 0;
}
