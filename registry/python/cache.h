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

_Static_assert(CA_PY_UNITS < 1u << 14, "what a step has room for");

/* How the code of a step is known to be the one that it was. */
typedef enum {
    CA_PY_BY_OTHERS,  /* a step before has it, or no code is shown */
    CA_PY_BY_VERSION, /* `identity` */
    CA_PY_IN_PLACE,   /* by the objects that `known` was made of, as far as those are the same */
    CA_PY_AS_A_WHOLE  /* they are others: by all that it says */
} ca_py_proof_t;

#define CA_PY_CUT UINTPTR_MAX /* no frame's address */

/* In half a line of the processor's cache. */
typedef struct ca_py_step {
    uintptr_t frame; /* 0: the chain ends here. CA_PY_CUT: it goes on, but is followed no further */
    uintptr_t code;
    union {
        uint64_t identity;
        const ca_py_code_t *known; /* the code's copy */
    };
    uint32_t instruction; /* the lower half: the rest is the code's */
    uint32_t proof : 2;   /* ca_py_proof_t */
    uint32_t other : 14;  /* the stack to go on with where this differs, 0 for none */
} ca_py_step_t;

/* Followed by its steps, of which the last one has no code, and by the names of their files. */
typedef struct ca_py_entry {
    uint32_t id;
    uint16_t step_count, file_count;
    uint64_t generation; /* of the interpreter, when all codes were as they are here */
    uintptr_t interpreter;
} ca_py_entry_t;

#define CA_PY_UNIT_FILES 4u

typedef union ca_py_unit {
    ca_py_step_t step;
    ca_py_entry_t entry;
    const ca_py_string_t *files[CA_PY_UNIT_FILES]; /* of steps that are known in place */
} ca_py_unit_t;

_Static_assert(sizeof(ca_py_unit_t) == CA_PY_CACHE_LINE / 2, "two of them in a line");

typedef struct ca_py_head {
    uintptr_t frame;
    uint64_t instruction;
    uint32_t native, first; /* native: 0 where it is free */
} ca_py_head_t;

/* All zero is an empty one. */
typedef struct ca_py_cache {
    uint32_t used; /* units; the first is not used */
    ca_py_head_t heads[CA_PY_HEADS];
    _Alignas(CA_PY_CACHE_LINE) ca_py_unit_t units[CA_PY_UNITS];
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
