/* A code's line tables, in the three forms that CPython has had (Objects/lnotab_notes.txt, PEP 626,
 * Objects/locations.md describe them). Of bytes of our own: any may be wrong. */
#ifndef CA_REGISTRY_PYTHON_LINES_H
#define CA_REGISTRY_PYTHON_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/python/layout.h"

typedef struct ca_py_table {
    ca_py_lines_t form;
    const uint8_t *bytes;
    size_t count;
    unsigned first_line;
} ca_py_table_t;

/* The line of the instruction at so many bytes from the first. Where the table gives it none, that
 * of the one before. */
unsigned ca_py_line(const ca_py_table_t *table, uint32_t offset);

/* Whether the table is of so many bytes of code. Always, where the form does not tell. */
bool ca_py_lines_cover(const ca_py_table_t *table, size_t code_bytes);

#endif
