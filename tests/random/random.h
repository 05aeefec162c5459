/* Random CUDA programs that are valid by construction.
 *
 * A program is made in two passes. generate.c draws operations: "write buffer 12 on stream 3". Each
 * names what it works on by the operation that made it, so a program stays one when operations are
 * left out. lower.c turns operations into steps, the calls that a host thread makes, one list per
 * thread. It knows what has happened before what (order.c) and adds the events, waits and
 * synchronisations that an operation lacks; an operation whose buffer or stream does not exist is
 * skipped. It also knows what every byte must be (content.c). execute.c makes the calls.
 *
 * So everything is decided before the first call is made: what a run prints depends on neither
 * timing nor allocator.
 *
 * What the order rests on: CUDA's streams, events and synchronisations, and hand-overs between host
 * threads. Never on the wait inside cudaFree, except that work on the freed buffer itself may still
 * be queued (cudaFreeHost is the same); and never on anything before cudaMalloc: a fresh buffer may
 * be written on any stream. A stream-ordered one may after its allocation, and cudaFree of it comes
 * after all of its work, for then cudaFree waits for nothing.
 */
#ifndef CA_TESTS_RANDOM_H
#define CA_TESTS_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_THREADS = 4,
    MAX_DEVICES = 2,
    MAX_LANES = 48, /* streams that exist, or existed and may still be at work */
    STAGES = 8,     /* pinned buffers of a thread, where device memory is brought to be looked at */
    STAGE_BYTES = 4096,
    MAX_EXTENTS = 8,
    NOBODY = -1,
    FIRST_OWN_STREAM = MAX_DEVICES + MAX_DEVICES * MAX_THREADS, /* below: legacy, per-thread */
    CTX_BUFFERS = 6,
};

/* --- random numbers -------------------------------------------------------------------------- */
static inline uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t draw(uint64_t *state)
{
    return mix64(*state += UINT64_C(0x9e3779b97f4a7c15));
}

static inline uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(((draw(state) >> 32) * n) >> 32);
}

/* --- content.c: what a buffer holds ---------------------------------------------------------- */
typedef enum { UNDEFINED, PATTERN, FILL, GRID } content_kind_t;

/* A stretch that ends before byte `end`; byte i is byte i - base of the content. */
typedef struct extent {
    uint64_t end;
    int64_t base;
    content_kind_t kind;
    uint32_t id;           /* PATTERN: which; FILL: the byte; GRID: inside | outside << 8 */
    uint32_t pitch, width; /* GRID */
} extent_t;

typedef struct content {
    int n;
    extent_t at[MAX_EXTENTS];
} content_t;

content_t content_of(extent_t one, uint64_t bytes);
/* Puts `piece` (base relative to `start`) over [start, start + bytes). False, and no change, when
 * that takes too many extents. */
bool content_put(content_t *c, uint64_t start, uint64_t bytes, extent_t piece);
/* The same with what `from` holds at [from_start, ...). */
bool content_copy(content_t *c, uint64_t start, uint64_t bytes, const content_t *from,
                  uint64_t from_start);
bool content_defined(const content_t *c, uint64_t start, uint64_t bytes);
void content_write(const content_t *c, uint64_t start, uint64_t bytes, unsigned char *out);
/* The first byte of [start, start + bytes) that differs from data, or -1; *hash takes the data in.
 */
int64_t content_check(const content_t *c, uint64_t start, uint64_t bytes, const unsigned char *data,
                      uint64_t *hash, int *expected);

/* --- operations ------------------------------------------------------------------------------ */
#define OPERATIONS(X)                                                                              \
    X(ALLOC, "alloc")                                                                              \
    X(FREE, "free")                                                                                \
    X(ALLOC_ASYNC, "alloc-async")                                                                  \
    X(FREE_ASYNC, "free-async")                                                                    \
    X(ALLOC_PITCHED, "alloc-pitched")                                                              \
    X(ALIAS, "alias")                                                                              \
    X(TRIM, "trim")                                                                                \
    X(PIN, "pin")                                                                                  \
    X(UNPIN, "unpin")                                                                              \
    X(HOST_ALLOC, "host-alloc")                                                                    \
    X(HOST_FREE, "host-free")                                                                      \
    X(SET, "set")                                                                                  \
    X(SET_2D, "set2d")                                                                             \
    X(UPLOAD, "upload")                                                                            \
    X(DOWNLOAD, "download")                                                                        \
    X(COPY, "copy")                                                                                \
    X(CHECK, "check")                                                                              \
    X(HOST_CHECK, "host-check")                                                                    \
    X(HOST_FILL, "host-fill")                                                                      \
    X(HOLD, "hold")                                                                                \
    X(OPEN, "open")                                                                                \
    X(PAUSE, "pause")                                                                              \
    X(FORK, "fork")                                                                                \
    X(POLL, "poll")                                                                                \
    X(CAPTURE, "capture")                                                                          \
    X(CAPTURE_END, "capture-end")                                                                  \
    X(LAUNCH, "launch")                                                                            \
    X(GRAPH_END, "graph-end")                                                                      \
    X(REFUSED, "refused")                                                                          \
    X(SYNC, "sync")                                                                                \
    X(EVENT_SYNC, "event-sync")                                                                    \
    X(DEVICE_SYNC, "device-sync")                                                                  \
    X(STREAM_NEW, "stream-new")                                                                    \
    X(STREAM_END, "stream-end")                                                                    \
    X(GIVE, "give")                                                                                \
    X(TAKE, "take")                                                                                \
    X(GIVE_STREAM, "give-stream")                                                                  \
    X(TAKE_STREAM, "take-stream")                                                                  \
    X(CTX_NEW, "ctx-new")                                                                          \
    X(CTX_USE, "ctx-use")                                                                          \
    X(CTX_END, "ctx-end")                                                                          \
    X(RESET, "reset")                                                                              \
    X(END, "end")

typedef enum {
#define X(name, text) OP_##name,
    OPERATIONS(X)
#undef X
        OP_COUNT
} op_kind_t;

typedef struct op {
    op_kind_t kind;
    int thread;
    int a, b;       /* buffers (the allocating operation), contexts, holds, graphs, or NOBODY */
    int stream;     /* legacy of device d: d; per-thread: see per_thread_stream; else made by op */
    int to;         /* thread, or device */
    uint64_t bytes; /* of an allocation */
    uint64_t r;     /* seed of all smaller choices */
} op_t;

/* --- steps ----------------------------------------------------------------------------------- */
typedef enum {
    DO_ALLOC,
    DO_FREE,
    DO_ALLOC_ASYNC,
    DO_FREE_ASYNC,
    DO_ALLOC_PITCHED,
    DO_ALIAS,
    DO_HOST_ALLOC,
    DO_HOST_FREE,
    DO_SET,
    DO_SET_2D,
    DO_COPY, /* async; kind by the buffers */
    DO_COPY_SYNC,
    DO_RECORD,
    DO_WAIT,
    DO_EVENT_SYNC,
    DO_EVENT_QUERY,
    DO_EVENT_END,
    DO_STREAM_SYNC,
    DO_STREAM_QUERY,
    DO_DEVICE_SYNC,
    DO_STREAM_NEW,
    DO_STREAM_END,
    DO_CALL_CHECK, /* host function: looks at a pinned buffer */
    DO_CALL_FILL,  /* host function: writes one */
    DO_CALL_HOLD,  /* host function: waits for DO_OPEN, at most a moment */
    DO_CALL_PAUSE,
    DO_OPEN,
    DO_CHECK, /* the host looks at a pinned buffer */
    DO_FILL,
    DO_POST,
    DO_TAKE,
    DO_CTX_NEW,
    DO_CTX_USE,
    DO_CTX_END,
    DO_TRIM,
    DO_PIN,
    DO_GRAPH_BEGIN,
    DO_GRAPH_COPY, /* through memory of the graph's own */
    DO_GRAPH_END,
    DO_GRAPH_LAUNCH,
    DO_GRAPH_DESTROY,
    DO_REFUSED, /* an allocation (buffer: NOBODY) or a free in a capture that forbids it */
    DO_BARRIER,
    DO_RESET,
} do_t;

typedef struct step {
    do_t what;
    int op; /* the operation it belongs to */
    int thread;
    int device;       /* that must be current, or NOBODY */
    int buffer, from; /* or context, hold, token */
    int stream, event;
    uint64_t offset, from_offset, bytes;
    uint64_t value; /* byte, flags, driver API or not, seed */
    const content_t *content;
    uint64_t result; /* hash of the bytes that a check saw */
    int next;        /* of the same thread, or NOBODY */
} step_t;

/* `value` of frees, of pinned allocations, of DO_GRAPH_BEGIN and DO_GRAPH_END */
enum {
    BY_DRIVER = 1,
    BY_ALIAS = 2,  /* by the second name, where there is one */
    ONLY_NAME = 4, /* takes a name away and nothing else: left out where there is no alias */
    PORTABLE = 2,
    MAPPED = 4,
    WRITE_COMBINED = 8,
    HOST_FLAGS = PORTABLE | MAPPED | WRITE_COMBINED,
    PITCHED_3D = 2,
    INSTANTIATED = 1,
};

/* --- the model: what exists, and what has happened before what ------------------------------- */
/* clock[lane]: the last operation of that stream known to be complete. */
typedef uint32_t clocks_t[MAX_LANES];

typedef struct lane {
    int stream; /* the stream that has it, or NOBODY */
    int device;
    uint32_t submitted;
    clocks_t reached;      /* complete before the next operation of the stream begins */
    clocks_t done;         /* the same at the last operation that moves or waits for data */
    int tail[MAX_THREADS]; /* event recorded by a thread when it gave the stream away */
} lane_t;

typedef struct stream {
    bool alive, blocking, legacy, per_thread;
    bool capturing; /* nothing else may be done with it */
    int owner, device, lane, priority;
    int posted; /* hand-over under way: its token, or NOBODY */
} stream_t;

typedef struct buffer {
    bool alive, host;
    int owner, device, by; /* by: the allocating operation, for messages */
    int posted;
    int handed;           /* event that was handed over with it, or NOBODY */
    bool async;           /* stream-ordered */
    bool alias;           /* it has a second name, which is freed as well */
    uint32_t width;       /* of a row of pitched memory, else 0: content has no gaps between rows */
    uint32_t slice;       /* its rows, or those of one slice where it has more */
    uint64_t bytes, room; /* room: of the device, at most */
    int writer;           /* lane of the last write and its number; NOBODY if none */
    uint32_t written;
    clocks_t read; /* since then */
    content_t content;
} buffer_t;

enum { GRAPH_WORK = 3 };

/* A captured piece of work: sets and copies, in order. */
typedef struct graph {
    bool alive, capturing;
    int owner, stream, n;
    struct {
        int to, from; /* from: NOBODY for a set */
        uint64_t offset, from_offset, bytes;
        uint32_t value;
        bool through; /* memory of the graph's own */
    } work[GRAPH_WORK];
} graph_t;

typedef struct event {
    int device;
    clocks_t reached;
} event_t;

typedef struct context {
    bool alive;
    int owner, device;
} context_t;

typedef struct token {
    clocks_t known;
    int to;
} token_t;

#define TABLE(type)                                                                                \
    struct {                                                                                       \
        type *at;                                                                                  \
        int n, room;                                                                               \
    }

typedef struct program {
    int threads, devices, ops_n;
    bool peers;     /* peer access is enabled between all devices */
    bool peer_free; /* cudaFree while a peer's stream is at work on the buffer */
    bool launches;  /* graphs are instantiated and launched, else captures end for nothing */
    TABLE(step_t) steps;
    int first[MAX_THREADS], last[MAX_THREADS];
    TABLE(stream_t) streams; /* by stream number: FIRST_OWN_STREAM + op */
    TABLE(buffer_t) buffers; /* by op; behind them the stages */
    TABLE(event_t) events;
    TABLE(token_t) tokens;
    TABLE(context_t) contexts; /* by op */
    TABLE(graph_t) graphs;     /* by op */
    lane_t lanes[MAX_LANES];
    clocks_t known[MAX_THREADS];           /* what a host thread knows to be complete */
    int scratch[MAX_THREADS][MAX_DEVICES]; /* event for the moment, or NOBODY */
    int stage_next[MAX_THREADS];
    uint64_t live[MAX_THREADS]; /* bytes */
    int pins[MAX_THREADS];      /* how often a thread has asked for pin mode */
    int current;                /* operation that is being lowered */
    int skipped;
} program_t;

static inline int per_thread_stream(int thread, int device)
{
    return MAX_DEVICES + thread * MAX_DEVICES + device;
}

void *table_room(void *at, int needed, int *room, size_t each);
#define TABLE_ADD(t)                                                                               \
    ((t).at = table_room((t).at, (t).n + 1, &(t).room, sizeof(*(t).at)), &(t).at[(t).n++])

/* --- order.c --------------------------------------------------------------------------------- */
step_t *add_step(program_t *p, int thread, do_t what);
/* Takes in what the next operation on a stream waits for by itself. */
void order_begin(program_t *p, int thread, int stream);
/* Adds what is missing so that an access to the buffer on the stream is ordered. */
void order_access(program_t *p, int thread, int stream, int buffer, bool write, uint64_t *r);
/* The same for a copy from pinned memory, before all else of that copy: it counts on no order that
 * CUDA makes by itself. Of a stream that has nothing to do the driver takes a small one when it is
 * asked for, whatever the legacy stream is about to write there (driver 580: --seed 3 --ops 1000
 * --profile peers --keep, before this rule). */
void order_source(program_t *p, int thread, int stream, int buffer, uint64_t *r);
/* The same for an access by the host thread, or for its end. */
void order_host(program_t *p, int thread, int buffer, bool write, uint64_t *r);
/* One operation is submitted; its accesses are noted afterwards. */
void order_submit(program_t *p, int stream);
/* One that the legacy stream is not known to wait for, and on that stream no barrier for others:
 * a pool's allocations and frees put nothing on the stream. */
void order_submit_quietly(program_t *p, int stream);
void order_note(program_t *p, int stream, int buffer, bool write);
int order_record(program_t *p, int thread, int stream,
                 int event); /* the event; NOBODY: a new one */
void order_wait(program_t *p, int thread, int stream, int event);
void order_sync_stream(program_t *p, int thread, int stream);
void clocks_join(clocks_t into, const clocks_t from);

/* --- lower.c --------------------------------------------------------------------------------- */
void program_init(program_t *p, int ops_n, int threads, int devices);
void lower(program_t *p, int index, const op_t *op);
bool usable(const program_t *p, int thread, int buffer, bool host);
bool stream_usable(const program_t *p, int thread, int stream);
bool stream_reaches(const program_t *p, int stream, int buffer);
step_t *stream_step(program_t *p, int thread, do_t what, int stream, int buffer);
/* An operation that does nothing, so that what the stream waits for by itself has been waited for.
 */
void lower_nothing(program_t *p, int thread, int stream);

/* --- memory.c: allocations, frees, names, pin mode; false: the operation was skipped --------- */
bool lower_memory(program_t *p, int index, const op_t *op, uint64_t *r);
bool lower_free(program_t *p, const op_t *op, uint64_t *r);
void add_stages(program_t *p, int thread);

/* --- graphs.c: captures and launches; false: the operation was skipped ----------------------- */
bool lower_graph(program_t *p, int index, const op_t *op, uint64_t *r);
/* Ends captures that are under way. */
void end_captures(program_t *p);

/* --- data.c: operations that touch bytes; false: the operation was skipped ------------------- */
bool lower_data(program_t *p, int index, const op_t *op, uint64_t *r);
/* Writes all of a buffer that holds nothing yet. */
void define(program_t *p, int thread, int stream, int buffer, uint64_t *r);

/* --- streams.c: streams, waits, hand-overs; false: the operation was skipped ---------------- */
bool lower_order(program_t *p, int index, const op_t *op, uint64_t *r);
/* Gives a stream number a lane; false: none is free. */
bool add_stream(program_t *p, int stream, int thread, int device, bool blocking);

/* --- generate.c ------------------------------------------------------------------------------ */
typedef struct settings {
    uint64_t seed;
    int ops, threads, devices; /* 0: drawn */
    const char *profile;
    int broken; /* operation whose stream waits are left out, or NOBODY */
    bool keep;  /* nothing is freed, so that no free waits for anything */
} settings_t;

/* Fills ops[0..settings->ops) and lowers them into p as it goes. False: no such profile. */
bool generate(program_t *p, op_t *ops, settings_t *settings, int devices_there);

/* --- execute.c, device.c --------------------------------------------------------------------- */
uint64_t execute(program_t *p, const settings_t *settings); /* the digest; ends on a failure */
int kernel_steps(
    void); /* how many sets and copies were done by kernels that looked at them again */

/* --- show.c ---------------------------------------------------------------------------------- */
void show_op(int index, const op_t *op);
void show_step(const step_t *s, const program_t *p, char *out, size_t room);

#endif
