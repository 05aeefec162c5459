/* Python functions that stood on a stack, and the places in them: what a report says of them, long
 * after the interpreter has let them go. A code is one by what it says, so the same function made
 * again is the same. Thread-safe; nothing is ever forgotten, but by a fork. */
#ifndef CA_REGISTRY_PYTHON_CODES_H
#define CA_REGISTRY_PYTHON_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/python/lines.h"

/* A string as an interpreter has it: so many characters of 1, 2 or 4 bytes. */
typedef struct ca_py_text {
    uint32_t width;
    uint32_t length;
    const void *data;
    uintptr_t object; /* that it was read from */
    uint64_t hash;    /* of that, as far as it was known */
    uint32_t shape;   /* what that says of where its characters are */
} ca_py_text_t;

/* What tells by the objects of a live code whether it is the one that was copied (known.h): in one
 * line of the processor's cache. */
typedef struct ca_py_in_place {
    uintptr_t name, file, lines; /* objects */
    uint64_t name_hash;
    const void *file_text; /* the copy */
    uint32_t name_length, file_length, lines_count, first_line, file_shape;
    bool name_marked; /* name_hash is ca_py_mark of it: the object had none when it was copied */
    bool is_of_file;  /* not made by the program as it ran: its file's name is no <...> */
} ca_py_in_place_t;

#define CA_PY_CACHE_LINE 64

typedef struct ca_py_code {
    _Alignas(CA_PY_CACHE_LINE)
        ca_py_in_place_t place; /* all but file_text, of what is to be added */
    ca_py_text_t name, file;
    ca_py_table_t lines;         /* `bytes` is NULL for one from a journal: its offsets are lines */
    const char *function, *path; /* UTF-8; not set of what is to be added */
} ca_py_code_t;

_Static_assert(sizeof(ca_py_in_place_t) <= CA_PY_CACHE_LINE, "of one line");

/* The number of that code, from 1 on: of what it says now, which is copied. 0 without room. */
uint32_t ca_py_code_add(const ca_py_code_t *code);

/* A code that has a number. */
const ca_py_code_t *ca_py_code_of(uint32_t number);

/* The number of a place in a code, from 1 on. 0 without room. */
uint32_t ca_py_site_add(uint32_t code, uint32_t offset);

typedef struct ca_py_site {
    uint32_t code, offset;
    unsigned line; /* 0 where none is known */
} ca_py_site_t;

/* A place that has a number; NULL where none has. */
const ca_py_site_t *ca_py_site_of(uint32_t number);

/* From a journal: a code without a table. 0 as above. */
uint32_t ca_py_code_put(const char *function, const char *path);

/* Called for each code and each site that is new from now on, under a lock of the rank of stacks.
 * NULL: nothing is. */
typedef struct ca_py_listener {
    void (*code)(uint32_t number, const char *function, const char *path);
    void (*site)(uint32_t number, uint32_t code, unsigned line);
} ca_py_listener_t;
void ca_py_listen(const ca_py_listener_t *listener);

/* Calls it for all that are known. */
void ca_py_notify_all(const ca_py_listener_t *listener);

void ca_py_codes_reset_after_fork(void);

#endif
