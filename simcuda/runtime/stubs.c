/*
 * Every other function of the runtime: it says its name and answers cudaErrorNotSupported, so that
 * a program which needs more than is modelled fails where it does so. No CUDA header is included
 * and no parameter declared: the names alone matter here, and both of our ABIs let a callee ignore
 * arguments.
 */
#include "export.h"

#include <stdio.h>

enum { NOT_SUPPORTED = 801 }; /* driver_types.h, cudaErrorNotSupported */

extern int rt_done(int error);

static int not_modelled(const char *name)
{
    fprintf(stderr, "simcuda: %s is not modelled\n", name);
    return rt_done(NOT_SUPPORTED);
}

#define X(name)                                                                                    \
    RT_EXPORT int name(void);                                                                      \
    int name(void)                                                                                 \
    {                                                                                              \
        return not_modelled(#name);                                                                \
    }
#include "stubs.def"
