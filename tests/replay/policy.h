/* What serves a trace, and the figures of doing so. */
#ifndef REPLAY_POLICY_H
#define REPLAY_POLICY_H

#include "tests/replay/trace.h"

#define PASSES_MOST 16
#define STREAMS_MOST 64

typedef enum {
    POLICY_CACHEALLOC, /* the shim, on the simulated CUDA */
    POLICY_PYTORCH,    /* a model of PyTorch's block pool: pytorch.c */
    POLICY_DRIVER,     /* the simulated CUDA alone */
    POLICIES,
} policy_t;

typedef struct how {
    unsigned passes;
    unsigned threads; /* 1: in trace order */
    unsigned streams; /* of each thread, for stream-ordered calls; 0: plain ones */
    bool busy;        /* kernels are in flight all the time, and a free waits for them */
    unsigned live;    /* KiB, at most, sizes scaled; 0: sizes as they are */
    size_t memory;    /* bytes of the device; 0: plenty */
} how_t;

/* Of one pass. */
typedef struct pass {
    size_t live_peak, upstream_peak; /* bytes; the second over this pass and those before */
    uint64_t upstream_calls;
    uint64_t hits;
    uint64_t waits; /* for memory in flight */
    uint64_t ns;
} pass_t;

typedef struct figures {
    uint64_t operations; /* of each pass */
    uint32_t allocations;
    unsigned passes;
    bool counted; /* somebody told what went upstream */
    pass_t pass[PASSES_MOST];
} figures_t;

/* Both give 0, or -1 with a message on stderr. */
int replay_cuda(const trace_t *trace, const how_t *how, figures_t *figures);
int replay_pytorch(const trace_t *trace, const how_t *how, figures_t *figures);

uint64_t replay_now_ns(void);

#endif
