/* The ranges of NVTX that are open, so that their end has the name of their begin. Each begin and
 * each end sets a mark (registry/table/marks.h) once CUDA is used. Thread-safe. */
#ifndef CA_SHIM_HOOKS_NVTX_RANGES_H
#define CA_SHIM_HOOKS_NVTX_RANGES_H

#include <stdint.h>
#include "shim/hooks/nvtx_names.h"

/* A mark of its own. */
void ca_nvtx_mark(const ca_nvtx_name_t name);

/* Ranges that lie in each other, of one thread and one domain. Both answer the level, from 0, or
 * CA_NVTX_ERROR. Beyond a few dozen of a thread they are counted and set no mark. */
int ca_nvtx_push(unsigned domain, const ca_nvtx_name_t name);
int ca_nvtx_pop(unsigned domain);

/* Ranges that begin and end anywhere. 0: too many are open, and it sets no mark. */
uint64_t ca_nvtx_start(const ca_nvtx_name_t name);
void ca_nvtx_end(uint64_t range);

/* At the load, with no thread around yet. */
void ca_nvtx_ranges_prepare(void);
void ca_nvtx_ranges_reset_after_fork(void);

/* CUDA is used from now on: ranges that the calling thread is in begin here. */
void ca_nvtx_ranges_begun(void);

#endif
