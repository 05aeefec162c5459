/* Marks and ranges that programs set with NVTX become marks of the reports (the option `nvtx`). */
#ifndef CA_SHIM_HOOKS_NVTX_H
#define CA_SHIM_HOOKS_NVTX_H

/* While the library is loaded: where the option is on and no tool is named, and the process has no
 * other thread, the environment names this library from then on. */
void ca_nvtx_at_load(void);

/* Says why nothing comes of the option, where that is so. */
void ca_nvtx_configure(void);
void ca_nvtx_reset_after_fork(void);

/* A context is served from now on. */
void ca_nvtx_context_in_use(void);

#endif
