#include "registry/python/walk.h"

#define STATE_BYTES_MOST 4096u
#define ENTRY_OWNER 3u /* and above: the frame is no function's */
#define ENDS_RUN 1u    /* the bit of is_entry, a bool */
#define OWNERS 5u      /* that there are */

/* The variable on the C stack that the innermost frames run by; 0 where there is none. */
static bool first_cframe(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t state,
                         uint64_t *cframe)
{
    *cframe = 0;
    return !layout->state.cframe || ca_py_get(reader, state + layout->state.cframe, cframe);
}

static bool first_frame(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t state,
                        uint64_t cframe, uint64_t *frame)
{
    *frame = 0;
    if (layout->state.frame)
        return ca_py_get(reader, state + layout->state.frame, frame);
    return cframe == 0 || ca_py_get(reader, cframe + layout->cframe.frame, frame);
}

static void end_run(ca_py_walk_t *walk, uintptr_t place)
{
    walk->runs[walk->run_count++] = (ca_py_run_t){place, walk->frame_count};
}

static inline bool next_cframe(const ca_py_layout_t *layout, ca_py_reader_t *reader,
                               uint64_t *cframe)
{
    return *cframe == 0 || ca_py_get(reader, *cframe + layout->cframe.previous, cframe);
}

/* Whether a run ends with the frame, or is one; and how it goes on. */
static inline __attribute__((always_inline)) bool note_run(const ca_py_layout_t *layout,
                                                           ca_py_reader_t *reader,
                                                           const ca_py_link_t *link,
                                                           ca_py_walk_t *walk, uint64_t *cframe)
{
    uint8_t last = ENDS_RUN;
    switch (layout->places) {
    case CA_PY_RUN_CFRAME:
        if (!ca_py_get_byte(reader, link->frame + layout->frame.owner, &last) || last > ENDS_RUN)
            return false;
        if (last != ENDS_RUN)
            return true;
        end_run(walk, *cframe);
        return next_cframe(layout, reader, cframe);
    case CA_PY_ONE_CFRAME:
        end_run(walk, *cframe);
        return next_cframe(layout, reader, cframe);
    case CA_PY_ENTRY_FRAME:
        if (link->is_entry)
            end_run(walk, link->frame);
        return true;
    default:
        return true;
    }
}

static inline __attribute__((always_inline)) bool
read_link(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t frame, ca_py_link_t *link)
{
    uint64_t code, instruction;
    uint8_t owner = 0;
    if (frame % sizeof(uint64_t) != 0 || !ca_py_get(reader, frame + layout->frame.code, &code) ||
        !ca_py_get(reader, frame + layout->frame.instruction, &instruction))
        return false;
    if (layout->places == CA_PY_ENTRY_FRAME &&
        (!ca_py_get_byte(reader, frame + layout->frame.owner, &owner) || owner >= OWNERS))
        return false;
    *link = (ca_py_link_t){
        .frame = frame,
        .code = (uintptr_t)code & layout->code_mask,
        .instruction = instruction & layout->instruction_mask,
        .is_entry = owner >= ENTRY_OWNER,
    };
    return true;
}

/* Whether the end of the chain is one: of entries the outermost, of variables that of the state,
 * which no function has. */
static bool ends_well(const ca_py_layout_t *layout, uintptr_t state, const ca_py_walk_t *walk,
                      uint64_t cframe)
{
    if (walk->link_count == 0)
        return true;
    if (layout->places == CA_PY_ENTRY_FRAME)
        return walk->links[walk->link_count - 1].is_entry;
    return layout->places == CA_PY_NO_PLACE || cframe - state < STATE_BYTES_MOST;
}

static inline __attribute__((always_inline)) bool walk_by(const ca_py_layout_t *layout,
                                                          ca_py_reader_t *reader, uintptr_t state,
                                                          unsigned most, ca_py_walk_t *walk)
{
    uint64_t frame, cframe;
    walk->link_count = walk->frame_count = walk->run_count = 0;
    walk->whole = false;
    if (!first_cframe(layout, reader, state, &cframe) ||
        !first_frame(layout, reader, state, cframe, &frame))
        return false;
    while (frame != 0 && walk->frame_count < most && walk->link_count < CA_PY_LINKS - 1) {
        ca_py_link_t *link = &walk->links[walk->link_count];
        if (reader->stop && reader->stop())
            return false;
        if (!read_link(layout, reader, frame, link))
            return false;
        walk->link_count++;
        walk->frame_count += !link->is_entry;
        if (!note_run(layout, reader, link, walk, &cframe) ||
            !ca_py_get(reader, frame + layout->frame.previous, &frame))
            return false;
    }
    walk->whole = frame == 0;
    if (walk->whole && !ends_well(layout, state, walk, cframe))
        return false;
    if (walk->run_count == 0 || walk->runs[walk->run_count - 1].end < walk->frame_count) {
        /* Cut short: the run goes on, and its end is not looked for. */
        end_run(walk, layout->places == CA_PY_RUN_CFRAME ? (uintptr_t)cframe : 0);
    }
    return true;
}

bool ca_py_walk(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t state,
                unsigned most, ca_py_walk_t *walk)
{
    if (reader->guarded)
        return walk_by(layout, reader, state, most, walk);
    ca_py_reader_t plainly = {.stop = reader->stop}; /* all that is left out below is the guard */
    return walk_by(layout, &plainly, state, most, walk);
}
