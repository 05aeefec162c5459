/* unknown LIBRARY MINOR [free-threaded]: a program that exports what an interpreter of version
 * 3.MINOR does, but is none: what it says of itself is empty, or that it has no lock. Prints the
 * stack of a capture, as checks.py gets it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED unsigned long Py_Version;
EXPORTED long PyCode_Type[64], PyUnicode_Type[64], PyBytes_Type[64], PyFrame_Type[64];
EXPORTED long _PyRuntime[128];

EXPORTED void *PyGILState_GetThisThreadState(void)
{
    static long state[64];
    return state;
}

EXPORTED int Py_IsFinalizing(void)
{
    return 0;
}

EXPORTED int Py_IsInitialized(void)
{
    return 1;
}

int main(int argc, char **argv)
{
    static char text[65536];
    void *library = argc >= 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "usage: unknown LIBRARY MINOR [free-threaded]\n");
        return 2;
    }
    Py_Version = 3u << 24 | (unsigned long)atoi(argv[2]) << 16 | 0xf0;
    if (argc > 3) {
        memcpy(_PyRuntime, "xdebugpy", sizeof _PyRuntime[0]);
        _PyRuntime[1] = (long)Py_Version;
        _PyRuntime[2] = 1;
    }
    ((void (*)(unsigned, unsigned, unsigned))dlsym(library, "frames_start"))(0, 32, 32);
    uint32_t (*capture)(void) = (uint32_t(*)(void))dlsym(library, "frames_capture");
    uint32_t id = capture();
    ((void (*)(uint32_t, char *, size_t))dlsym(library, "frames_text"))(id, text, sizeof text);
    printf("%s", text);
    return id != 0 && capture() != 0 ? 0 : 1;
}
