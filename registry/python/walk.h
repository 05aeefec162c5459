/* The Python frames of the calling thread, innermost first, as its interpreter has them linked; no
 * name is looked at. With the interpreter's lock held or not: a thread's own frames do not change
 * while it is in a call of ours. */
#ifndef CA_REGISTRY_PYTHON_WALK_H
#define CA_REGISTRY_PYTHON_WALK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "registry/python/layout.h"
#include "registry/python/reader.h"

#define CA_PY_DEPTH_MOST 128u
#define CA_PY_LINKS (2 * CA_PY_DEPTH_MOST + 2)

/* One step of the chain: a frame of a function, or one that an evaluation of frames began with. */
typedef struct ca_py_link {
    uintptr_t frame, code; /* code: without flags; what an entry has there is not looked at */
    uint64_t instruction;  /* as it stands in the frame */
    uint64_t identity;     /* what no other code has, ever; 0 where no such thing is known */
    uint32_t number;       /* of the code, set by known.h; 0 of an entry */
    bool is_entry;
    bool again;       /* a frame further in has the code too; known.h sets it, and the next two */
    bool is_in_place; /* the copy was made of the objects that the code has */
    const struct ca_py_code *copy; /* of the code; NULL of an entry */
} ca_py_link_t;

/* Frames that one call of the evaluating function runs, up to frame number `end`. */
typedef struct ca_py_run {
    uintptr_t place; /* an address in that function's part of the C stack; 0 where not known */
    unsigned end;
} ca_py_run_t;

typedef struct ca_py_walk {
    unsigned link_count, frame_count, run_count;
    bool whole; /* the chain ends there, not the depth */
    ca_py_link_t links[CA_PY_LINKS];
    ca_py_run_t runs[CA_PY_LINKS];
} ca_py_walk_t;

/* Whether the state is this thread's, as far as it says itself: one that another thread deleted is
 * the thread's for the interpreter still, but is memory that may be anything now. To be asked
 * before any word of it leads elsewhere. */
static inline bool ca_py_is_state_own(const ca_py_layout_t *layout, uintptr_t state)
{
    return ca_py_word(state + layout->state.thread) == (uint64_t)pthread_self();
}

static inline uintptr_t ca_py_interpreter(const ca_py_layout_t *layout, uintptr_t state)
{
    return (uintptr_t)ca_py_word(state + layout->state.interpreter);
}

/* The innermost frame; 0 for none. */
static inline uintptr_t ca_py_first_frame(const ca_py_layout_t *layout, uintptr_t state)
{
    if (layout->state.frame)
        return ca_py_word(state + layout->state.frame);
    uintptr_t cframe = ca_py_word(state + layout->state.cframe);
    return cframe ? ca_py_word(cframe + layout->cframe.frame) : 0;
}

/* At most `most` frames of functions. False where something there cannot be a frame. */
bool ca_py_walk(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t state,
                unsigned most, ca_py_walk_t *walk);

#endif
