/* The simulated driver's inside: every type and every cross-file function.
 *
 * Locks, in the order in which they may nest: engine (one for all queues, streams, events and
 * captures) before heap (one per device) before host (registered host memory). No user code runs
 * and no device byte is touched while one of them is held.
 *
 * cuda.h is included with __CUDA_API_VERSION_INTERNAL: then every version and every _ptds/_ptsz
 * twin is declared under its exact link name, and no macro renames anything. */
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#include "graph.h"
#include "race.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if CUDA_VERSION < 13030
typedef void (*CUgraphRecaptureCallback)(void); /* never called */
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode,
                                               CUgraph hGraph,
                                               CUgraphRecaptureCallback callbackFunc,
                                               void *userData);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode,
                                                    CUgraph hGraph,
                                                    CUgraphRecaptureCallback callbackFunc,
                                                    void *userData);
#endif

/* Exported, and bound inside this library: an interposer that exports cuMemAlloc_v2 must not
 * change what our own cuGetProcAddress hands out. */
#define SIM_API __attribute__((visibility("protected")))

enum { SIM_MAX_DEVICES = 16, SIM_MAX_PEERS = SIM_MAX_DEVICES, SIM_STACK_MAX = 256 };
#define SIM_GRANULE ((size_t)512)
#define SIM_PAGE ((size_t)2 << 20)
#define SIM_SMALL_MAX ((size_t)1 << 20) /* larger requests take whole 2 MiB pages */

/* --- entry.c: what every exported function does first ---------------------------------------- */
enum sim_id {
#define SIM_FN(link, base, version, kind) SIM_ID_##link,
#include "api.def"
#undef SIM_FN
    SIM_ID_COUNT
};

typedef struct sim_entry {
    CUcontext ctx;
    uint64_t ctx_id;
} sim_entry_t;

typedef struct sim_pt_stream {
    CUcontext ctx;
    uint64_t ctx_id;
    CUstream stream;
    struct sim_pt_stream *next;
} sim_pt_stream_t;

/* One per host thread, recycled when the thread ends; counters keep their sums. */
typedef struct sim_thread {
    _Atomic uint64_t calls[SIM_ID_COUNT]; /* written by the owner alone, read at exit */
    sim_entry_t stack[SIM_STACK_MAX];
    int depth;
    CUstreamCaptureMode capture_mode;
    sim_pt_stream_t *pt_streams;
    uint64_t serial;     /* unique per host thread */
    enum sim_id current; /* the last function entered */
    sim_clock_t known;   /* racecheck:strict: what this thread knows */
    bool worker;         /* a stream's own thread: runs host functions */
    struct sim_thread *next_all, *next_free;
} sim_thread_t;

extern __thread sim_thread_t *sim_tls __attribute__((tls_model("initial-exec")));

sim_thread_t *sim_thread_attach(void);

static inline sim_thread_t *sim_thread(void)
{
    sim_thread_t *t = sim_tls;
    return t ? t : sim_thread_attach();
}

/* 0 before cuInit, 1 after, 2 in a forked child, 3 while the process ends. */
extern _Atomic int sim_state;
/* Non-zero where a SIMCUDA key (latency, fail, without) or simcuda_fail names the function. */
extern _Atomic uint8_t sim_ruled[SIM_ID_COUNT];

CUresult sim_enter_slow(enum sim_id id, bool needs_init, const void *caller);
CUresult sim_state_error(void);

static inline CUresult sim_enter_from(enum sim_id id, bool needs_init, const void *caller)
{
    sim_thread_t *t = sim_thread();
    uint64_t n = atomic_load_explicit(&t->calls[id], memory_order_relaxed);
    atomic_store_explicit(&t->calls[id], n + 1, memory_order_relaxed);
    t->current = id;
    if (__builtin_expect(atomic_load_explicit(&sim_ruled[id], memory_order_acquire), 0)) {
        return sim_enter_slow(id, needs_init, caller);
    }
    if (needs_init && atomic_load_explicit(&sim_state, memory_order_acquire) != 1) {
        return sim_state_error();
    }
    return CUDA_SUCCESS;
}

static inline CUresult sim_enter(enum sim_id id, bool needs_init)
{
    return sim_enter_from(id, needs_init, NULL);
}

/* When the function returns: SIMCUDA=after, the counterpart of latency. */
void sim_leave_slow(enum sim_id id);
/* The delay of latency: so many times more: the call does something that often. */
void sim_rule_times(enum sim_id id, size_t more);

static inline void sim_leave(const enum sim_id *id)
{
    if (__builtin_expect(atomic_load_explicit(&sim_ruled[*id], memory_order_acquire), 0)) {
        sim_leave_slow(*id);
    }
}

#define SIM_ENTER_IF(name, needs_init)                                                             \
    __attribute__((cleanup(sim_leave))) const enum sim_id sim_entered = SIM_ID_##name;             \
    do {                                                                                           \
        CUresult sim_enter_rc =                                                                    \
            sim_enter_from(sim_entered, needs_init, __builtin_return_address(0));                  \
        if (sim_enter_rc != CUDA_SUCCESS) {                                                        \
            return sim_enter_rc;                                                                   \
        }                                                                                          \
    } while (0)
#define SIM_ENTER(name) SIM_ENTER_IF(name, true)

/* An allocation that fails leaves NULL, before cuInit too: tests/gpu/results/h200-580.json,
 * codes_driver/arguments and first_call. */
#define SIM_EMPTY(out)                                                                             \
    do {                                                                                           \
        if (out) {                                                                                 \
            *(out) = 0;                                                                            \
        }                                                                                          \
    } while (0)

/* A function and its per-thread-default-stream twin: `pt` in CALL says which. FIRST is done before
 * anything else. */
#define SIM_BOTH_FIRST(A, B, PARAMS, FIRST, CALL)                                                  \
    SIM_API CUresult A PARAMS                                                                      \
    {                                                                                              \
        const bool pt = false;                                                                     \
        (void)pt;                                                                                  \
        FIRST;                                                                                     \
        SIM_ENTER(A);                                                                              \
        return CALL;                                                                               \
    }                                                                                              \
    SIM_API CUresult B PARAMS                                                                      \
    {                                                                                              \
        const bool pt = true;                                                                      \
        (void)pt;                                                                                  \
        FIRST;                                                                                     \
        SIM_ENTER(B);                                                                              \
        return CALL;                                                                               \
    }
#define SIM_BOTH(A, B, PARAMS, CALL) SIM_BOTH_FIRST(A, B, PARAMS, (void)0, CALL)

#define SIM_TRY(expr)                                                                              \
    do {                                                                                           \
        CUresult sim_try_rc = (expr);                                                              \
        if (sim_try_rc != CUDA_SUCCESS) {                                                          \
            return sim_try_rc;                                                                     \
        }                                                                                          \
    } while (0)

const char *sim_name(enum sim_id id);
int sim_id_of(const char *link_name); /* -1: no such function */
bool sim_without(enum sim_id id);
/* For options.c, before the first call is counted. */
void sim_rule_latency(enum sim_id id, uint64_t ns, uint64_t each, bool after);
void sim_rule_fail(enum sim_id id, uint64_t nth, int error); /* error -1: the default */
void sim_rule_without(enum sim_id id);
void sim_pause(uint64_t ns);
uint64_t sim_now_ns(void);
/* A handle of `what` that was destroyed is used, by itself or with its context: ends the process.
 */
_Noreturn void sim_dangling(const char *what);

/* --- options.c ---------------------------------------------------------------------------------*/
enum {                        /* vmm:, what the device's virtual memory management cannot do */
       SIM_VMM_NONE = 1,      /* anything */
       SIM_VMM_NO_RDMA = 2,   /* access to memory made for RDMA */
       SIM_VMM_NO_MEMORY = 4, /* cuMemCreate is out of memory */
       SIM_VMM_NO_FD = 8,     /* file descriptors as handles */
       SIM_VMM_CAPTURES = 16, /* not a lack: captures allow it */
};

typedef struct sim_options {
    int devices;
    size_t memory;    /* bytes per device */
    size_t addresses; /* of each device; 0: by its memory */
    size_t host_memory;
    int driver;
    bool ends_in_destructors, reset_heals, free_waits, no_mempools, pitch_by_asker, pitch_by_height;
    bool busy_handles, triggers_early;
    unsigned vmm;       /* SIM_VMM_ */
    size_t reservation; /* the most bytes in one */
    size_t mappings;    /* the most that may be accessed */
    uint64_t kernel_ns, set_ns;
    int arch; /* compute capability x 10 */
    size_t module_bytes, context_bytes;
    bool racecheck, race_strict;
    char stats[4096];
} sim_options_t;

extern sim_options_t sim_opt;
void sim_options_init(void); /* idempotent */
void sim_stats_write(const char *path);

/* --- errors.c ----------------------------------------------------------------------------------*/
const char *sim_error_name(int code);
int sim_error_code(const char *name); /* name or number; -1: unknown */

/* --- runs.c: units handed out in runs, best fit, constant time
 * ------------------------------------*/
enum { SIM_BINS = 4097 };
#define SIM_NIL UINT32_MAX
typedef struct sim_runs {
    uint32_t units, region; /* runs never join across a multiple of region */
    uint32_t *len, *next, *prev;
    uint64_t *live; /* bit: a run in use starts here */
    uint32_t head[SIM_BINS];
    uint64_t map[(SIM_BINS + 63) / 64]; /* bins that are not empty */
    uint64_t top[2];                    /* words of map that are not zero */
} sim_runs_t;

bool sim_runs_init(sim_runs_t *r, uint32_t units, uint32_t region);
/* A fresh run, not joined with its neighbours. */
void sim_runs_give(sim_runs_t *r, uint32_t first, uint32_t n);
uint32_t sim_runs_take(sim_runs_t *r, uint32_t n); /* SIM_NIL: none */
/* Frees the run; answers with the free run that it became part of. */
void sim_runs_free(sim_runs_t *r, uint32_t first, uint32_t *run_first, uint32_t *run_len);
void sim_runs_remove(sim_runs_t *r, uint32_t first);                        /* a free run leaves */
uint32_t sim_runs_find(const sim_runs_t *r, uint32_t unit, uint32_t floor); /* start of live run */
void *sim_map_lazy(size_t bytes, bool readable);

/* --- heap.c: device memory
 * ------------------------------------------------------------------------*/
enum sim_kind { SIM_PLAIN, SIM_ASYNC, SIM_GLOBAL, SIM_ARRAY, SIM_GRAPH, SIM_IMPORT };

typedef struct sim_alloc {
    CUdeviceptr base;
    size_t size; /* as requested */
    uint64_t buffer_id;
    CUcontext ctx;
    CUmemoryPool pool;
    uint8_t kind, sync_memops, freeing, exported;
    sim_graph_memory_t graph;      /* of SIM_GRAPH */
    struct sim_alloc *next, *prev; /* of the same context */
} sim_alloc_t;

typedef struct sim_heap {
    pthread_mutex_t mu;
    bool ready;
    char *va;      /* what programs see: never readable by the host */
    char *backing; /* the bytes, at the same offsets */
    int file;      /* of the backing, where processes share devices; else -1 */
    struct sim_import *imports;
    size_t va_bytes;
    size_t used, peak, requested, peak_requested; /* used: whole pages */
    size_t kept;                                  /* of those, what pools keep */
    size_t graphs;                                /* of those, what nodes of graphs have */
    sim_runs_t pages, granules;
    uint8_t *small;    /* per page: cut into granules */
    uint8_t *dirty;    /* per page: written since it was last clean */
    sim_alloc_t **rec; /* by granule of the base */
    sim_alloc_t *free_rec;
} sim_heap_t;

typedef struct sim_device {
    int ordinal;
    sim_heap_t heap;
    _Atomic uint64_t pending; /* operations submitted and not complete, all contexts */
    _Atomic uint64_t frees;   /* of those, stream-ordered frees */
    CUcontext primary;
    pthread_mutex_t primary_mu;
    int primary_refs;
    unsigned primary_flags;
    bool lost; /* its primary was reset with a sticky error */
    CUmemoryPool default_pool;
    _Atomic(CUmemoryPool) pool;
} sim_device_t;

extern sim_device_t sim_devices[SIM_MAX_DEVICES];

CUresult sim_heap_alloc(sim_device_t *d, CUcontext ctx, size_t bytes, enum sim_kind kind,
                        CUmemoryPool pool, CUdeviceptr *out);
/* INVALID_VALUE unless a live base, marked as being freed by a stream or not, as asked. */
CUresult sim_heap_free(sim_device_t *d, CUdeviceptr p, bool marked);
void sim_heap_drop_context(sim_device_t *d, CUcontext ctx);
/* A pool releases at most so many of the bytes that it keeps. */
void sim_heap_trim(sim_device_t *d, CUmemoryPool pool, size_t bytes);
/* A copy of the record that holds p; false: none. */
bool sim_heap_find(sim_device_t *d, CUdeviceptr p, sim_alloc_t *out);
bool sim_heap_update(sim_device_t *d, CUdeviceptr p, int sync_memops, int freeing);
sim_device_t *sim_device_of(CUdeviceptr p);
CUresult sim_heap_ready(sim_device_t *d); /* from cuInit, once */
/* For ipc.c, under the heap's lock: a record without memory; the allocation that holds p or NULL;
 * what a record with base and size is. */
sim_alloc_t *sim_heap_rec_locked(sim_heap_t *h);
sim_alloc_t *sim_heap_find_locked(sim_heap_t *h, CUdeviceptr p);
void sim_heap_fill_locked(sim_alloc_t *a, CUcontext ctx, enum sim_kind kind, CUmemoryPool pool);
void sim_heap_end_import_locked(sim_heap_t *h, sim_alloc_t *a);
/* --- ipc.c: where the bytes are, and before a record goes */
char *sim_ipc_backing(sim_heap_t *h, size_t bytes);
void sim_ipc_freed_locked(sim_heap_t *h, const sim_alloc_t *a);
/* Whether a free of it is under way, or no free of it is allowed. */
static inline bool sim_alloc_freeing(const sim_alloc_t *a)
{
    return a->kind == SIM_GRAPH ? !a->graph.unfreed : a->freeing;
}
/* Memory of a graph's allocation node, named by address and buffer id: graph.h. */
CUresult sim_heap_graph_reserve(sim_device_t *d, CUcontext ctx, size_t bytes, CUdeviceptr *out,
                                uint64_t *id);
CUresult sim_heap_graph_back(sim_device_t *d, CUdeviceptr p, uint64_t id, bool on);
size_t sim_heap_graph_bytes(sim_device_t *d);
/* False where it cannot: not there, or `change` does not fit its state. */
bool sim_heap_graph_change(sim_device_t *d, CUdeviceptr p, uint64_t id, sim_graph_change_t change);

/* --- vmm_reserve.c: physical memory that is mapped to reserved addresses */
typedef struct sim_vmm {  /* one mapping */
    uint64_t base, range; /* range: the reservation that it is in */
    size_t size, range_size;
    uint64_t buffer_id;
    sim_device_t *dev;
    CUmemAllocationHandleType handle_types;
    bool rdma;
    uint8_t access[SIM_MAX_DEVICES];
} sim_vmm_t;
bool sim_vmm_reserved(CUdeviceptr p); /* mapped or not */
bool sim_vmm_find(CUdeviceptr p, sim_vmm_t *out);
/* The place of p in its device's memory, and how many bytes of one mapping begin there; 0: none. */
size_t sim_vmm_piece(CUdeviceptr p, uint64_t *physical);
/* Where work of that device finds the bytes; NULL: they are not all mapped, or it may not. */
void *sim_vmm_access(const sim_device_t *d, CUdeviceptr ptr, size_t bytes, bool write);
/* An address of device memory, there or not. */
static inline bool sim_is_device(CUdeviceptr p)
{
    return sim_device_of(p) || sim_vmm_reserved(p);
}

/* --- shared.c: other processes on the same devices; nothing without shared:PATH
 * ----------------------------------------------------------------------------------------------*/
bool sim_shared_open(const char *path);
bool sim_shared_on(void);
bool sim_shared_take(int device, size_t bytes); /* false: there is not so much left */
void sim_shared_give(int device, size_t bytes);
size_t sim_shared_others(int device); /* what they use */
void sim_shared_close(void);

/* --- host_mem.c: memory of the host that the driver knows
 * ------------------------------------------*/
enum sim_host_kind { SIM_HOST_ALLOC, SIM_HOST_REGISTERED, SIM_HOST_MANAGED };
typedef struct sim_host {
    char *base;
    size_t size;
    size_t mapped;
    CUcontext ctx;
    uint64_t buffer_id;
    unsigned flags;
    enum sim_host_kind kind;
    bool sync_memops;
} sim_host_t;
bool sim_host_find(const void *p, sim_host_t *out);
bool sim_host_set_sync(const void *p, bool on);
void sim_host_drop_context(CUcontext ctx);
CUresult sim_host_free_managed(CUdeviceptr p); /* INVALID_VALUE: not managed memory */
extern _Atomic uint64_t sim_next_buffer_id;
bool sim_batch_indices(const size_t *at, size_t n, size_t all); /* of the calls of many at once */
void sim_managed_forget(uint64_t base, size_t bytes); /* managed.c: the advice that it had */

/* --- array.c: where the bytes of an array are, row by row; INVALID_HANDLE: no array */
typedef struct sim_array {
    CUdeviceptr at;
    size_t width, height, depth; /* of a row in bytes; 1 where there is none */
    size_t element;              /* bytes */
} sim_array_t;
CUresult sim_array_find(CUarray array, sim_array_t *out);

/* --- context.c
 * ------------------------------------------------------------------------------------*/
typedef struct sim_point { /* "everything of this stream up to here" */
    CUstream stream;
    uint64_t seq;
} sim_point_t;

typedef struct sim_points {
    sim_point_t *at;
    size_t n, cap;
} sim_points_t;

struct CUctx_st {
    _Atomic(sim_device_t *) dev;
    bool primary;
    CUcontext home; /* of a green context: its primary, which has its memory; else NULL */
    struct CUgreenCtx_st *green;
    _Atomic int greens; /* green contexts that this one is the home of */
    _Atomic bool alive;
    _Atomic uint64_t id;
    _Atomic int sticky;
    _Atomic bool
        reported_dead; /* race check: an access to dead memory, the cause of a sticky error */
    _Atomic unsigned flags;
    unsigned api_version;
    _Atomic int attached; /* by cuCtxAttach, beside its creator */
    _Atomic size_t limits[16];
    _Atomic uint32_t peers; /* bit per device */
    /* under the engine lock */
    _Atomic uint64_t pending;
    bool leaving;             /* a green one that was destroyed while its work goes on */
    CUstream streams;         /* all of them, legacy included */
    _Atomic(CUstream) legacy; /* kept until the context is made again */
    CUevent events;
    sim_points_t barrier;  /* cuCtxWaitEvent: streams made later wait for these */
    _Atomic int capturing; /* streams of this context that capture */
    int capturing_blocking;
    sim_clock_t ended, ended_blocking; /* of streams that were destroyed */
    sim_clock_t barrier_clock;         /* that of barrier */
    /* under the device's heap lock */
    sim_alloc_t *allocs;
    struct CUmod_st *modules; /* under the module lock */
    struct CUctx_st *next_free, *next_all;
};

CUresult sim_ctx_current(CUcontext *out);     /* current, alive, no sticky error */
CUresult sim_ctx_current_any(CUcontext *out); /* current and alive */
CUresult sim_ctx_of_free(CUcontext *out);     /* sim_ctx_current, or NULL where none is current */
CUresult sim_ctx_sticky(CUcontext ctx);       /* its sticky error; ctx may be NULL */
CUresult sim_ctx_check(CUcontext ctx);        /* a handle from the program */
void sim_ctx_fail(CUcontext ctx, CUresult error);
/* The end of a context: everything of it goes; work under way is waited for first. */
void sim_ctx_tear_down(CUcontext c);
void sim_ctx_close_locked(CUcontext c); /* its streams and events go, the work of the streams not */
/* Locked. A struct for a new context, then the context itself; and back. */
CUcontext sim_ctx_struct_locked(void);
bool sim_ctx_activate_locked(CUcontext c, sim_device_t *d, unsigned flags);
void sim_ctx_recycle_locked(CUcontext c);
/* A reference to the primary context, made active for it; and back. */
CUresult sim_primary_retain(sim_device_t *d);
CUresult sim_primary_release(sim_device_t *d);
void sim_primary_reset(sim_device_t *d);
CUresult sim_ctx_destroy(CUcontext ctx);
/* --- green.c: contexts with a part of the device and the primary's memory */
static inline CUcontext sim_ctx_home(CUcontext c)
{
    return c->home ? c->home : c;
}
/* Locked: the context itself, and of a primary one its green contexts. */
CUcontext sim_ctx_group_next(CUcontext of, CUcontext last);
#define SIM_EACH_OF(c, ctx) for (CUcontext c = (ctx); c; c = sim_ctx_group_next(ctx, c))
void sim_green_end_all(CUcontext primary); /* it goes, and they with it */
void sim_green_over_locked(CUcontext c);   /* the work of a destroyed one is over */
CUresult sim_device_get(CUdevice dev, sim_device_t **out);
void sim_primary_make(sim_device_t *d); /* from cuInit, once */
void sim_pool_init(sim_device_t *d);
void sim_pool_count(CUmemoryPool pool, size_t bytes, bool more);
/* Bytes in whole unused pages that it has, under the heap's lock; whether it would keep so many
 * more. */
_Atomic uint64_t *sim_pool_kept(CUmemoryPool pool);
bool sim_pool_wants(CUmemoryPool pool, size_t bytes);
void sim_modules_drop_context(CUcontext ctx);

/* --- queue.c: the engine
 * ---------------------------------------------------------------------------*/
enum sim_op_kind {
    SIM_OP_COPY,
    SIM_OP_SET,
    SIM_OP_KERNEL,
    SIM_OP_HOST,
    SIM_OP_CALLBACK,
    SIM_OP_MARK, /* an event's time stamp */
    SIM_OP_WAIT,
    SIM_OP_FREE,
    SIM_OP_VALUE,    /* cuStreamWriteValue */
    SIM_OP_ALLOC,    /* an allocation node: nothing to do, but an access */
    SIM_OP_PREFETCH, /* of managed memory: nothing to do */
    SIM_OP_DISCARD,  /* likewise, and an access */
    SIM_OP_WAIT_VALUE,
};

/* What a host thread knows after a synchronous operation, with racecheck:strict. */
enum sim_learn { SIM_LEARN_ALL, SIM_LEARN_BEFORE, SIM_LEARN_NOTHING };

typedef struct sim_op {
    enum sim_op_kind kind;
    uint64_t seq;
    CUstream stream;
    sim_points_t after;
    sim_clock_t *clock;       /* race check: what a host function knows; NULL for others */
    sim_deferred_t *deferred; /* race check: of what may access memory while it runs */
    enum sim_learn learn;
    struct sim_op *next;
    union {
        struct { /* rows of width bytes; one row: a plain copy */
            uint64_t dst, src;
            size_t dst_pitch, src_pitch, width, rows;
            size_t dst_slice, src_slice, depth; /* bytes between slices */
            bool dst_device, src_device;        /* must be memory that the driver knows */
            sim_device_t *dst_by, *src_by;      /* the accessing device; NULL: the stream's */
            void *staged; /* a pageable source, copied at submission; freed when done */
        } copy;
        struct {
            uint64_t dst;
            size_t pitch, width, rows; /* width in elements */
            unsigned elem, value;
        } set;
        struct {
            uint64_t ns;
            void (*body)(void *); /* simcuda_body */
            void *arg;
            bool programmatic;           /* need not wait for the kernel before it */
            bool triggered, begun, over; /* lets the next begin; began early; and has ended */
        } kernel;
        struct {
            CUhostFn fn;
            CUstreamCallback cb;
            void *data;
        } host;
        struct {
            CUevent event;
            uint64_t gen;
        } mark;
        struct {
            uint64_t addr, value;
            unsigned bytes, compare; /* compare: CUstreamWaitValue_flags */
        } value;
        CUdeviceptr free_ptr;
        struct {
            CUdeviceptr at;
            size_t bytes;
            uint64_t id;
        } alloc;
    } u;
} sim_op_t;

struct CUstream_st {
    uint32_t magic;
    CUstream as;      /* its handle: itself, or with busy_handles one that a busy stream had */
    CUstream lent_to; /* the stream that has this one's handle now */
    bool named;       /* a program has its handle: no default stream */
    bool held;        /* its handle is lent or the next to be: it is not made again before */
    bool parked;      /* it would have been, but for that */
    bool alive, legacy, blocking, has_thread;
    bool orphan; /* its green context was destroyed before it: every call says so */
    CUcontext ctx;
    uint64_t ctx_id, id;
    unsigned flags;
    int priority;
    CUstreamAttrValue attributes[16]; /* by CUstreamAttrID */
    uint64_t submitted;
    _Atomic uint64_t completed;
    sim_op_t *head, *tail;
    pthread_cond_t work, done; /* one was queued; one has completed */
    unsigned waiters;          /* for `done` */
    struct sim_capture *capture;
    sim_frontier_t frontier; /* what its next captured operation depends on */
    uint32_t actor;          /* race check: which component of every clock */
    sim_clock_t clock;
    bool kernel_last; /* race check: the latest operation is a kernel; what it is behind; */
    sim_clock_t kernel_base;
    uint32_t early_actor; /* the half of it before the grid sync */
    uint64_t early_step;
    CUstream next, prev, next_free;
};

/* The device that accesses memory for it, to write or to read. */
static inline const sim_device_t *sim_op_by(const sim_op_t *op, CUstream s, bool write)
{
    sim_device_t *by = op->kind != SIM_OP_COPY ? NULL
                       : write                 ? op->u.copy.dst_by
                                               : op->u.copy.src_by;
    return by ? by : s->ctx->dev;
}

extern pthread_mutex_t sim_engine_mu;
void sim_lock(void);
void sim_unlock(void);

/* Which stream a handle means; makes the per-thread one on first use. */
CUresult sim_stream_resolve(CUstream h, bool pt, CUstream *out);
/* Puts the operation in its place, runs it at once where that is allowed, or hands it to the
 * stream's thread. sync: returns when it is complete, with the context's error. */
CUresult sim_submit(CUstream s, const sim_op_t *op, bool sync);
bool sim_point_done(const sim_point_t *p);
void sim_points_add(sim_points_t *v, CUstream s, uint64_t seq);
void sim_points_prune(sim_points_t *v);
void sim_points_free(sim_points_t *v);
/* Locked: what an operation put on s now would have to wait for, s itself included. */
void sim_points_of_stream(CUstream s, sim_points_t *v);
void sim_points_of_context(CUcontext ctx, sim_points_t *v);
void sim_wait_points_locked(sim_points_t *v);
void sim_wait_context(CUcontext ctx);
extern CUcontext sim_ctx_all;       /* every context that ever was, under the engine lock */
void sim_wait_owner(CUcontext ctx); /* of memory that is freed: all work of it */
/* Locked: all later work of ctx, of streams made later too, waits for v; except's excepted. */
void sim_barrier_locked(CUcontext ctx, const sim_points_t *v, CUstream except);
/* s waits for all work of ctx; all later work of ctx waits for s. Nothing where ctx captures. */
void sim_wait_for_context(CUstream s, CUcontext ctx);
void sim_context_waits_for(CUcontext ctx, CUstream s);
void sim_stream_waits_for(CUstream s, CUstream other); /* as by an event recorded there */
void sim_wait_device_quietly(sim_device_t *d); /* no promise: orders nothing for the race check */
/* Locked: s is the legacy stream and blocking streams hold it: then even a record or a wait has to
 * take a place in it, because later work of blocking streams waits for that. */
bool sim_legacy_held(CUstream s);
/* Locked: queue the operation behind what it must wait for. */
sim_op_t *sim_enqueue_locked(CUstream s, const sim_op_t *op);

/* --- copy.c, set.c, kernel.c: what a node of a graph does, without a stream */
CUresult sim_copy_op(const CUDA_MEMCPY3D *c, sim_op_t *op);
CUresult sim_set_op(const CUDA_MEMSET_NODE_PARAMS *p, sim_op_t *op);
CUresult sim_kernel_op(const CUDA_KERNEL_NODE_PARAMS *p, sim_op_t *op);

/* --- running.c: what test programs do in kernels */
void sim_run_body(sim_op_t *op, void (*fn)(void *), void *arg);
void sim_begin_early_locked(sim_op_t *op); /* if it may: the operation before it has triggered */
void sim_trigger_locked(sim_op_t *op);

/* --- execute.c
 * ----------------------------------------------------------------------------------*/
/* THE one way to device memory: the host address of the bytes, or NULL when [ptr, ptr+bytes) is
 * not wholly inside one live allocation. host_ok: a pageable host address will do as well. */
void *sim_access(const sim_op_t *op, uint64_t ptr, size_t bytes, bool write, bool host_ok);
void sim_execute(sim_op_t *op);

/* --- stream.c, event.c, capture.c
 * -------------------------------------------------------------------*/
CUstream sim_stream_make_locked(CUcontext ctx, unsigned flags, int priority);
CUstream sim_stream_name_locked(CUstream s); /* the handle for the program that made it */
void sim_stream_end_locked(CUstream s);
void sim_stream_recycle_locked(CUstream s);
void sim_stream_orphan_locked(CUstream s);
void sim_thread_drop_streams(sim_thread_t *t);

struct CUevent_st {
    _Atomic uint32_t magic;
    _Atomic bool alive;
    _Atomic bool done; /* nothing left to wait for */
    bool recorded;
    _Atomic(CUcontext) ctx;
    _Atomic uint64_t ctx_id;
    unsigned flags;
    uint64_t gen; /* of the last record: a MARK of an older one is stale */
    _Atomic uint64_t time_ns;
    sim_points_t points;
    uint64_t capture_id;         /* last recorded inside this capture; 0: outside */
    sim_frontier_t frontier;     /* what it stands for there */
    sim_clock_t clock;           /* race check: of the last record */
    struct sim_ipc_place *place; /* of one that other processes have, too; and the last record */
    uint64_t place_number;       /* there that was ours */
    CUevent next, prev, next_free;
};
/* --- ipc_event.c: events that other processes have */
typedef struct sim_ipc_place sim_ipc_place_t;
CUresult sim_event_check(CUevent e);
bool sim_ipc_event_foreign(CUevent e); /* last recorded by another process */
bool sim_ipc_event_over(CUevent e);    /* the last record, by any process */
void sim_ipc_event_recorded_locked(CUevent e, CUstream s);
void sim_ipc_event_wait_locked(CUevent e, CUstream s);
void sim_ipc_event_synchronize(CUevent e);
void sim_event_end_locked(CUevent e, bool with_context);
bool sim_event_done_locked(CUevent e);
CUresult sim_ctx_record(CUcontext ctx, CUevent e);
CUresult sim_ctx_wait(CUcontext ctx, CUevent e);

typedef struct sim_capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    CUstream origin;
    uint64_t thread;
    CUgraph graph;
    bool own_graph;      /* the program's, of cuStreamBeginCaptureToGraph */
    size_t first;        /* how many nodes that had */
    CUgraph recaptures;  /* of cuStreamBeginRecaptureToGraph */
    CUgraphNode *listed; /* for cuStreamGetCaptureInfo */
    struct sim_capture *next;
} sim_capture_t;

/* Locked. An operation reaches a stream: true when a capture swallowed it, with its code. */
bool sim_capture_takes_locked(CUstream s, CUresult *rc);
/* Locked, after that: the operation becomes a node. */
CUresult sim_capture_node_locked(CUstream s, const sim_op_t *op);
bool sim_capture_has(CUstream s);
void sim_capture_join_locked(CUstream s, sim_capture_t *c, const sim_frontier_t *from);
sim_capture_t *sim_capture_by_id_locked(uint64_t id);
bool sim_capture_spoil_locked(uint64_t id); /* false: there is no such capture any more */
CUresult sim_capture_block_context_locked(CUcontext ctx); /* a call that no capture allows */
CUresult sim_capture_block_stream_locked(CUstream s);
CUresult sim_capture_unsafe(void); /* allocation and the like during a capture */
void sim_capture_stream_destroyed_locked(CUstream s);

#endif
