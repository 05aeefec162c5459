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
    uintptr_t object; /* that it was read from; 0 for none */
    uint32_t shape;   /* what that says of where its characters are */
} ca_py_text_t;

/* As many bytes as a string object has before its characters, up to 3.11: as many that end with the
 * last character are all the object's. */
#define CA_PY_TAIL 48u

/* The string object that a copy was made of, and its characters. */
typedef struct ca_py_string {
    uintptr_t object;  /* 0 where the tail would begin before it: short ones of 3.12 and later */
    uintptr_t tail_at; /* in the object: the last CA_PY_TAIL bytes of the characters */
    uint32_t length, shape;
    uint32_t tail_bytes;      /* as many of them as are characters */
    uint32_t front;           /* bytes of characters that are before those */
    uint8_t tail[CA_PY_TAIL]; /* the copy; 0 where none are */
    const uint8_t *text;      /* the copy of all, behind CA_PY_TAIL bytes of 0 */
} ca_py_string_t;

/* Of an object, by its characters there and the copy of them, which is behind CA_PY_TAIL bytes of
 * 0. */
ca_py_string_t ca_py_string_of(const ca_py_text_t *live, const void *copy);

/* What tells by the objects of a live code whether it is the one that was copied (known.h): in two
 * lines of the processor's cache. */
typedef struct ca_py_in_place {
    ca_py_string_t name;
    const ca_py_string_t *file; /* one for all codes that have the object */
    uintptr_t file_object, lines;
    uint32_t first_line, lines_count;
    bool is_plain; /* see ca_py_is_same_in_place */
} ca_py_in_place_t;

#define CA_PY_CACHE_LINE 64

typedef struct ca_py_code {
    _Alignas(2 *
             CA_PY_CACHE_LINE) ca_py_in_place_t place; /* of what is to be added: `lines` alone */
    ca_py_text_t name, file;
    ca_py_table_t lines;         /* `bytes` is NULL for one from a journal: its offsets are lines */
    const char *function, *path; /* UTF-8; not set of what is to be added */
} ca_py_code_t;

_Static_assert(sizeof(ca_py_in_place_t) <= 2 * CA_PY_CACHE_LINE, "of two lines");

/* Made by a program as it runs, so that it may well have the names, lengths and addresses of one
 * before it: its file's name is <...>. */
bool ca_py_is_made(const ca_py_code_t *code);

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
