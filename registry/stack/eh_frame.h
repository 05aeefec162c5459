/* How to unwind one frame of x86-64 code, as the compiler wrote it down in .eh_frame (Linux
 * Standard Base 5.0, "Exception Frames"; DWARF 4, 6.4; System V psABI for x86-64, 3.7).
 *
 * Only what compilers make of C, C++ and the like at a call: a frame address that is the stack or
 * the frame pointer and a number, or lies in a word beside the frame pointer, as where a function
 * aligns its stack; and where a signal handler returns to, which is left to the kernel's frame.
 * A description of another form, or one that is damaged, ends the stack. Nothing that is read here
 * is trusted: any byte of it may be wrong. */
#ifndef CA_REGISTRY_STACK_EH_FRAME_H
#define CA_REGISTRY_STACK_EH_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The canonical frame address is what the stack pointer will be after the return; the return
 * address lies 8 bytes below. */
enum { CA_CFA_OF_SP, CA_CFA_OF_FP, CA_CFA_IN_WORD };   /* the last: in the word at fp + offset */
enum { CA_FP_SAME, CA_FP_BELOW_CFA, CA_FP_BESIDE_FP }; /* where the caller's frame pointer is */

typedef struct ca_frame_rule {
    bool outermost; /* there is no caller, or no way to it is known; the rest is not set */
    bool signal;    /* a signal handler returns to it; likewise */
    uint8_t cfa, fp;
    int32_t cfa_offset, fp_offset; /* bytes, from what it is named after */
} ca_frame_rule_t;

/* Where an object's tables may be read. */
typedef struct ca_unwind_tables {
    const uint8_t *header; /* .eh_frame_hdr, or NULL */
    uintptr_t base;        /* what the addresses of `parts` begin at */
    const void *parts;     /* program headers */
    size_t count;          /* of them; 0 where they are not known */
    uintptr_t begin, end;  /* then all lies in here, and the kernel says what can be read */
} ca_unwind_tables_t;

/* The rule for the instruction at `address` of a loaded object that stays loaded meanwhile. False
 * where no table describes it. Takes no lock from glibc 2.35 on, before that the loader's. */
bool ca_frame_rule(uintptr_t address, ca_frame_rule_t *rule);

/* The same by an object's tables. */
bool ca_frame_rule_of(const ca_unwind_tables_t *tables, uintptr_t address, ca_frame_rule_t *rule);

#endif
