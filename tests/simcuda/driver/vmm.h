/* What vmm.c and vmm_map.c share. */
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "sim.h"

typedef struct physical {
    sim_device_t *dev;
    CUdeviceptr at; /* its place in the device's memory: counted there, never accessed there */
    size_t size;
    CUmemAllocationProp prop;
    unsigned references, mappings;
    struct physical *next;
} physical_t;

typedef struct mapping {
    uint64_t base;
    size_t size;
    physical_t *memory;
    uint64_t buffer_id;
    uint8_t access[SIM_MAX_DEVICES]; /* CUmemAccess_flags */
    struct mapping *next;            /* of the same reservation, by address */
} mapping_t;

extern pthread_mutex_t sim_vmm_mu; /* nests inside the engine's lock and outside a heap's */

physical_t *sim_vmm_handle_locked(CUmemGenericAllocationHandle handle);
void sim_vmm_drop_if_unused_locked(physical_t *p);
mapping_t *sim_vmm_at_locked(uint64_t p); /* the mapping there, or NULL */
void sim_vmm_empty(const physical_t *p);  /* the bytes go: who gets this memory next reads zero */

#endif
