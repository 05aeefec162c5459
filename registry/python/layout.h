/* Where CPython keeps what a stack needs, by version: offsets in bytes. From 3.13 on the
 * interpreter brings a table of them for debuggers; before that they are listed here. Nothing else
 * in the library knows any. */
#ifndef CA_REGISTRY_PYTHON_LAYOUT_H
#define CA_REGISTRY_PYTHON_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include "registry/python/find.h"

/* Which variable of the evaluating function, on the C stack, stands for a run of Python frames. */
typedef enum {
    CA_PY_NO_PLACE,   /* 3.8, 3.9: none that could be reached */
    CA_PY_ONE_CFRAME, /* 3.10: each frame has a cframe */
    CA_PY_RUN_CFRAME, /* 3.11: each run has one, and ends with a frame that says so */
    CA_PY_ENTRY_FRAME /* 3.12 on: a frame of the evaluating function's own ends it */
} ca_py_places_t;

typedef enum { CA_PY_LNOTAB, CA_PY_LINES_310, CA_PY_LOCATIONS } ca_py_lines_t;

typedef struct ca_py_layout {
    unsigned minor; /* of 3.x */
    ca_py_places_t places;
    ca_py_lines_t lines;
    bool instruction_is_index; /* an int, of bytes or on 3.10 of units; else a pointer */
    uint8_t instruction_unit;  /* bytes */
    uintptr_t code_mask;       /* of a frame's word for its code, which may have flags */
    uint64_t instruction_mask;
    uintptr_t code_type, str_type, bytes_type;
    struct {
        uint32_t interpreter, thread, frame, cframe; /* frame: 0 where it is the cframe's */
    } state;
    struct {
        uint32_t frame, previous;
    } cframe;
    struct {
        uint32_t code, previous, instruction, owner;
    } frame;
    struct {
        /* `version`: 0 where there is none. `bytecode`: of an object's on 3.8 to 3.10. */
        uint32_t file, name, qualname, first_line, lines, bytecode, version;
        uint32_t called; /* what is shown: the qualified name, or the name */
    } code;
    struct {
        uint32_t length, state, ascii, compact;
    } str;
    struct {
        uint32_t length, data;
    } bytes;
    uint32_t type;       /* of any object */
    uint32_t generation; /* of the interpreter: counts codes that died; 0 where nothing does */
    uint32_t number;     /* of the interpreter, which no other one ever has; 0: as above */
} ca_py_layout_t;

/* What is wrong with the interpreter, or NULL. Reads its static data alone, but for Py_GetVersion
 * where there is no number for it, which neither needs nor changes a state. */
const char *ca_py_layout_make(const ca_py_symbols_t *symbols, ca_py_layout_t *layout);

/* Whether the interpreter's types say the same of themselves as the layout does. */
bool ca_py_layout_is_proven(const ca_py_symbols_t *symbols, const ca_py_layout_t *layout);

#endif
