/* Rust's names are demangled here (demangle_rust.c): C++ run-times know none of them.
 *
 * For C++ the demangler is the run-time's. A program may have none that all modules see: one in C
 * whose plugins are C++, one that is linked to it statically, or C++ that needs nothing of it. So
 * the run-times are asked by their names too, and in the end libstdc++ is opened, for us alone.
 * They call malloc, which may be what the program is in where it ends, or may be the program's own,
 * on top of the memory that is being asked for: there, and where there is no run-time, it is our
 * own (demangle_cxx.c). */
#include "registry/names/demangle.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "registry/names/demangle_cxx.h"
#include "registry/names/demangle_rust.h"

#define DEEPEST 128
#define CXX_STACK ((size_t)64 << 10)
#define DEEPEST_QUICK 20 /* the stack may be that of a signal handler */

typedef char *demangle_t(const char *, char *, size_t *, int *);

static demangle_t *demangler_in(void *library)
{
    return library ? (demangle_t *)dlsym(library, "__cxa_demangle") : NULL;
}

/* What is opened stays open until the process ends: its users come at exit. */
static demangle_t *find_demangler(void)
{
    static const struct {
        const char *library;
        int flags;
    } places[] = {{"libstdc++.so.6", RTLD_NOLOAD},
                  {"libc++abi.so.1", RTLD_NOLOAD},
                  {"libstdc++.so.6", 0},
                  {"libc++abi.so.1", 0}};
    demangle_t *found = (demangle_t *)dlsym(RTLD_DEFAULT, "__cxa_demangle");
    for (size_t i = 0; !found && i < sizeof places / sizeof places[0]; i++)
        found = demangler_in(dlopen(places[i].library, RTLD_LAZY | RTLD_LOCAL | places[i].flags));
    return found;
}

static demangle_t *demangler(void)
{
    static demangle_t *found;
    static bool tried;
    if (!tried)
        found = find_demangler();
    tried = true;
    return found;
}

bool ca_demangle_is_needed(const char *name)
{
    return name[0] == '_' && (name[1] == 'Z' || name[1] == 'R');
}

static const char *copy_of(const char *name, const char *plain, ca_bump_t *memory)
{
    const char *shown = plain ? plain : name;
    return ca_bump_text(memory, shown, strlen(shown));
}

/* Without what the compiler puts behind the name of a part or a copy of the function. NULL where it
 * is no name of C++. */
static const char *mangled_cxx(const char *name, ca_bump_t *memory)
{
    return name[0] == '_' && name[1] == 'Z' ? ca_bump_text(memory, name, strcspn(name, ".")) : NULL;
}

const char *ca_demangle_quick(const char *name, ca_bump_t *memory)
{
    const char *plain = ca_demangle_rust(name, DEEPEST_QUICK);
    const char *mangled = plain ? NULL : mangled_cxx(name, memory);
    return copy_of(name, mangled ? ca_demangle_cxx(mangled, CA_CXX_STACK_SMALL) : plain, memory);
}

const char *ca_demangle(const char *name, ca_bump_t *memory)
{
    const char *rust = ca_demangle_rust(name, DEEPEST);
    const char *mangled = rust ? NULL : mangled_cxx(name, memory);
    int status = 0;
    if (!mangled)
        return copy_of(name, rust, memory);
    char *plain = demangler() ? demangler()(mangled, NULL, NULL, &status) : NULL;
    const char *copy =
        copy_of(name, demangler() ? plain : ca_demangle_cxx(mangled, CXX_STACK), memory);
    free(plain);
    return copy;
}
