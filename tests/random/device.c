/* Makes the calls that take memory and free it, those of the library's own interface, where it is
 * preloaded, and those on graphs. */
#include "execute.h"
#include <errno.h>
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"

/* --- memory -------------------------------------------------------------------------------- */
static void take_pitched(const step_t *s)
{
    const buffer_t *b = &the_run.p->buffers.at[s->buffer];
    void **pointer = &the_run.buffers[s->buffer];
    size_t *pitch = &the_run.pitch[s->buffer], rows = b->bytes / b->width;
    if (s->value == PITCHED_3D) {
        struct cudaPitchedPtr all;
        struct cudaExtent extent = {b->width, b->slice, rows / b->slice};
        MUST(s, cudaMalloc3D(&all, extent));
        *pointer = all.ptr;
        *pitch = all.pitch;
    } else if (s->value) {
        CUdeviceptr address;
        MUST(s, cuMemAllocPitch(&address, pitch, b->width, rows, 4));
        *pointer = (void *)(uintptr_t)address;
    } else {
        MUST(s, cudaMallocPitch(pointer, pitch, b->width, rows));
    }
}

/* Whether the library's own call stands for CUDA's: for every other buffer, so that memory comes by
 * one and goes by the other too. */
static bool by_library(const step_t *s, int bit)
{
    return cachealloc_alloc && s->buffer & bit;
}

static void *allocated(const step_t *s, cudaStream_t stream)
{
    void *memory = cachealloc_alloc(s->bytes, 0, -1, stream);
    if (!memory)
        fail_at(s, "cachealloc_alloc answered errno %d", errno);
    return memory;
}

static void take(const step_t *s)
{
    void **pointer = &the_run.buffers[s->buffer];
    cudaStream_t stream = s->stream == NOBODY ? NULL : the_run.streams[s->stream];
    CUdeviceptr address = 0;
    bool driver = s->value & BY_DRIVER;
    if (s->what == DO_ALLOC_ASYNC && driver)
        MUST(s, cuMemAllocAsync(&address, s->bytes, stream));
    else if (s->what == DO_ALLOC_ASYNC && by_library(s, 1))
        *pointer = allocated(s, stream);
    else if (s->what == DO_ALLOC_ASYNC)
        MUST(s, cudaMallocAsync(pointer, s->bytes, stream));
    else if (s->what == DO_HOST_ALLOC && driver) /* cudaHostAlloc's flags are the driver's */
        MUST(s, cuMemHostAlloc(pointer, s->bytes, (s->value & HOST_FLAGS) >> 1));
    else if (s->what == DO_HOST_ALLOC && s->value)
        MUST(s, cudaHostAlloc(pointer, s->bytes, (s->value & HOST_FLAGS) >> 1));
    else if (s->what == DO_HOST_ALLOC)
        MUST(s, cudaMallocHost(pointer, s->bytes));
    else if (driver)
        MUST(s, cuMemAlloc(&address, s->bytes));
    else
        MUST(s, cudaMalloc(pointer, s->bytes));
    if (address)
        *pointer = (void *)(uintptr_t)address;
}

/* The name to free now; NULL: there is only one, and a later step frees it. */
static void *name_of(const step_t *s)
{
    void **owner = &the_run.owner[s->buffer], **alias = &the_run.alias[s->buffer];
    if (!(s->value & ONLY_NAME))
        return *owner ? *owner : the_run.buffers[s->buffer];
    void *name = *alias;
    if (name && !(s->value & BY_ALIAS)) {
        name = *owner;
        *owner = *alias;
    }
    *alias = NULL;
    return name;
}

static void give(const step_t *s)
{
    void *name = name_of(s);
    cudaStream_t stream = s->stream == NOBODY ? NULL : the_run.streams[s->stream];
    bool driver = s->value & BY_DRIVER;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)name;
    if (!name || the_run.settings->keep)
        return;
    if (s->what == DO_HOST_FREE && driver)
        MUST(s, cuMemFreeHost(name));
    else if (s->what == DO_HOST_FREE)
        MUST(s, cudaFreeHost(name));
    else if (s->what == DO_FREE_ASYNC && driver)
        MUST(s, cuMemFreeAsync(address, stream));
    else if (s->what == DO_FREE_ASYNC && by_library(s, 2))
        MUST(s, cachealloc_free(name, s->bytes, -1, stream));
    else if (s->what == DO_FREE_ASYNC)
        MUST(s, cudaFreeAsync(name, stream));
    else if (driver)
        MUST(s, cuMemFree(address));
    else
        MUST(s, cudaFree(name));
}

void memory_step(const step_t *s)
{
    if (s->what == DO_ALLOC_PITCHED)
        take_pitched(s);
    else if (s->what == DO_ALLOC || s->what == DO_ALLOC_ASYNC || s->what == DO_HOST_ALLOC)
        take(s);
    else
        give(s);
}

/* --- the library's interface --------------------------------------------------------------- */
void interface_step(const step_t *s)
{
    if (s->what == DO_TRIM && cachealloc_trim) {
        cachealloc_trim();
    } else if (s->what == DO_PIN && cachealloc_set_pin_mode) {
        MUST(s, cachealloc_set_pin_mode((int)s->value));
    } else if (s->what == DO_ALIAS && cachealloc_alias) {
        char *base = the_run.buffers[s->buffer], *name = base + s->offset;
        void **owner = &the_run.owner[s->buffer];
        *owner = *owner ? *owner : base;
        if (name == *owner) /* left over from an earlier pair, of which the base was freed */
            name = base;
        MUST(s, cachealloc_alias(*owner, name));
        the_run.alias[s->buffer] = name;
    }
}

/* --- graphs -------------------------------------------------------------------------------- */
static void end_capture(const step_t *s)
{
    cudaGraph_t graph;
    MUST(s, cudaStreamEndCapture(the_run.streams[s->stream], &graph));
    if (s->value)
        MUST(s, cudaGraphInstantiate(&the_run.graphs[s->buffer], graph, 0));
    MUST(s, cudaGraphDestroy(graph));
}

/* Memory that a graph takes and frees in itself is no allocation of the process. */
static void copy_through(const step_t *s)
{
    cudaStream_t stream = the_run.streams[s->stream];
    char *to = the_run.buffers[s->buffer], *from = the_run.buffers[s->from];
    void *between;
    MUST(s, cudaMallocAsync(&between, s->bytes, stream));
    MUST(s, cudaMemcpyAsync(between, from + s->from_offset, s->bytes, cudaMemcpyDefault, stream));
    MUST(s, cudaMemcpyAsync(to + s->offset, between, s->bytes, cudaMemcpyDefault, stream));
    MUST(s, cudaFreeAsync(between, stream));
}

#define REFUSES(s, expected, call)                                                                 \
    do {                                                                                           \
        int code_ = (int)(call);                                                                   \
        if (code_ != (int)(expected))                                                              \
            fail_at(s, "%s answered %d", #call, code_);                                            \
    } while (0)

/* The call is refused, and the capture is of no use any more. */
static void refused(const step_t *s)
{
    cudaStream_t stream = the_run.streams[s->stream];
    cudaGraph_t graph;
    void *memory;
    MUST(s, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (s->buffer != NOBODY)
        REFUSES(s, cudaErrorStreamCaptureUnsupported, cudaFree(the_run.buffers[s->buffer]));
    else if (s->value)
        REFUSES(s, cudaErrorStreamCaptureUnsupported, cudaMallocHost(&memory, s->bytes));
    else
        REFUSES(s, cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, s->bytes));
    REFUSES(s, cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    (void)cudaGetLastError();
}

void graph_step(const step_t *s)
{
    enum cudaStreamCaptureMode mode = !s->value                 ? cudaStreamCaptureModeRelaxed
                                      : the_run.p->threads == 1 ? cudaStreamCaptureModeGlobal
                                                                : cudaStreamCaptureModeThreadLocal;
    switch (s->what) {
    case DO_GRAPH_BEGIN:
        MUST(s, cudaStreamBeginCapture(the_run.streams[s->stream], mode));
        break;
    case DO_GRAPH_COPY:
        copy_through(s);
        break;
    case DO_GRAPH_END:
        end_capture(s);
        break;
    case DO_GRAPH_LAUNCH:
        MUST(s, cudaGraphLaunch(the_run.graphs[s->buffer], the_run.streams[s->stream]));
        break;
    case DO_REFUSED:
        refused(s);
        break;
    default: /* DO_GRAPH_DESTROY */
        MUST(s, cudaGraphExecDestroy(the_run.graphs[s->buffer]));
    }
}
