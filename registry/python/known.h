/* From code objects to the numbers that codes.h gives them.
 *
 * An object dies and another one comes at its address, so that an address says nothing. From 3.12
 * on a code has a version that is never given twice; before that, and as long as it is not seen
 * that versions differ, it is compared as a whole with the copy. */
#ifndef CA_REGISTRY_PYTHON_KNOWN_H
#define CA_REGISTRY_PYTHON_KNOWN_H

#include <stdbool.h>
#include <stdint.h>
#include "registry/python/codes.h"
#include "registry/python/walk.h"

#define CA_PY_KNOWN 1024u
#define CA_PY_KNOWN_SITES 2048u

/* What a thread has looked up. All zero is an empty one. */
typedef struct ca_py_known {
    struct ca_py_known_code {
        uintptr_t code;
        uint64_t identity;
        uint32_t number;
    } codes[CA_PY_KNOWN];
    struct ca_py_known_site {
        uint64_t key;
        uint32_t number;
    } sites[CA_PY_KNOWN_SITES];
} ca_py_known_t;

/* Whether a live code says what that one does. */
bool ca_py_is_same(const ca_py_layout_t *layout, uintptr_t code, uint32_t number);

/* Gives the codes of a walk their numbers. False where one is no code, or there is no room. */
bool ca_py_number(const ca_py_layout_t *layout, ca_py_reader_t *reader, ca_py_known_t *known,
                  ca_py_walk_t *walk);

/* The site of a frame whose code has its number. 0 where it lies out of the code, or without room.
 */
uint32_t ca_py_site(const ca_py_layout_t *layout, ca_py_reader_t *reader, ca_py_known_t *known,
                    const ca_py_link_t *link);

/* Whether versions are seen to tell codes apart: changes once at most each way. */
unsigned ca_py_versions_epoch(void);

void ca_py_known_reset_after_fork(void);

#endif
