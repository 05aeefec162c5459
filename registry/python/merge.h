/* One stack of native and Python frames. */
#ifndef CA_REGISTRY_PYTHON_MERGE_H
#define CA_REGISTRY_PYTHON_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/python/walk.h"

/* A word of a stack that stands for a Python frame: with the number of its site. Return addresses
 * have no upper bit. */
#define CA_PYTHON_WORD ((uintptr_t)1 << 63)

#define CA_PYTHON_NATIVE_MOST 64u /* native frames of a stack */

static inline bool ca_python_is_word(uintptr_t word)
{
    return (word & CA_PYTHON_WORD) != 0;
}

static inline uint32_t ca_python_site_in(uintptr_t word)
{
    return (uint32_t)word;
}

/* Native frames, innermost first. `sps`: the stack pointer in the frame's function once the call
 * has returned, of `sp_count` frames, which may be one more than `count`; 0 where not known. */
typedef struct ca_native_part {
    const uintptr_t *frames, *sps;
    size_t count, sp_count;
} ca_native_part_t;

/* Code that runs Python frames: the module of the interpreter, where it has no other code. */
typedef struct ca_py_code_range {
    uintptr_t low, high;
} ca_py_code_range_t;

/* Writes the merged stack, of at most native->count + walk->frame_count words; returns how many. A
 * run of Python frames takes the place of the native frame that runs it; other native frames of the
 * interpreter are left out, as are Python frames whose site is 0; what lies beyond the native part
 * follows. Python frames alone where
 * `native` is NULL. */
size_t ca_py_merge(const ca_native_part_t *native, const ca_py_walk_t *walk, const uint32_t *sites,
                   ca_py_code_range_t interpreter, uintptr_t *words);

#endif
