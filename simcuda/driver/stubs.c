/* Every function of cuda.h that is not modelled: it prints its name and fails. The definitions are
 * weak, so a file that models a function simply defines it. No CUDA header here: the stubs have no
 * arguments, and a caller's arguments are ignored. */
#include <stdio.h>

#define SIM_STUB __attribute__((weak, visibility("protected")))

int sim_stub_called(int id, const char *name);

enum {
#define SIM_FN(link, base, version, kind) ID_##link,
#include "api.def"
#undef SIM_FN
};

#define SIM_FN(link, base, version, kind)                                                          \
    int link(void);                                                                                \
    SIM_STUB int link(void)                                                                        \
    {                                                                                              \
        return sim_stub_called(ID_##link, #link);                                                  \
    }
#include "api.def"
