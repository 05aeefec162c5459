/* Looks up what no list of ours has, in a driver of the test's own, and calls it: all that it is
 * given must reach it. "unknown_host MANY" looks MANY such names up. */
#include <dlfcn.h>
#include "check.h"

#define MANY_MOST 100

typedef int (*get_t)(const char *, void **, int, uint64_t, int *);
typedef double (*future_t)(double, long, double, long, double, long, double, long, double, long,
                           double, long, double, long, double, long, double, long);

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver);
    get_t get = (get_t)dlsym(driver, "cuGetProcAddress_v2");
    void *known = NULL, *found = NULL, *again = NULL, *many[MANY_MOST];
    uint64_t count = number_argument(argc, argv, 1, 0);
    CHECK(count <= MANY_MOST);
    CHECK(get);
    OK(get("cuDeviceGetCount", &known, 13000, 0, NULL));
    OK(get("cuFutureEntry", &found, 13000, 0, NULL));
    OK(get("cuFutureEntry", &again, 13000, 0, NULL));
    CHECK(found && found == again);
    printf("known: %s\n", known == dlsym(driver, "cuDeviceGetCount") ? "the driver's" : "ours");
    printf("unknown: %s\n", found == dlsym(driver, "cuFutureEntry") ? "the driver's" : "ours");
    for (uint64_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "cuFuture%u", (unsigned)i);
        OK(get(name, &many[i], 13000, 0, NULL));
    }
    fprintf(stderr, "before the call\n");
    for (uint64_t i = 0; i < count; i++)
        CHECK(((int (*)(void))many[i])() == (int)i);
    for (int i = 0; i < 2; i++) {
        double sum =
            ((future_t)found)(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18);
        CHECK(sum == 1 + 2 * 2 + 3 * 3 + 4 * 4 + 5 * 5 + 6 * 6 + 7 * 7 + 8 * 8 + 9 * 9 + 10 * 10 +
                         11 * 11 + 12 * 12 + 13 * 13 + 14 * 14 + 15 * 15 + 16 * 16 + 17 * 17 +
                         18 * 18);
    }
    return 0;
}
