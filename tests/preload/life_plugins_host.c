/* Threads that open a module which uses the runtime, let it work and close it again, so that it
 * comes and goes: life_plugins_host MODULE [THREADS [ROUNDS]]. The module leaves 12345 bytes behind
 * each time. Linked with no CUDA library. */
#include <dlfcn.h>
#include <pthread.h>
#include "check.h"

#define THREADS_MOST 16

static const char *path;
static uint64_t rounds;

static void *open_and_close(void *arg)
{
    for (uint64_t i = 0; i < rounds; i++) {
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!module)
            FAIL("%s", dlerror());
        void (*work)(unsigned) = (void (*)(unsigned))dlsym(module, "plugin_work");
        CHECK(work);
        work(20);
        CHECK(dlclose(module) == 0);
    }
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MOST];
    uint64_t count = number_argument(argc, argv, 2, 8);
    rounds = number_argument(argc, argv, 3, 20);
    CHECK(argc > 1 && count <= THREADS_MOST);
    path = argv[1];
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, open_and_close, NULL) == 0);
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    printf("done\n");
    return 4;
}
