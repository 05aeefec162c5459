/* A tree of stacks for each start, as in registry/stack/stack_cache.c: a step that differs leads to
 * another stack, which has the same steps up to there. A frame is read only after the word that
 * leads to it agreed, so all that is read is alive.
 *
 * Codes of 3.12 and later have versions. Before that each is compared with its copy, in place as
 * far as possible (ca_py_is_same_in_place), and at the end the name of each file once: what a
 * capture takes is the lines of memory that it reads, and what the processor guesses wrong. */
#include "registry/python/cache.h"

#include <string.h>

#include "base/inline.h"
#include "base/mutation.h"
#include "registry/python/layout_tables.h"
#include "registry/stack/hash.h"

#define PROBES 4u
#define TRIED_MOST 64u /* stacks, for one capture */

static size_t place_of(uintptr_t frame, uint64_t instruction, uint32_t native)
{
    return ca_hash_word(frame ^ instruction << 17 ^ (uint64_t)native << 40) >>
           (64 - CA_PY_HEAD_BITS);
}

static inline ca_py_head_t *head_of(ca_py_cache_t *cache, uintptr_t frame, uint64_t instruction,
                                    uint32_t native, bool make)
{
    size_t place = place_of(frame, instruction, native);
    for (unsigned probe = 0; probe < PROBES; probe++) {
        ca_py_head_t *head = &cache->heads[place ^ probe];
        if (head->frame == frame && head->instruction == instruction && head->native == native)
            return head;
        if (head->native == 0) {
            if (!make)
                return NULL;
            *head = (ca_py_head_t){frame, instruction, native, 0};
            return head;
        }
    }
    return NULL;
}

/* How many codes have died, of a version that counts them. */
static inline uint64_t generation_of(const ca_py_layout_t *layout, uintptr_t interpreter)
{
    return layout->generation ? ca_py_word(interpreter + layout->generation) : 0;
}

static inline const ca_py_step_t *first_step(const ca_py_cache_t *cache, uint32_t entry)
{
    return &cache->units[entry + 1].step;
}

/* --- is it the same one? ---------------------------------------------------------------------- */

CA_INLINE bool is_in_place(const ca_py_layout_t *layout, const ca_py_step_t *step)
{
    return ca_py_is_same_in_place(layout, step->code, step->known);
}

static bool is_same_version(const ca_py_layout_t *layout, const ca_py_step_t *step)
{
    return ((uint64_t)ca_py_half(step->code + layout->code.first_line) << 32 |
            ca_py_half(step->code + layout->code.version)) == step->identity ||
           CA_MUTATED(python_code_unchecked);
}

/* By the proof that the layout's version does without; or a code that is the same, but not in its
 * place, which `moved` tells. */
static __attribute__((noinline)) bool is_same_otherwise(const ca_py_layout_t *layout,
                                                        const ca_py_step_t *step, bool *moved)
{
    if (step->proof == CA_PY_BY_VERSION)
        return is_same_version(layout, step);
    if (step->proof == CA_PY_IN_PLACE && is_in_place(layout, step))
        return true;
    bool same = ca_py_is_same(layout, step->code, step->known);
    *moved |= same && step->proof == CA_PY_IN_PLACE;
    return same;
}

/* `offsets` are those of the layout: constants of a version whose codes have none, or itself. */
CA_INLINE bool is_same_code(const ca_py_layout_t *offsets, const ca_py_layout_t *layout,
                            const ca_py_step_t *step, bool *moved)
{
    bool same = offsets != layout
                    ? step->proof == CA_PY_IN_PLACE && is_in_place(offsets, step)
                    : step->proof == CA_PY_BY_VERSION && is_same_version(layout, step);
    return CA_LIKELY(same) || step->proof == CA_PY_BY_OTHERS ||
           is_same_otherwise(layout, step, moved);
}

/* Of codes that all are in place: then the objects of their files' names are alive. */
CA_INLINE bool are_files_same(const ca_py_layout_t *offsets, const ca_py_entry_t *entry)
{
    const ca_py_string_t *const *files = ((const ca_py_unit_t *)entry)[1 + entry->step_count].files;
    for (unsigned i = 0; i < entry->file_count; i++)
        if (!CA_LIKELY(ca_py_is_same_string(offsets, files[i])))
            return false;
    return true;
}

/* The first of those known in place whose code is another one, file's name and all; NULL where none
 * is. */
static __attribute__((noinline)) const ca_py_step_t *
find_other(const ca_py_layout_t *layout, const ca_py_step_t *step, const ca_py_step_t *end)
{
    for (; step != end; step++)
        if (step->proof == CA_PY_IN_PLACE &&
            !(is_in_place(layout, step) && ca_py_is_same_string(layout, step->known->place.file)) &&
            !ca_py_is_same(layout, step->code, step->known))
            return step;
    return NULL;
}

/* --- finding ---------------------------------------------------------------------------------- */

static inline uint64_t instruction_at(const ca_py_layout_t *layout, uintptr_t frame)
{
    return ca_py_word(frame + layout->frame.instruction) & layout->instruction_mask;
}

/* Of the frame that the step is of, by the step: with the word that led there, which agrees with
 * it, the processor would read one frame after the other, and not all side by side. */
static inline uintptr_t address_of(const ca_py_step_t *step)
{
    uintptr_t frame = step->frame;
    __asm__("" : "+r"(frame)); /* not taken to be that word */
    return frame;
}

/* In line, so that what is known of `offsets` is. */
CA_INLINE uint32_t find_by(const ca_py_layout_t *offsets, ca_py_cache_t *cache,
                           const ca_py_layout_t *layout, uintptr_t state, uintptr_t frame,
                           uint32_t native, int (*stop)(void), bool *stopped)
{
    const ca_py_head_t *head = head_of(cache, frame, instruction_at(offsets, frame), native, false);
    uint32_t at = head ? head->first : 0;
    size_t index = 0;
    uintptr_t interpreter = at && offsets->generation ? ca_py_interpreter(offsets, state) : 0;
    uint64_t generation = at ? generation_of(offsets, interpreter) : 0;
    bool moved = false;
    for (unsigned tried = 0; at != 0 && tried < TRIED_MOST; tried++) {
        ca_py_entry_t *entry = &cache->units[at].entry;
        const ca_py_step_t *steps = first_step(cache, at), *step = steps + index;
        bool alive = offsets->generation && entry->generation == generation &&
                     entry->interpreter == interpreter;
        for (; frame == step->frame && frame != 0; step++) {
            if (stop && !CA_LIKELY(!stop())) {
                *stopped = true;
                return 0;
            }
            const uintptr_t its = address_of(step);
            bool same =
                (((ca_py_word(its + offsets->frame.code) & offsets->code_mask) ^ step->code) |
                 (ca_py_half(its + offsets->frame.instruction) ^ step->instruction)) == 0;
            if (!CA_LIKELY(same && (alive || is_same_code(offsets, layout, step, &moved))))
                break;
            frame = (uintptr_t)ca_py_word(its + offsets->frame.previous);
        }
        if (CA_MUTATED(python_outer_unread))
            return entry->id;
        bool found = step->frame == (frame == 0 ? 0 : CA_PY_CUT);
        if (found && !alive && !CA_LIKELY(!moved && are_files_same(offsets, entry))) {
            const ca_py_step_t *other = find_other(layout, steps, step);
            found = !other;
            step = other ? other : step;
            frame = step->frame;
        }
        if (found) {
            if (offsets->generation) {
                entry->generation = generation;
                entry->interpreter = interpreter;
            }
            return entry->id;
        }
        index = (size_t)(step - steps);
        at = step->other;
    }
    return 0;
}

/* A function for each layout that is a constant, and one for all others. */
#define FIND(name, offsets)                                                                        \
    static __attribute__((noinline)) uint32_t name(                                                \
        ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state, uintptr_t frame,      \
        uint32_t native, int (*stop)(void), bool *stopped)                                         \
    {                                                                                              \
        return find_by(offsets, cache, layout, state, frame, native, stop, stopped);               \
    }

FIND(find_38, &ca_py_layout_38)
FIND(find_310, &ca_py_layout_310)
FIND(find_311, &ca_py_layout_311)
FIND(find_newer, layout)

uint32_t ca_py_cache_find(ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state,
                          uintptr_t frame, uint32_t native, int (*stop)(void), bool *stopped)
{
    switch (layout->minor) {
    case 8:
    case 9:
        return find_38(cache, layout, state, frame, native, stop, stopped);
    case 10:
        return find_310(cache, layout, state, frame, native, stop, stopped);
    case 11:
        return find_311(cache, layout, state, frame, native, stop, stopped);
    default:
        return find_newer(cache, layout, state, frame, native, stop, stopped);
    }
}

/* --- keeping ---------------------------------------------------------------------------------- */

void ca_py_cache_forget(ca_py_cache_t *cache)
{
    memset(cache->heads, 0, sizeof cache->heads);
    cache->used = 1;
}

static ca_py_step_t step_of(const ca_py_link_t *link)
{
    ca_py_step_t step = {
        .frame = link->frame,
        .code = link->code,
        .instruction = (uint32_t)link->instruction,
        .proof = link->is_entry || link->again ? CA_PY_BY_OTHERS
                 : link->identity != 0         ? CA_PY_BY_VERSION
                 : link->is_in_place           ? CA_PY_IN_PLACE
                                               : CA_PY_AS_A_WHOLE,
    };
    if (step.proof == CA_PY_BY_VERSION)
        step.identity = link->identity;
    else if (step.proof != CA_PY_BY_OTHERS)
        step.known = link->copy;
    return step;
}

/* Of all links, and the chain's end. */
static void write_steps(ca_py_unit_t *units, const ca_py_walk_t *walk)
{
    for (uint32_t i = 0; i < walk->link_count; i++)
        units[i].step = step_of(&walk->links[i]);
    units[walk->link_count].step = (ca_py_step_t){.frame = walk->whole ? 0 : CA_PY_CUT};
}

static bool is_same_step(const ca_py_step_t *a, const ca_py_step_t *b)
{
    return a->frame == b->frame && a->code == b->code && a->instruction == b->instruction &&
           a->identity == b->identity;
}

/* Where a stack of these steps belongs in the tree: a step that leads to no other one; NULL where
 * too many are in the way, or it is there. What it has in common with others is proven as there,
 * since one way leads to all of them. */
static ca_py_step_t *step_for(ca_py_cache_t *cache, uint32_t at, ca_py_unit_t *steps)
{
    ca_py_step_t *step = NULL;
    uint32_t index = 0;
    for (unsigned tried = 0; at != 0; tried++) {
        ca_py_unit_t *others = &cache->units[at + 1];
        for (; is_same_step(&others[index].step, &steps[index].step); index++) {
            if (steps[index].step.frame == 0 || steps[index].step.frame == CA_PY_CUT)
                return NULL;
            steps[index].step.proof = others[index].step.proof;
        }
        if (tried == TRIED_MOST)
            return NULL;
        step = &others[index].step;
        at = step->other;
    }
    return step;
}

/* The names of the files of codes that are known in place, each once; how many. */
static uint32_t write_files(const ca_py_string_t **files, const ca_py_unit_t *steps, uint32_t most)
{
    uint32_t count = 0, known;
    for (uint32_t i = 0; i < most; i++) {
        if (steps[i].step.proof != CA_PY_IN_PLACE)
            continue;
        files[count] = steps[i].step.known->place.file;
        for (known = 0; files[known] != files[count]; known++)
            continue;
        count += known == count;
    }
    return count;
}

/* The most units of a stack. */
static uint32_t units_of(uint32_t step_count)
{
    return 1 + step_count + (step_count + CA_PY_UNIT_FILES - 1) / CA_PY_UNIT_FILES;
}

void ca_py_cache_keep(ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state,
                      uint32_t native, const ca_py_walk_t *walk, uint32_t id)
{
    const uint32_t step_count = walk->link_count + 1;
    const ca_py_link_t *first = &walk->links[0];
    if (walk->link_count == 0)
        return;
    if (cache->used == 0 || CA_PY_UNITS - cache->used < units_of(step_count))
        ca_py_cache_forget(cache);
    ca_py_head_t *head = head_of(cache, first->frame, first->instruction, native, true);
    if (!head) {
        ca_py_cache_forget(cache);
        head = head_of(cache, first->frame, first->instruction, native, true);
    }
    ca_py_unit_t *entry = &cache->units[cache->used], *steps = entry + 1;
    write_steps(steps, walk);
    ca_py_step_t *before = step_for(cache, head->first, steps);
    if (!before && head->first != 0)
        return;
    uintptr_t interpreter = ca_py_interpreter(layout, state);
    uint32_t file_count = write_files(steps[step_count].files, steps, step_count);
    entry->entry = (ca_py_entry_t){
        .id = id,
        .step_count = (uint16_t)step_count,
        .file_count = (uint16_t)file_count,
        .generation = generation_of(layout, interpreter),
        .interpreter = interpreter,
    };
    if (before)
        before->other = cache->used & (CA_PY_UNITS - 1);
    else
        head->first = cache->used;
    cache->used += units_of(step_count);
}
