/* Modules that call the driver, or look its functions up, past us: opened with RTLD_DEEPBIND they
 * find what they bring or need before what was preloaded. */
#ifndef CA_SHIM_CUDA_BINDINGS_H
#define CA_SHIM_CUDA_BINDINGS_H

#include <stdbool.h>

/* Whether there is one. Where the loader has opened and closed nothing since the last time, which
 * is one call of the loader's, only what was not bound then is looked at, a word each; `changed`
 * says. By one thread at a time. */
bool ca_bindings_past_us(bool *changed);

#endif
