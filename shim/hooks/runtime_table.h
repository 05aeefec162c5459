/* The real runtime functions, found for each caller: a process may hold several runtimes, and a
 * plugin's runtime may be visible to the plugin alone. From any thread; a search takes the loader's
 * lock. */
#ifndef CA_SHIM_HOOKS_RUNTIME_TABLE_H
#define CA_SHIM_HOOKS_RUNTIME_TABLE_H

typedef enum {
#define CA_RUNTIME(symbol) CA_RUNTIME_##symbol,
#include "shim/hooks/hooks.def"
    CA_RUNTIME_COUNT
} ca_runtime_function_t;

/* The function that the code at `caller` (a return address) would have called without this library;
 * NULL when there is none. The answer is remembered per call site, and its library kept open. */
void *ca_runtime_real(ca_runtime_function_t function, void *caller);

#endif
