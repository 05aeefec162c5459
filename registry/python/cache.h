/* Merged stacks that a thread has captured before, found again by the words of its Python frames:
 * behind the cache of native stacks (registry/stack/stack_cache.h), which has found that part. */
#ifndef CA_REGISTRY_PYTHON_CACHE_H
#define CA_REGISTRY_PYTHON_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include "registry/python/known.h"
#include "registry/python/walk.h"

#define CA_PY_HEAD_BITS 10
#define CA_PY_HEADS (1u << CA_PY_HEAD_BITS)
#define CA_PY_UNITS 8192u

typedef struct ca_py_step {
    uintptr_t frame, code; /* frame 0: the chain ends here */
    uint64_t instruction, identity;
    const ca_py_code_t
        *known;              /* the code's copy; NULL of an entry, and where a step before has it */
    uint32_t number : 31;    /* of the code; 0 of an entry */
    uint32_t file_again : 1; /* a step before has the object of its file's name too */
    uint32_t other;          /* the stack to go on with where this differs, 0 for none */
} ca_py_step_t;

/* Followed by its steps. */
typedef struct ca_py_entry {
    uint32_t id, count;
    uint64_t generation; /* of the interpreter, when all codes were as they are here */
    uintptr_t interpreter;
    uintptr_t unused[3];
} ca_py_entry_t;

_Static_assert(sizeof(ca_py_entry_t) == sizeof(ca_py_step_t), "units");

typedef union ca_py_unit {
    ca_py_step_t step;
    ca_py_entry_t entry;
} ca_py_unit_t;

typedef struct ca_py_head {
    uintptr_t frame;
    uint64_t instruction;
    uint32_t native, first; /* native: 0 where it is free */
} ca_py_head_t;

/* All zero is an empty one. */
typedef struct ca_py_cache {
    uint32_t used; /* units; the first is not used */
    ca_py_head_t heads[CA_PY_HEADS];
    ca_py_unit_t units[CA_PY_UNITS];
} ca_py_cache_t;

/* The id that was kept for a native stack with the frames that begin with `frame`, of the state. 0
 * where there is none. `stop` is asked before each frame is read, unless it is NULL: where it says
 * so, the state is going away, and `*stopped` tells. */
uint32_t ca_py_cache_find(ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state,
                          uintptr_t frame, uint32_t native, int (*stop)(void), bool *stopped);

/* Remembers it for a walk whose codes have numbers. */
void ca_py_cache_keep(ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state,
                      uint32_t native, const ca_py_walk_t *walk, uint32_t id);

void ca_py_cache_forget(ca_py_cache_t *cache);

#endif
