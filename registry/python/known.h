/* From code objects to the numbers that codes.h gives them.
 *
 * An object dies and another one comes at its address, so that an address says nothing. From 3.12
 * on a code has a version that is never given twice; before that, and as long as it is not seen
 * that versions differ, it is compared as a whole with the copy. */
#ifndef CA_REGISTRY_PYTHON_KNOWN_H
#define CA_REGISTRY_PYTHON_KNOWN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/inline.h"
#include "registry/python/codes.h"
#include "registry/python/walk.h"

#define CA_PY_CODE_SET_BITS 8
#define CA_PY_SITE_SET_BITS 9
#define CA_PY_WAYS 4u /* places that each of them may be in */

/* What a thread has looked up; in each set, the newest first. All zero is an empty one. */
typedef struct ca_py_known {
    struct ca_py_known_code {
        uintptr_t code;
        uint64_t identity;
        const ca_py_code_t *copy;
        uint32_t number;
        uint32_t walk; /* the last one that it was the same in */
    } codes[1u << CA_PY_CODE_SET_BITS][CA_PY_WAYS];
    uint32_t walk; /* that is under way: counted */
    struct ca_py_known_site {
        uint64_t key;
        uint32_t number;
    } sites[1u << CA_PY_SITE_SET_BITS][CA_PY_WAYS];
} ca_py_known_t;

/* Whether a live code says what that one does. */
bool ca_py_is_same(const ca_py_layout_t *layout, uintptr_t code, const ca_py_code_t *known);

/* What is left of ca_py_is_same_in_place of one that is not plain. */
bool ca_py_is_same_otherwise(const ca_py_layout_t *layout, const ca_py_code_t *known);

/* Of the interpreter itself: 3.13 and later call an __init__ in line, from some calls on, with a
 * frame beneath that is no function's. Its line table is one entry that covers more than it has. */
bool ca_py_is_interpreters(const ca_py_code_t *code);

/* Of a string's state. */
enum { CA_PY_KIND_SHIFT = 2, CA_PY_KIND = 7, CA_PY_COMPACT = 1 << 5, CA_PY_ASCII = 1 << 6 };
#define CA_PY_SHAPE ((uint32_t)(CA_PY_KIND << CA_PY_KIND_SHIFT | CA_PY_COMPACT | CA_PY_ASCII))

static inline uint32_t ca_py_data_offset(const ca_py_layout_t *layout, uint32_t state)
{
    return state & CA_PY_ASCII ? layout->str.ascii : layout->str.compact;
}

typedef uint64_t __attribute__((vector_size(16), aligned(1), may_alias)) ca_py_pair_t;

/* Whether a live string has the length and shape that were copied: else its characters may be fewer
 * or elsewhere (of a class of the program's), and are not to be read. 0: it has. */
CA_INLINE uint64_t ca_py_head_differs(const ca_py_layout_t *layout, const ca_py_string_t *copy)
{
    return (ca_py_word(copy->object + layout->str.length) ^ copy->length) |
           ((ca_py_half(copy->object + layout->str.state) & CA_PY_SHAPE) ^ copy->shape);
}

/* Of as many bytes of each as a tail has, the last `bytes`; the copy has 0 before those. The same
 * instructions for each length, since the processor guesses badly how long names are. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static inline bool
ca_py_is_same_window(uintptr_t live, const uint8_t *copy, uint32_t bytes)
{
    static const uint8_t masks[2 * CA_PY_TAIL] = {[CA_PY_TAIL... 2 * CA_PY_TAIL - 1] = UINT8_MAX};
    const ca_py_pair_t *is = (const void *)live, *was = (const void *)copy;
    const ca_py_pair_t *mask = (const void *)(masks + bytes);
    ca_py_pair_t differ =
        ((is[0] & mask[0]) ^ was[0]) | ((is[1] & mask[1]) ^ was[1]) | ((is[2] & mask[2]) ^ was[2]);
    return (differ[0] | differ[1]) == 0;
}

_Static_assert(CA_PY_TAIL == 3 * sizeof(ca_py_pair_t), "all of a window");

static inline bool ca_py_is_same_tail(const ca_py_string_t *copy)
{
    return ca_py_is_same_window(copy->tail_at, copy->tail, copy->tail_bytes);
}

/* What is before that, of which there is some. */
static inline bool ca_py_is_same_front(const ca_py_string_t *copy)
{
    uintptr_t live = copy->tail_at;
    const uint8_t *text = copy->text + copy->front;
    uint32_t left = copy->front;
    for (; left > CA_PY_TAIL; left -= CA_PY_TAIL) {
        live -= CA_PY_TAIL;
        text -= CA_PY_TAIL;
        if (!ca_py_is_same_window(live, text, CA_PY_TAIL))
            return false;
    }
    return ca_py_is_same_window(live - CA_PY_TAIL, text - CA_PY_TAIL, left);
}

/* Of a string object that is alive: whether it is as it was copied. */
CA_INLINE bool ca_py_is_same_string(const ca_py_layout_t *layout, const ca_py_string_t *copy)
{
    return ca_py_head_differs(layout, copy) == 0 && ca_py_is_same_tail(copy) &&
           (copy->front == 0 || ca_py_is_same_front(copy));
}

/* By the objects of the code that the copy was made of, where it has those: any may be another one
 * in that place, but is alive. The characters of its name are compared; and where the code is
 * a file's, its first line and how many bytes of lines it has for those: the file would have to be
 * changed and read again into the same places. Not known to be the same where it is false. The
 * characters of its file's name are left to the caller, which compares them once for all codes that
 * have the object. */
CA_INLINE bool ca_py_is_same_in_place(const ca_py_layout_t *layout, uintptr_t code,
                                      const ca_py_code_t *known)
{
    const ca_py_in_place_t *place = &known->place;
    if (((ca_py_word(code + layout->code.called) ^ place->name.object) |
         (ca_py_word(code + layout->code.file) ^ place->file_object) |
         (ca_py_word(code + layout->code.lines) ^ place->lines) |
         (ca_py_half(code + layout->code.first_line) ^ place->first_line)) != 0)
        return false;
    if ((ca_py_head_differs(layout, &place->name) |
         (ca_py_word(place->lines + layout->bytes.length) ^ place->lines_count)) != 0)
        return false;
    return ca_py_is_same_tail(&place->name) &&
           (place->is_plain || ca_py_is_same_otherwise(layout, known));
}

/* Gives the codes of a walk their numbers. False where one is no code, or there is no room. A code
 * that several frames have is looked at once: it is alive in all of them. */
bool ca_py_number(const ca_py_layout_t *layout, ca_py_reader_t *reader, ca_py_known_t *known,
                  ca_py_walk_t *walk);

/* The site of a frame whose code has its number. 0 where it lies out of the code, or without room.
 */
uint32_t ca_py_site(const ca_py_layout_t *layout, ca_py_reader_t *reader, ca_py_known_t *known,
                    const ca_py_link_t *link);

/* Whether versions are seen to tell codes apart: changes once at most each way. */
unsigned ca_py_versions_epoch(void);

void ca_py_known_reset_after_fork(void);

#endif
