/* The guard behind an allocation: what is wrong with it, and the look at all of them at exit. */
#ifndef CA_SHIM_DEBUG_GUARD_H
#define CA_SHIM_DEBUG_GUARD_H

#include "registry/registry.h"

/* Tells where `guard`, a copy of what lies behind the allocation, was written to. `by_free`: it is
 * being freed by the caller. With no lock held; may wait for a second. */
void ca_guard_check(const ca_record_t *record, const unsigned char *guard, bool by_free);

/* A guard was made: all that are there are looked at when the process exits. */
void ca_guard_made(void);

#endif
