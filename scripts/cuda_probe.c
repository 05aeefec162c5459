/* Is there a CUDA to run on? Succeeds where a driver answers with a device and a libcudart.so.13 is
 * found, by the loader or in one of the directories given; prints that directory (empty: the
 * loader's own). Status 1: no driver with a device; 2: a driver, but no such runtime. Knows no CUDA
 * header, and must not take the simulator for a driver.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*init_fn)(unsigned flags);
typedef int (*count_fn)(int *count);

static int driver_answers(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        return 0;
    }
    init_fn init = (init_fn)dlsym(driver, "cuInit");
    count_fn device_count = (count_fn)dlsym(driver, "cuDeviceGetCount");
    Dl_info where;
    if (!init || !device_count || !dladdr((void *)init, &where) ||
        strstr(where.dli_fname, "simcuda/")) {
        return 0;
    }
    int count = 0;
    return init(0) == 0 && device_count(&count) == 0 && count > 0;
}

int main(int argc, char **argv)
{
    if (!driver_answers()) {
        return 1;
    }
    argv[0] = "";
    for (int i = 0; i < argc; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%slibcudart.so.13", argv[i], *argv[i] ? "/" : "");
        if (dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
            puts(argv[i]);
            return 0;
        }
    }
    return 2;
}
