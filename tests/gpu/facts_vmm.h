/*
 * Virtual memory management, for the facts about it (vmm_*): what each of them begins with.
 *
 * They are what expandable segments rest on. Each ends by itself: kernels are gates (facts_gate.h),
 * and what breaks the context has a process of its own.
 */
#ifndef TESTS_GPU_FACTS_VMM_H
#define TESTS_GPU_FACTS_VMM_H

#include "facts_gate.h"

#define MIB ((size_t)1 << 20)

typedef struct vmm {
    CUcontext ctx;
    CUstream stream, other; /* non-blocking */
    size_t unit;            /* bytes: of the smallest handle */
    CUmemAllocationProp prop;
} vmm_t;

extern vmm_t vmm;

/* The first device's primary context is current; false, and a note, where it lacks what is asked.
 */
bool vmm_ready(void);
bool vmm_ready_in(CUcontext ctx);
int vmm_attribute(CUdevice_attribute what); /* of the first device; -1 where it is not known */

/* Each of them answers with the first code that is not CUDA_SUCCESS. */
CUresult vmm_reserve(CUdeviceptr *at, size_t bytes);
CUresult vmm_create(CUmemGenericAllocationHandle *handle, size_t bytes);
CUresult vmm_grant(CUdeviceptr at, size_t bytes, int device, CUmemAccess_flags flags);
CUresult vmm_open(CUdeviceptr at, size_t bytes);             /* to the first device, all of it */
CUresult vmm_put(CUdeviceptr at, size_t bytes, size_t each); /* new handles of `each`, opened */
/* Two handles of the unit side by side, opened, at the address that is returned; 0 and a row where
 * that cannot be had. The addresses end behind `spare` units more. */
CUdeviceptr vmm_pair(size_t spare);

/* {"question": what, "answer": ...}; {"call": what, "when": when, "code": code} */
void row_answer(const char *question, long long answer);
void row_call(const char *call, const char *when, CUresult code);

#endif
