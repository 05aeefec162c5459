/* Registers a function to call at the end of the process, or before this module is closed.
 * ThreadSanitizer's atexit does not note the calling module, and calls the function after the
 * module was closed; this is what glibc's own does. */
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
