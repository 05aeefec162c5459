/* Sets and copies by kernels, where the device runs some. A kernel writes, holds the memory for a
 * while and looks whether all is still as it wrote it: memory that was given to two shows even
 * where nobody reads it later. The driver compiles them from PTX; where it cannot, and on the
 * simulator, whose kernels do nothing, the calls of execute.c do the work. The simulator is asked
 * to launch them all the same, since that is a call like others. */
#include "execute.h"
#include <stdatomic.h>
#include <string.h>

enum { BLOCK = 256, GRID_MOST = 16, PROBE = 0x5a };

/* Each thread has the bytes %first, %first + %step, ... below %end. */
#define EACH_BYTE                                                                                  \
    " mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mov.u32 %z, %tid.x;\n"                            \
    " mad.lo.u32 %x, %x, %y, %z; cvt.u64.u32 %first, %x;\n"                                        \
    " mov.u32 %z, %nctaid.x; mul.lo.u32 %y, %y, %z; cvt.u64.u32 %step, %y;\n"
#define REGISTERS                                                                                  \
    " .reg .pred %p; .reg .u32 %v, %x, %y, %z;\n"                                                  \
    " .reg .u64 %to, %from, %end, %hold, %first, %step, %i, %a, %b;\n"
#define HOLD                                                                                       \
    " mov.u64 %b, %globaltimer;\n"                                                                 \
    "HOLD:\n"                                                                                      \
    " mov.u64 %a, %globaltimer; sub.u64 %a, %a, %b;\n"                                             \
    " setp.lt.u64 %p, %a, %hold; @%p bra HOLD;\n"

static const char image[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .global .align 4 .u32 wrong = 0;\n"
    ".visible .global .align 4 .u32 probe = 0;\n"
    ".visible .entry fill(.param .u64 to, .param .u64 bytes,"
    " .param .u64 value, .param .u64 hold_ns)\n"
    "{\n" REGISTERS " ld.param.u64 %to, [to]; ld.param.u64 %end, [bytes];\n"
    " ld.param.u64 %a, [value]; cvt.u32.u64 %v, %a;\n"
    " ld.param.u64 %hold, [hold_ns];\n" EACH_BYTE " mov.u64 %i, %first;\n"
    "WRITE:\n"
    " setp.ge.u64 %p, %i, %end; @%p bra WRITTEN;\n"
    " add.u64 %a, %to, %i; st.volatile.global.u8 [%a], %v;\n"
    " add.u64 %i, %i, %step; bra WRITE;\n"
    "WRITTEN:\n" HOLD " mov.u64 %i, %first;\n"
    "LOOK:\n"
    " setp.ge.u64 %p, %i, %end; @%p bra DONE;\n"
    " add.u64 %a, %to, %i; ld.volatile.global.u8 %x, [%a];\n"
    " add.u64 %i, %i, %step;\n"
    " setp.eq.u32 %p, %x, %v; @%p bra LOOK;\n"
    " mov.u64 %a, wrong; red.global.add.u32 [%a], 1; bra LOOK;\n"
    "DONE: ret;\n"
    "}\n"
    ".visible .entry copy(.param .u64 to, .param .u64 bytes,"
    " .param .u64 from, .param .u64 hold_ns)\n"
    "{\n" REGISTERS " ld.param.u64 %to, [to]; ld.param.u64 %end, [bytes];\n"
    " ld.param.u64 %from, [from]; ld.param.u64 %hold, [hold_ns];\n" EACH_BYTE
    " mov.u64 %i, %first;\n"
    "WRITE:\n"
    " setp.ge.u64 %p, %i, %end; @%p bra WRITTEN;\n"
    " add.u64 %a, %from, %i; ld.volatile.global.u8 %x, [%a];\n"
    " add.u64 %a, %to, %i; st.volatile.global.u8 [%a], %x;\n"
    " add.u64 %i, %i, %step; bra WRITE;\n"
    "WRITTEN:\n" HOLD " mov.u64 %i, %first;\n"
    "LOOK:\n"
    " setp.ge.u64 %p, %i, %end; @%p bra DONE;\n"
    " add.u64 %a, %from, %i; ld.volatile.global.u8 %x, [%a];\n"
    " add.u64 %a, %to, %i; ld.volatile.global.u8 %v, [%a];\n"
    " add.u64 %i, %i, %step;\n"
    " setp.eq.u32 %p, %x, %v; @%p bra LOOK;\n"
    " mov.u64 %a, wrong; red.global.add.u32 [%a], 1; bra LOOK;\n"
    "DONE: ret;\n"
    "}\n";

/* By device, of its primary context. */
static struct {
    CUfunction fill, copy; /* NULL: the image could not be loaded */
    CUdeviceptr wrong;
    bool real;
} kernels[MAX_DEVICES];
static atomic_int done_by_kernels;

static void launch(const step_t *s, CUfunction kernel, uint64_t to, uint64_t bytes, uint64_t what,
                   uint64_t hold_ns, cudaStream_t stream)
{
    void *arguments[] = {&to, &bytes, &what, &hold_ns};
    uint64_t blocks = (bytes + BLOCK - 1) / BLOCK;
    MUST(s, cuLaunchKernel(kernel, blocks < GRID_MOST ? (unsigned)blocks : GRID_MOST, 1, 1, BLOCK,
                           1, 1, 0, stream, arguments, NULL));
}

void start_kernels(int device)
{
    const step_t none = {.op = NOBODY, .buffer = NOBODY};
    CUmodule module;
    CUdeviceptr probe;
    uint32_t seen = 0;
    memset(&kernels[device], 0, sizeof(kernels[device]));
    if (cuModuleLoadData(&module, image) != CUDA_SUCCESS ||
        cuModuleGetFunction(&kernels[device].fill, module, "fill") != CUDA_SUCCESS ||
        cuModuleGetFunction(&kernels[device].copy, module, "copy") != CUDA_SUCCESS) {
        kernels[device].fill = NULL;
        return;
    }
    if (cuModuleGetGlobal(&kernels[device].wrong, NULL, module, "wrong") != CUDA_SUCCESS ||
        cuModuleGetGlobal(&probe, NULL, module, "probe") != CUDA_SUCCESS)
        return;
    /* Each once, so that none is loaded later, in the middle of a capture. */
    launch(&none, kernels[device].fill, probe, 1, PROBE, 0, NULL);
    launch(&none, kernels[device].copy, probe + 1, 1, probe, 0, NULL);
    MUST(&none, cuMemcpyDtoH(&seen, probe, sizeof(seen)));
    kernels[device].real = seen == (PROBE | PROBE << 8);
}

void end_kernels(const step_t *s, int device)
{
    uint32_t wrong = 0;
    if (!kernels[device].real)
        return;
    MUST(s, cuMemcpyDtoH(&wrong, kernels[device].wrong, sizeof(wrong)));
    if (wrong)
        fail_at(s, "wrong byte: kernels saw %u that another wrote while they had the memory",
                wrong);
}

int kernel_steps(void)
{
    return done_by_kernels;
}

bool done_by_kernel(const step_t *s, void *to, const void *from)
{
    uint64_t r = (uint64_t)s->op + 1;
    int device = s->device;
    if (device == NOBODY || !kernels[device].fill || below(&r, 2))
        return false;
    uint64_t hold_ns = below(&r, 50000);
    launch(s, from ? kernels[device].copy : kernels[device].fill, (uintptr_t)to, s->bytes,
           from ? (uintptr_t)from : s->value & 0xff, hold_ns, the_run.streams[s->stream]);
    if (kernels[device].real)
        done_by_kernels++;
    return kernels[device].real;
}
