/* Devices at the start, resets, and contexts made with the driver's API. What is done in such a
 * context is its own little program: buffers are taken, written on its default stream, looked at,
 * freed from it or from another context, or left to die with it. */
#include "execute.h"
#include <stdio.h>
#include <string.h>

static CUdeviceptr address(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

void start_devices(void)
{
    const program_t *p = the_run.p;
    const step_t none = {.op = NOBODY, .buffer = NOBODY};
    for (int d = 0; d < p->devices; d++) {
        MUST(&none, cudaSetDevice(d));
        MUST(&none, cudaFree(NULL));
        start_kernels(d);
    }
    for (int d = 0; d < p->devices && p->peers; d++) {
        MUST(&none, cudaSetDevice(d));
        MUST(&none, cudaDeviceEnablePeerAccess(1 - d, 0));
    }
    MUST(&none, cudaSetDevice(0));
}

void reset_step(const step_t *s)
{
    for (int d = 0; d < the_run.p->devices; d++) {
        MUST(s, cudaSetDevice(d));
        MUST(s, cudaDeviceSynchronize());
        end_kernels(s, d);
    }
    for (int d = 0; d < the_run.p->devices; d++) {
        MUST(s, cudaSetDevice(d));
        MUST(s, cudaDeviceReset());
    }
    start_devices();
}

static void look(step_t *s, const driver_context_t *c, int i)
{
    unsigned char ends[64];
    size_t half = sizeof(ends) / 2;
    MUST(s, cuMemcpyDtoH(ends, c->buffer[i], half));
    MUST(s, cuMemcpyDtoH(ends + half, c->buffer[i] + c->bytes[i] - half, half));
    for (size_t k = 0; k < sizeof(ends); k++)
        if (ends[k] != c->value[i])
            fail_at(s, "wrong byte: buffer %d of the context, 0x%02x, must be 0x%02x", i, ends[k],
                    c->value[i]);
    s->result = mix64(s->result + ends[0]);
}

static void use(step_t *s, driver_context_t *c)
{
    uint64_t r = s->value;
    CUcontext mine;
    MUST(s, cuCtxPushCurrent(c->handle));
    for (int times = 0; times < 8; times++) {
        int i = (int)below(&r, CTX_BUFFERS);
        if (!c->buffer[i]) {
            c->bytes[i] = 256u + below(&r, 1u << (8 + below(&r, 8)));
            MUST(s, cuMemAlloc(&c->buffer[i], c->bytes[i]));
        } else if (below(&r, 3) == 0) {
            bool elsewhere = below(&r, 2);
            look(s, c, i);
            MUST(s, cuMemsetD8Async(c->buffer[i], 0, c->bytes[i], NULL));
            if (elsewhere)
                MUST(s, cuCtxPopCurrent(&mine));
            if (below(&r, 2))
                MUST(s, cuMemFree(c->buffer[i]));
            else
                MUST(s, cudaFree((void *)(uintptr_t)c->buffer[i]));
            if (elsewhere)
                MUST(s, cuCtxPushCurrent(c->handle));
            c->buffer[i] = address(NULL);
            continue;
        }
        c->value[i] = (unsigned char)below(&r, 256);
        MUST(s, cuMemsetD8Async(c->buffer[i], c->value[i], c->bytes[i], NULL));
    }
    MUST(s, cuCtxPopCurrent(&mine));
}

void context_step(step_t *s)
{
    driver_context_t *c = &the_run.contexts[s->buffer];
    CUcontext mine;
    CUdevice device;
    switch (s->what) {
    case DO_CTX_NEW:
        MUST(s, cuDeviceGet(&device, s->device));
        MUST(s, cuCtxCreate(&c->handle, NULL, 0, device));
        MUST(s, cuCtxPopCurrent(&mine));
        memset(c->buffer, 0, sizeof(c->buffer));
        break;
    case DO_CTX_USE:
        use(s, c);
        break;
    default: /* DO_CTX_END */
        MUST(s, cuCtxPushCurrent(c->handle));
        MUST(s, cuCtxSynchronize());
        MUST(s, cuCtxPopCurrent(&mine));
        MUST(s, cuCtxDestroy(c->handle));
    }
}
