/* What vmm.c, vmm_reserve.c, vmm_map.c and vmm_share.c have in common. */
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "sim.h"

typedef struct physical {
    sim_device_t *dev;
    CUdeviceptr at; /* its place in the device's memory: counted there, never accessed there */
    size_t size;
    CUmemAllocationProp prop;
    unsigned references, mappings;
    struct physical *next, *prev;
} physical_t;

typedef struct mapping { /* of a whole handle */
    uint64_t base;
    size_t size;
    physical_t *memory;
    uint64_t buffer_id;
    uint8_t access[SIM_MAX_DEVICES]; /* CUmemAccess_flags */
    bool counted;                    /* against mappings:N, from its first access on */
    struct mapping *next;            /* of those that one call has unmapped */
} mapping_t;

typedef struct reservation {
    uint64_t base;
    size_t size;
    char *bytes;    /* where the host finds them */
    mapping_t **at; /* by page */
    size_t mappings;
} reservation_t;

extern pthread_mutex_t sim_vmm_mu; /* nests inside the engine's lock and outside a heap's */
extern struct simcuda_vmm sim_vmm_now;

/* What every function of this kind begins with. */
#define VMM_ENTER(name)                                                                            \
    SIM_ENTER(name);                                                                               \
    if (sim_opt.vmm & SIM_VMM_NONE) {                                                              \
        return CUDA_ERROR_NOT_SUPPORTED;                                                           \
    }                                                                                              \
    (void)0

/* --- vmm.c */
CUresult sim_vmm_unsafe(void); /* sim_capture_unsafe, but for vmm:captures */
physical_t *sim_vmm_handle_locked(CUmemGenericAllocationHandle handle);
void sim_vmm_drop_if_unused_locked(physical_t *p);

/* --- vmm_reserve.c */
reservation_t *sim_vmm_reservation_locked(uint64_t p); /* that has this address, or NULL */
mapping_t *sim_vmm_at_locked(uint64_t p);              /* the mapping there, or NULL */
/* The mapping at `p` of r, or NULL; and whether [p, p+size) is inside r. */
mapping_t *sim_vmm_in_locked(const reservation_t *r, uint64_t p);
bool sim_vmm_inside(const reservation_t *r, uint64_t p, size_t size);
char *sim_vmm_bytes(uint64_t p); /* where the bytes of a mapped address are */
/* How many mappings [p, p+size) consists of; 0: there is a gap. `whole`: or one reaches out. */
size_t sim_vmm_count_locked(const reservation_t *r, uint64_t p, size_t size, bool whole);

/* --- vmm_map.c */
/* Drops the bytes: the memory reads zero when it is used again. */
void sim_vmm_empty(const physical_t *p);

#endif
