/* A kernel: a name. Shared by module.c and kernel.c. */
#ifndef SIMCUDA_MODULE_H
#define SIMCUDA_MODULE_H

#include <stdatomic.h>
#include <stdint.h>

enum { SIM_KERNEL_MAGIC = 0x4b45524e };

typedef struct sim_kernel {
    uint32_t magic;
    char *name;
    void *image;
    _Atomic int max_dynamic_shared;
    unsigned shape[4];            /* cuFuncSetBlockShape, and shared memory; 0: not set */
    void (*_Atomic body)(void *); /* simcuda_body */
    struct sim_kernel *next;
} sim_kernel_t;

/* Where code takes memory: that of the kernel's library in the current context, on first use. */
CUresult sim_kernel_load(sim_kernel_t *k);

#endif
