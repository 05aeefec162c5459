/* Call stacks by the functions that they go through: two calls in one function are two stacks, with
 * return addresses of their own, and one class. For reports only: see symbols.h. Not thread-safe.
 */
#ifndef CA_REGISTRY_REPORT_CLASSES_H
#define CA_REGISTRY_REPORT_CLASSES_H

#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "registry/names/symbols.h"

typedef struct ca_class {
    struct ca_class *next;
    size_t frame_count;        /* 0: no call stack */
    ca_named_t *const *frames; /* of the stack that was asked about first, innermost first */
    uint64_t names;            /* hash of the functions' names: the same in another run */
    uint32_t number;           /* from 1; 0 for no call stack */
    unsigned sections;         /* a bit for each section of the model that has it */
} ca_class_t;

#define CA_CLASS_LISTS 4096

typedef struct ca_classes {
    ca_bump_t *memory;
    ca_symbols_t *symbols;
    unsigned depth; /* innermost frames of a class that was cut; 0: all */
    uint32_t count;
    ca_class_t none;
    ca_class_t *lists[CA_CLASS_LISTS];
} ca_classes_t;

/* The class of a stack, made where it is new, and the stack's own frames, which are as many as the
 * class's and may differ from them in their lines. Without memory, that of no call stack. */
ca_class_t *ca_classes_of(ca_classes_t *classes, uint32_t stack, ca_named_t *const **frames);

/* That of the innermost frames alone. */
ca_class_t *ca_classes_cut(ca_classes_t *classes, ca_class_t *class);

#endif
