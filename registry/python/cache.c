/* A tree of stacks for each start, as in registry/stack/stack_cache.c: a step that differs leads to
 * another stack, which has the same steps up to there. A frame is read only after the word that
 * leads to it agreed, so all that is read is alive. */
#include "registry/python/cache.h"

#include <string.h>

#include "base/mutation.h"
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

static inline uintptr_t interpreter_of(const ca_py_layout_t *layout, uintptr_t state)
{
    return (uintptr_t)ca_py_word(state + layout->state.interpreter);
}

/* How many codes have died, of a version that counts them. */
static inline uint64_t generation_of(const ca_py_layout_t *layout, uintptr_t interpreter)
{
    return layout->generation ? ca_py_word(interpreter + layout->generation) : 0;
}

/* `in_place`: all before it were found so, whose files' names are as they were. */
static inline bool is_same_code(const ca_py_layout_t *layout, const ca_py_step_t *step,
                                bool *in_place)
{
    if (step->identity != 0)
        return ((uint64_t)ca_py_half(step->code + layout->code.first_line) << 32 |
                ca_py_half(step->code + layout->code.version)) == step->identity ||
               CA_MUTATED(python_code_unchecked);
    if (!step->known ||
        ca_py_is_same_in_place(layout, step->code, step->known, !step->file_again || !*in_place))
        return true;
    *in_place = false;
    return ca_py_is_same(layout, step->code, step->known);
}

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

uint32_t ca_py_cache_find(ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state,
                          uintptr_t frame, uint32_t native, int (*stop)(void), bool *stopped)
{
    const ca_py_head_t *head = head_of(cache, frame, instruction_at(layout, frame), native, false);
    uint32_t at = head ? head->first : 0, index = 0;
    uintptr_t interpreter = at ? interpreter_of(layout, state) : 0;
    uint64_t generation = at ? generation_of(layout, interpreter) : 0;
    /* In registers: what a store might change is read again. */
    const uint32_t code = layout->frame.code, instruction = layout->frame.instruction;
    const uint32_t previous = layout->frame.previous;
    const uintptr_t code_mask = layout->code_mask;
    const uint64_t instruction_mask = layout->instruction_mask;
    bool in_place = true;
    for (unsigned tried = 0; at != 0 && tried < TRIED_MOST; tried++) {
        ca_py_entry_t *entry = &cache->units[at].entry;
        const ca_py_step_t *step = &cache->units[at + 1].step + index;
        const ca_py_step_t *end = &cache->units[at + 1].step + entry->count;
        bool alive = layout->generation && entry->generation == generation &&
                     entry->interpreter == interpreter;
        for (; step != end; step++) {
            if (frame != step->frame)
                break;
            if (frame == 0)
                return entry->id;
            if (stop && stop()) {
                *stopped = true;
                return 0;
            }
            const uintptr_t its = address_of(step);
            if ((((ca_py_word(its + code) & code_mask) ^ step->code) |
                 ((ca_py_word(its + instruction) & instruction_mask) ^ step->instruction)) != 0 ||
                (!alive && !is_same_code(layout, step, &in_place)))
                break;
            frame = (uintptr_t)ca_py_word(its + previous);
        }
        if (step == end || CA_MUTATED(python_outer_unread)) {
            entry->generation = generation;
            entry->interpreter = interpreter;
            return entry->id;
        }
        index = (uint32_t)(step - &cache->units[at + 1].step);
        at = step->other;
    }
    return 0;
}

void ca_py_cache_forget(ca_py_cache_t *cache)
{
    memset(cache->heads, 0, sizeof cache->heads);
    cache->used = 1;
}

/* A code that a step before has is the same as long as that one is. */
static inline bool is_step_of(const ca_py_step_t *step, const ca_py_link_t *link)
{
    return step->frame == link->frame && step->code == link->code &&
           step->instruction == link->instruction && step->number == link->number &&
           (step->identity == link->identity || link->again || !step->known);
}

/* Of as many links and, where the walk is whole, its end. */
static void write_steps(ca_py_unit_t *units, const ca_py_walk_t *walk)
{
    const ca_py_link_t *links = walk->links;
    for (uint32_t i = 0; i < walk->link_count; i++)
        units[i].step = (ca_py_step_t){
            .frame = links[i].frame,
            .code = links[i].code,
            .instruction = links[i].instruction,
            .identity = links[i].again ? 0 : links[i].identity,
            .known = links[i].again ? NULL : links[i].copy,
            .number = links[i].number,
            .file_again = links[i].file_again,
        };
    if (walk->whole)
        units[walk->link_count].step = (ca_py_step_t){.frame = 0};
}

/* Where the stack belongs in the tree: a link that is 0. NULL where too many are in the way, or it
 * is there. */
static uint32_t *link_for(ca_py_cache_t *cache, ca_py_head_t *head, const ca_py_walk_t *walk,
                          uint32_t count)
{
    uint32_t *link = &head->first, index = 0;
    for (unsigned tried = 0; *link != 0; tried++) {
        ca_py_unit_t *units = &cache->units[*link];
        uint32_t most = units->entry.count < count ? units->entry.count : count;
        while (index < most && (index == walk->link_count
                                    ? units[1 + index].step.frame == 0
                                    : is_step_of(&units[1 + index].step, &walk->links[index])))
            index++;
        if (index == most || tried == TRIED_MOST)
            return NULL;
        link = &units[1 + index].step.other;
    }
    return link;
}

void ca_py_cache_keep(ca_py_cache_t *cache, const ca_py_layout_t *layout, uintptr_t state,
                      uint32_t native, const ca_py_walk_t *walk, uint32_t id)
{
    uint32_t count = walk->link_count + walk->whole;
    if (walk->link_count == 0)
        return;
    if (cache->used == 0 || CA_PY_UNITS - cache->used < count + 1)
        ca_py_cache_forget(cache);
    const ca_py_link_t *first = &walk->links[0];
    ca_py_head_t *head = head_of(cache, first->frame, first->instruction, native, true);
    if (!head) {
        ca_py_cache_forget(cache);
        head = head_of(cache, first->frame, first->instruction, native, true);
    }
    uint32_t *link = link_for(cache, head, walk, count);
    if (!link)
        return;
    uint32_t at = cache->used;
    uintptr_t interpreter = interpreter_of(layout, state);
    cache->units[at].entry = (ca_py_entry_t){
        .id = id,
        .count = count,
        .generation = generation_of(layout, interpreter),
        .interpreter = interpreter,
    };
    write_steps(&cache->units[at + 1], walk);
    cache->used += count + 1;
    *link = at;
}
