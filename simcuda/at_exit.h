/* What this module has to do at the end of the process, or before it is closed. ThreadSanitizer's
 * atexit forgets which module it was asked by, and calls it when it is gone: this is what glibc's
 * own does. */
#ifndef SIMCUDA_AT_EXIT_H
#define SIMCUDA_AT_EXIT_H

#include <stddef.h>

extern void *__dso_handle __attribute__((visibility("hidden")));
extern int __cxa_atexit(void (*call)(void *), void *argument, void *module);

static inline int sim_at_exit(void (*call)(void *))
{
    return __cxa_atexit(call, NULL, &__dso_handle);
}

#endif
