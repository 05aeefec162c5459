/* dlsym, interposed. It must end in a jump to the real one, so that the return address stays the
 * caller's: dlsym(RTLD_NEXT, ...) decides by it, and a C wrapper would make other interposers find
 * themselves and recurse. A compiler's tail call depends on -O2, hence assembly.
 *
 *   replacement = ca_dlsym_hook(handle, name, return address);
 *   if (!replacement)
 *       return real dlsym(handle, name);   // by a jump
 *   return replacement == CA_DLSYM_NOTHING ? NULL : replacement;
 *
 * ca_dlsym_hook leaves the real address in ca_dlsym_real. */

#if defined(__x86_64__)
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rdx
    call ca_dlsym_hook
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jnz 1f
    jmp *ca_dlsym_real(%rip)
1:  cmpq $-1, %rax /* CA_DLSYM_NOTHING */
    jne 2f
    xorl %eax, %eax
2:  ret
    .cfi_endproc
    .size dlsym, .-dlsym

#elif defined(__aarch64__)
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov x29, sp
    stp x0, x1, [sp, #16]
    mov x2, x30
    bl ca_dlsym_hook
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x29
    .cfi_restore x30
    cbnz x16, 1f
    adrp x16, ca_dlsym_real
    ldr x16, [x16, :lo12:ca_dlsym_real]
    br x16 /* x16 and x17 alone may enter a function whose pages are guarded by bti */
1:  cmn x16, #1 /* CA_DLSYM_NOTHING */
    csel x0, xzr, x16, eq
    ret
    .cfi_endproc
    .size dlsym, .-dlsym
#else
#error "dlsym stub: only x86-64 and aarch64"
#endif

    .section .note.GNU-stack, "", %progbits
