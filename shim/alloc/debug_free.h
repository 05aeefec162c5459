/* Invalid frees, explained: which allocation the pointer is, was, or lies in. */
#ifndef CA_SHIM_ALLOC_DEBUG_FREE_H
#define CA_SHIM_ALLOC_DEBUG_FREE_H

#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/cuda/cuda_decls.h"

uint32_t ca_debug_take_stack(void);

/* With debug:frees the calling thread's stack, for the free under way; else 0. Before the record is
 * taken out: it takes a while, in which no record would say what is freed. */
static inline uint32_t ca_debug_free_stack(void)
{
    return __builtin_expect(ca_options.debug & CA_DEBUG_FREES, 0) ? ca_debug_take_stack() : 0;
}

/* A record was just taken out, for a free with that stack: remembers both. */
void ca_debug_note_free(const ca_allocation_t *record, uint32_t stack);

/* A free of a pointer into the pool's memory that is not live was refused. Said once per address
 * seen. Takes locks, may wait for a second: with none held. */
void ca_debug_explain_free(uint64_t address);

/* The same for a free that the driver refused with `code`, which is returned. Says nothing where
 * nothing is known of the address. */
CUresult ca_debug_explain_refusal(uint64_t address, CUresult code);

/* Calls that free. */
typedef enum { CA_FREES_DEVICE, CA_FREES_HOST } ca_frees_t;

/* The same for a live allocation, whose free by such a call was answered with `code`, where it is
 * of a kind that another call frees. */
void ca_debug_explain_kind(const ca_allocation_t *record, ca_frees_t call, CUresult code);

void ca_debug_free_reset_after_fork(void);

#endif
