/* From code objects to the numbers that codes.h gives them.
 *
 * An object dies and another one comes at its address, so that an address says nothing. From 3.12
 * on a code has a version that is never given twice; before that, and as long as it is not seen
 * that versions differ, it is compared as a whole with the copy. */
#ifndef CA_REGISTRY_PYTHON_KNOWN_H
#define CA_REGISTRY_PYTHON_KNOWN_H

#include <stdbool.h>
#include <stdint.h>
#include "registry/python/codes.h"
#include "registry/python/walk.h"
#include "registry/stack/hash.h"

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

/* The same for what a program makes as it runs, which has the same names at the same addresses,
 * where all lengths are the same. */
bool ca_py_is_same_made(const ca_py_layout_t *layout, const ca_py_code_t *known);

/* Of the interpreter itself: 3.13 and later call an __init__ in line, from some calls on, with a
 * frame beneath that is no function's. Its line table is one entry that covers more than it has. */
bool ca_py_is_interpreters(const ca_py_code_t *code);

#define CA_PY_HASH_AFTER_LENGTH 8u /* in a string, of all versions */
#define CA_PY_NO_HASH UINT64_MAX   /* none was asked for yet */

/* Of a string's state. */
enum { CA_PY_KIND_SHIFT = 2, CA_PY_KIND = 7, CA_PY_COMPACT = 1 << 5, CA_PY_ASCII = 1 << 6 };
#define CA_PY_SHAPE ((uint32_t)(CA_PY_KIND << CA_PY_KIND_SHIFT | CA_PY_COMPACT | CA_PY_ASCII))

static inline uint32_t ca_py_data_offset(const ca_py_layout_t *layout, uint32_t state)
{
    return state & CA_PY_ASCII ? layout->str.ascii : layout->str.compact;
}

/* Two words at a time of what a live object has, and of the copy; then one, as far as it counts. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static inline bool
ca_py_same_words(uintptr_t at, const void *copy, size_t bytes)
{
    typedef uint64_t __attribute__((vector_size(16), aligned(8), may_alias)) pair_t;
    const uint8_t *to = copy;
    pair_t differ = {0, 0};
    for (; bytes >= sizeof differ; bytes -= sizeof differ, at += sizeof differ, to += sizeof differ)
        differ |= *(const pair_t *)at ^ *(const pair_t *)(const void *)to;
    uint64_t last = 0;
    if (bytes >= sizeof last) {
        last = ca_py_word(at) ^ ca_py_word((uintptr_t)to);
        bytes -= sizeof last;
        at += sizeof last;
        to += sizeof last;
    }
    if (bytes != 0)
        last |= (ca_py_word(at) ^ ca_py_word((uintptr_t)to)) << (sizeof last - bytes) * 8;
    return (differ[0] | differ[1] | last) == 0;
}

/* Of a string of the known length. */
static inline bool ca_py_same_characters(const ca_py_layout_t *layout, uintptr_t text,
                                         uint32_t shape, uint32_t length, const void *copy)
{
    return (ca_py_half(text + layout->str.state) & CA_PY_SHAPE) == shape &&
           ca_py_same_words(text + ca_py_data_offset(layout, shape), copy,
                            (size_t)length * (shape >> CA_PY_KIND_SHIFT & CA_PY_KIND));
}

/* Of the characters of a live string of that length, and how it has them. One that has them
 * elsewhere (of a class of the program's) may have come into the place of one that does not. */
static inline uint64_t ca_py_mark(const ca_py_layout_t *layout, uintptr_t text, size_t length)
{
    uint32_t shape = ca_py_half(text + layout->str.state) & CA_PY_SHAPE;
    uintptr_t at = text + ca_py_data_offset(layout, shape);
    size_t bytes = shape & CA_PY_COMPACT ? length * (shape >> CA_PY_KIND_SHIFT & CA_PY_KIND) : 0;
    uint64_t mark = shape;
    if (bytes == 0)
        return mark;
    for (; bytes > sizeof mark; bytes -= sizeof mark, at += sizeof mark)
        mark = ca_hash_word(mark ^ ca_py_word(at));
    return ca_hash_word(mark ^ ca_py_word(at) << (sizeof mark - bytes) * 8);
}

/* By the objects of the code that the copy was made of, where it has those: any may be another one
 * in that place, but is alive. The hash of the name stands for it, of our own where it had none, as
 * most qualified names; and where the code is a file's, its first line and how many bytes of lines
 * it has for those: the file would have to be changed and read again into the same places. Not
 * known to be the same where it is false. Without `with_file` the file's name is taken to be as it
 * was: another code of the stack has the object. */
static inline bool ca_py_is_same_in_place(const ca_py_layout_t *layout, uintptr_t code,
                                          const ca_py_code_t *known, bool with_file)
{
    const uint32_t length = layout->str.length;
    const ca_py_in_place_t *place = &known->place;
    uintptr_t name = place->name, file = place->file, lines = place->lines;
    if (((ca_py_word(code + layout->code.called) ^ name) |
         (ca_py_word(code + layout->code.file) ^ file) |
         (ca_py_word(code + layout->code.lines) ^ lines) |
         (ca_py_half(code + layout->code.first_line) ^ place->first_line)) != 0)
        return false;
    if (((ca_py_word(name + length) ^ place->name_length) |
         (ca_py_word(lines + length) ^ place->lines_count)) != 0)
        return false;
    if ((place->name_marked
             ? ca_py_mark(layout, name, place->name_length)
             : ca_py_word(name + length + CA_PY_HASH_AFTER_LENGTH)) != place->name_hash)
        return false;
    if (with_file && (ca_py_word(file + length) != place->file_length ||
                      !ca_py_same_characters(layout, file, place->file_shape, place->file_length,
                                             place->file_text)))
        return false;
    return place->is_of_file || ca_py_is_same_made(layout, known);
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
