/* How to unwind one frame of x86-64 code, as the compiler wrote it down in .eh_frame (Linux
 * Standard Base 5.0, "Exception Frames"; DWARF 4, 6.4; System V psABI for x86-64, 3.7).
 *
 * Only what compilers make of C, C++ and the like at a call: a frame address that is the stack or
 * the frame pointer and a number, or lies in a word beside the frame pointer, as where a function
 * aligns its stack; and where a signal handler returns to, which is left to the kernel's frame.
 * Everything else (code made at run time, other expressions) is said to be unknown. */
#ifndef CA_REGISTRY_EH_FRAME_H
#define CA_REGISTRY_EH_FRAME_H

#include <stdbool.h>
#include <stdint.h>

/* The canonical frame address is what the stack pointer will be after the return; the return
 * address lies 8 bytes below. */
enum { CA_CFA_OF_SP, CA_CFA_OF_FP, CA_CFA_IN_WORD };   /* the last: in the word at fp + offset */
enum { CA_FP_SAME, CA_FP_BELOW_CFA, CA_FP_BESIDE_FP }; /* where the caller's frame pointer is */

typedef struct ca_frame_rule {
    bool outermost; /* there is no caller, or who strips objects left no way to it; the rest is not
                     * set */
    bool signal;    /* a signal handler returns to it; likewise */
    uint8_t cfa, fp;
    int32_t cfa_offset, fp_offset; /* bytes, from what it is named after */
} ca_frame_rule_t;

/* The rule for the instruction at `address` of a loaded object that stays loaded meanwhile. False
 * where it is not known. Takes no lock from glibc 2.35 on, before that the loader's. */
bool ca_frame_rule(uintptr_t address, ca_frame_rule_t *rule);

#endif
