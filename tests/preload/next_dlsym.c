/* dlsym must go on as it is without the shim: RTLD_NEXT counts from the caller, RTLD_DEFAULT, plain
 * handles, versions and dlerror. Run with plugin_next.so preloaded it also shows that an
 * interposer's own RTLD_NEXT works. */
#include <dlfcn.h>
#include <unistd.h>
#include "check.h"

/* Hides libc's, so that RTLD_NEXT from here and RTLD_DEFAULT differ. */
__attribute__((visibility("default"))) pid_t getppid(void)
{
    return -7;
}

static void check_failure(void *handle, const char *name)
{
    dlerror();
    CHECK(dlsym(handle, name) == NULL);
    const char *text = dlerror();
    CHECK(text && strstr(text, name));
    CHECK(dlerror() == NULL);
}

int main(void)
{
    pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "getppid");
    CHECK(next && next != getppid && next() > 0);
    CHECK((pid_t(*)(void))dlsym(RTLD_DEFAULT, "getppid") == getppid);

    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc);
    CHECK((pid_t(*)(void))dlsym(libc, "getppid") == next);
    CHECK(dlvsym(libc, "dlsym", "GLIBC_9.99") == NULL);
    void *(*real)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
    CHECK(real && real(libc, "getppid") == (void *)next);
    size_t (*length)(const char *) = (size_t(*)(const char *))dlsym(libc, "strlen");
    CHECK(length && length("seven") == 5);

    check_failure(RTLD_DEFAULT, "no_such_symbol_anywhere");
    check_failure(RTLD_NEXT, "no_such_symbol_anywhere");
    check_failure(libc, "cuMemAlloc_v2"); /* a name that the shim knows, in a library without it */
    check_failure(libc, "cu");
    OK(dlclose(libc));
    puts("done");
    return 0;
}
