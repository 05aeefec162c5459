/* CA_UNKNOWN_MOST trampolines of CA_UNKNOWN_BYTES each. The nth one:
 *
 *   real = ca_unknown_called(n);    // with all registers kept that may hold arguments
 *   jump to real
 */
#include "shim/driver/unknown_entry.h"

#if defined(__x86_64__)
    .text
    .balign 16
    .globl ca_unknown_trampolines
    .hidden ca_unknown_trampolines
    .type ca_unknown_trampolines, @function
ca_unknown_trampolines:
    .cfi_startproc
    .set index, 0
    .rept CA_UNKNOWN_MOST
    .balign CA_UNKNOWN_BYTES
    endbr64
    movl $index, %r11d
    jmp 1f
    .set index, index + 1
    .endr
1:  pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    pushq %r8
    .cfi_adjust_cfa_offset 8
    pushq %r9
    .cfi_adjust_cfa_offset 8
    pushq %rax
    .cfi_adjust_cfa_offset 8
    subq $128, %rsp
    .cfi_adjust_cfa_offset 128
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movl %r11d, %edi
    call ca_unknown_called
    movq %rax, %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    .cfi_adjust_cfa_offset -128
    popq %rax
    .cfi_adjust_cfa_offset -8
    popq %r9
    .cfi_adjust_cfa_offset -8
    popq %r8
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%r11
    .cfi_endproc
    .size ca_unknown_trampolines, .-ca_unknown_trampolines

#elif defined(__aarch64__)
    .text
    .balign 16
    .globl ca_unknown_trampolines
    .hidden ca_unknown_trampolines
    .type ca_unknown_trampolines, %function
ca_unknown_trampolines:
    .cfi_startproc
    .set index, 0
    .rept CA_UNKNOWN_MOST
    .balign CA_UNKNOWN_BYTES
    hint #34 /* bti c */
    mov w17, #index
    b 1f
    .set index, index + 1
    .endr
1:  stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80] /* where a large result goes */
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl ca_unknown_called
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_adjust_cfa_offset -224
    .cfi_restore x29
    .cfi_restore x30
    br x16 /* x16 and x17 alone may enter a function whose pages are guarded by bti */
    .cfi_endproc
    .size ca_unknown_trampolines, .-ca_unknown_trampolines
#else
#error "trampolines: only x86-64 and aarch64"
#endif

    .section .note.GNU-stack, "", %progbits
