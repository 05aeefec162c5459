/* Somebody else's interposer: wraps puts and finds the next one with dlsym(RTLD_NEXT). A dlsym
 * wrapper that is not a tail call would make it find itself and recurse until the stack ends. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int puts(const char *text)
{
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "puts");
    if (!next || next == puts) {
        fprintf(stderr, "plugin_next: RTLD_NEXT gave %p, I am %p\n", (void *)next, (void *)puts);
        exit(1);
    }
    fputs("next: ", stdout);
    return next(text);
}
