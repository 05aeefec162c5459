/* embedded ROUNDS LIBPYTHON SCRIPT ARGUMENT...: a program that opens an interpreter, runs the
 * script in it from a function of its own, ends the interpreter, and begins again. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

static int (*run_string)(const char *text);

/* On the stack between main and Python, by name. */
__attribute__((noinline)) int run_script(const char *text)
{
    volatile int result = run_string(text);
    return result;
}

static void *of(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

int main(int argc, char **argv)
{
    static char text[8192];
    void *library = argc > 3 ? dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!library) {
        printf("no interpreter can be opened here: %s\n", dlerror());
        return 77;
    }
    void (*initialize)(void) = (void (*)(void))of(library, "Py_Initialize");
    int (*finalize)(void) = (int (*)(void))of(library, "Py_FinalizeEx");
    run_string = (int (*)(const char *))of(library, "PyRun_SimpleString");
    int used = snprintf(text, sizeof text, "import sys\nsys.argv = ['%s'", argv[3]);
    for (int i = 4; i < argc; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, ", '%s'", argv[i]);
    snprintf(text + used, sizeof text - (size_t)used,
             "]\nexec(compile(open('%s').read(), '%s', 'exec'))\n", argv[3], argv[3]);
    for (int round = 0; round < atoi(argv[1]); round++) {
        initialize();
        if (run_script(text) != 0)
            return 1;
        finalize();
    }
    return 0;
}
