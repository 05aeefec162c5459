/* Names for code addresses, by libdw (elfutils), which is opened with dlopen when the first name is
 * asked for and never looks anything up over the network; without it, the symbol tables of the
 * modules' files, or the loader, give function and module+offset.
 *
 * For reports only: libdw uses the C library's heap, dladdr takes the loader's lock. Not
 * thread-safe; one user at a time. */
#ifndef CA_REGISTRY_NAMES_SYMBOLS_H
#define CA_REGISTRY_NAMES_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "registry/names/frame.h"

typedef struct ca_symbols ca_symbols_t;

/* A frame and what is known of it beside what a report says. */
typedef struct ca_named {
    ca_frame_t frame;
    uintptr_t word;  /* of the stack: what was asked for */
    uint64_t names;  /* hash of module and functions, or of the offset where no name is known */
    uint64_t *rules; /* of suppress.h */
    struct ca_named *next;
    const void *closed; /* the module, where it is not loaded any more */
} ca_named_t;

/* Frames, and all that they point to, lie in `memory` and outlive the close. NULL without memory;
 * ca_symbols_frame then still works, with NULL. Where the calling thread has less than 256 KiB of
 * stack left it is the quick one. Closed by the same thread, which has no floating-point traps
 * until then. */
ca_symbols_t *ca_symbols_open(ca_bump_t *memory);
/* The same without libdw, malloc and loader, as plain_names.h has it. */
ca_symbols_t *ca_symbols_open_quick(ca_bump_t *memory);
/* Why functions and lines are missing, where that is because a file could not be read: "FILE:
 * reason"; else NULL. */
const char *ca_symbols_missing(const ca_symbols_t *symbols);
/* Whether there is no libdw, which would have given files and lines. */
bool ca_symbols_lack_lines(const ca_symbols_t *symbols);
/* Frames that have no function for want of time. */
size_t ca_symbols_from_loader(const ca_symbols_t *symbols);
void ca_symbols_close(ca_symbols_t *symbols);

/* What is known of the call at return address `address` (looked up at address - 1, the call itself)
 * of a stack that was captured in `epoch` (registry/stack/modules.h). Never NULL. Each address is
 * looked up once. Its text is the best of: "load_tile at tiles.c:42", inlined functions before the
 * one they are inlined into ("inner at a.h:7 < outer at b.c:12"; its lines have a newline there,
 * and long names as frame_lines.h cuts them); "function (module+0x1234)"; "module+0x1234", an
 * offset for addr2line; "function (JIT)" of code that was made by the process, "0x7f0000001234"
 * where no module is. A word of a Python frame (registry/python/merge.h) has the function, file and
 * line that it stands for. */
ca_named_t *ca_symbols_frame(ca_symbols_t *symbols, uintptr_t address, uint32_t epoch);

/* Whether two frames are the same function: of one module, by name, inlined ones included; lines
 * may differ. Frames without a name are the same where their addresses are. */
bool ca_symbols_same(const ca_named_t *a, const ca_named_t *b);

#endif
