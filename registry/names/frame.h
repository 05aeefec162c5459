/* What is known of a call: its module, and the functions that it is in. */
#ifndef CA_REGISTRY_NAMES_FRAME_H
#define CA_REGISTRY_NAMES_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One function at an address. */
typedef struct ca_place {
    const char *function; /* NULL where no name is known */
    const char *file;     /* NULL where no line is known */
    unsigned line;        /* 0 where none is known */
} ca_place_t;

/* One frame of a call stack: a return address, or where a Python function is. */
typedef struct ca_frame {
    bool python;          /* it has one place at most, and no address, module or offset */
    uintptr_t address;    /* the return address; 0 of a Python frame */
    const char *module;   /* path of the object it lies in, or NULL */
    const char *build_id; /* of that, in hexadecimal, or NULL */
    uint64_t offset;      /* of the call (address - 1) in the module's file image; 0 without one */
    size_t place_count;   /* 0 where nothing is known but the module */
    const ca_place_t *places; /* innermost first: inlined functions before the one they are in */
    const char *text;         /* all of that in one line */
    const char *lines;        /* for people: a line for each function, long names cut */
} ca_frame_t;

#endif
