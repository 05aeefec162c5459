/* Layouts that are the same in all releases of a version, without what ca_py_layout_make finds in
 * the process. Constants, so that code that is made for one of them has its offsets in it. */
#ifndef CA_REGISTRY_PYTHON_LAYOUT_TABLES_H
#define CA_REGISTRY_PYTHON_LAYOUT_TABLES_H

#include "registry/python/layout.h"

static const ca_py_layout_t ca_py_layout_38 = {
    .places = CA_PY_NO_PLACE,
    .lines = CA_PY_LNOTAB,
    .instruction_is_index = true,
    .instruction_unit = 1,
    .code_mask = UINTPTR_MAX,
    .instruction_mask = UINT32_MAX,
    .state = {.interpreter = 16, .thread = 176, .frame = 24},
    .frame = {.code = 32, .previous = 24, .instruction = 104},
    .code =
        {.file = 104, .name = 112, .first_line = 40, .lines = 120, .bytecode = 48, .called = 112},
    .str = {.length = 16, .state = 32, .ascii = 48, .compact = 72},
    .bytes = {.length = 16, .data = 32},
    .type = 8,
};

static const ca_py_layout_t ca_py_layout_310 = {
    .places = CA_PY_ONE_CFRAME,
    .lines = CA_PY_LINES_310,
    .instruction_is_index = true,
    .instruction_unit = 2,
    .code_mask = UINTPTR_MAX,
    .instruction_mask = UINT32_MAX,
    .state = {.interpreter = 16, .thread = 176, .frame = 24, .cframe = 48},
    .cframe = {.previous = 8},
    .frame = {.code = 32, .previous = 24, .instruction = 96},
    .code =
        {.file = 104, .name = 112, .first_line = 40, .lines = 120, .bytecode = 48, .called = 112},
    .str = {.length = 16, .state = 32, .ascii = 48, .compact = 72},
    .bytes = {.length = 16, .data = 32},
    .type = 8,
};

static const ca_py_layout_t ca_py_layout_311 = {
    .places = CA_PY_RUN_CFRAME,
    .lines = CA_PY_LOCATIONS,
    .instruction_unit = 2,
    .code_mask = UINTPTR_MAX,
    .instruction_mask = UINT64_MAX,
    .state = {.interpreter = 16, .thread = 152, .cframe = 56},
    .cframe = {.frame = 8, .previous = 16},
    .frame = {.code = 32, .previous = 48, .instruction = 56, .owner = 68},
    .code = {.file = 112,
             .name = 120,
             .qualname = 128,
             .first_line = 72,
             .lines = 136,
             .bytecode = 184,
             .called = 128},
    .str = {.length = 16, .state = 32, .ascii = 48, .compact = 72},
    .bytes = {.length = 16, .data = 32},
    .type = 8,
};

static const ca_py_layout_t ca_py_layout_312 = {
    .places = CA_PY_ENTRY_FRAME,
    .lines = CA_PY_LOCATIONS,
    .instruction_unit = 2,
    .code_mask = UINTPTR_MAX,
    .instruction_mask = UINT64_MAX,
    .state = {.interpreter = 16, .thread = 136, .cframe = 56},
    .cframe = {.frame = 0, .previous = 8},
    .frame = {.code = 0, .previous = 8, .instruction = 56, .owner = 70},
    .code = {.file = 112,
             .name = 120,
             .qualname = 128,
             .first_line = 68,
             .lines = 136,
             .bytecode = 192,
             .version = 92,
             .called = 128},
    .str = {.length = 16, .state = 32, .ascii = 40, .compact = 56},
    .bytes = {.length = 16, .data = 32},
    .type = 8,
    .number = 8,
};

#endif
