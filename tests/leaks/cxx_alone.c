/* A C program, in which only the library that it opened for itself brings a C++ run-time: names are
 * readable all the same.
 *
 * arguments: %B/libcxx_library.so
 * plain: it brings a C++ run-time
 * parts: cxx_library.cc
 * expect: 4000 bytes in 1, device: shelf::put(unsigned long)@put < shelf_put@shelf_put < main@main
 */
#include <dlfcn.h>
#include "tests/leaks/leak.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(dlsym(RTLD_DEFAULT, "__cxa_demangle") == NULL); /* else this tests nothing */
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*put)(size_t) = library ? (int (*)(size_t))dlsym(library, "shelf_put") : NULL;
    CHECK(put && put(4000) == 2); /* @main */
    return 0;
}
