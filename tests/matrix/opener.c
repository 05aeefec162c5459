/* A program that opens modules, and is linked with no CUDA library itself (or with one, where the
 * build says so).
 *
 *   opener local|global|deepbind MODULE    opens it so and lets it work
 *   opener namespace MODULE                the same in a namespace of its own
 *   opener reopen MODULE                   opens, works and closes, three times
 *   opener both MODULE MODULE              two runtimes, both in use */
#include <dlfcn.h>
#include "tests/matrix/module.h"
#include "tests/preload/check.h"

static const module_t *module_of(void *handle)
{
    if (!handle)
        FAIL("%s", dlerror());
    const module_t *module = dlsym(handle, "module");
    CHECK(module);
    return module;
}

static const module_t *open_it(const char *path, int flags)
{
    return module_of(dlopen(path, RTLD_NOW | flags));
}

static void report(const module_t *module)
{
    printf("%d: %lld\n", module->version(), module->work());
}

static void reopen(const char *path)
{
    for (int i = 0; i < 3; i++) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        report(module_of(handle));
        OK(dlclose(handle));
        CHECK(!dlopen(path, RTLD_NOW | RTLD_NOLOAD)); /* else this tests nothing */
    }
}

static void check_error_of(const module_t *mine, const module_t *others)
{
    mine->leave_error();
    OK(others->take_error());
    CHECK(mine->take_error() != 0);
    OK(mine->take_error());
}

/* What one allocates, the other frees; and an error stays with the runtime that it came from. */
static void both(const char *path_a, const char *path_b)
{
    const module_t *a = open_it(path_a, RTLD_LOCAL);
    const module_t *b = open_it(path_b, RTLD_LOCAL);
    report(a);
    report(b);
    CHECK(a->version() != b->version());
    for (int i = 0; i < 100; i++) {
        void *from_a = a->allocate(3000), *from_b = b->allocate(3000);
        CHECK(from_a != from_b);
        b->release(from_a);
        a->release(from_b);
    }
    check_error_of(a, b);
    check_error_of(b, a);
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    const char *how = argv[1];
    if (strcmp(how, "local") == 0)
        report(open_it(argv[2], RTLD_LOCAL));
    else if (strcmp(how, "global") == 0)
        report(open_it(argv[2], RTLD_GLOBAL));
    else if (strcmp(how, "deepbind") == 0)
        report(open_it(argv[2], RTLD_LOCAL | RTLD_DEEPBIND));
    else if (strcmp(how, "namespace") == 0)
        report(module_of(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW | RTLD_LOCAL)));
    else if (strcmp(how, "reopen") == 0)
        reopen(argv[2]);
    else if (strcmp(how, "both") == 0 && argc > 3)
        both(argv[2], argv[3]);
    else
        FAIL("unknown: %s", how);
    return 0;
}
