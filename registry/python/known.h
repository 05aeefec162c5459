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

#define CA_PY_KNOWN 1024u
#define CA_PY_KNOWN_SITES 2048u

/* What a thread has looked up. All zero is an empty one. */
typedef struct ca_py_known {
    struct ca_py_known_code {
        uintptr_t code;
        uint64_t identity;
        uint32_t number;
    } codes[CA_PY_KNOWN];
    struct ca_py_known_site {
        uint64_t key;
        uint32_t number;
    } sites[CA_PY_KNOWN_SITES];
} ca_py_known_t;

/* Whether a live code says what that one does. */
bool ca_py_is_same(const ca_py_layout_t *layout, uintptr_t code, const ca_py_code_t *known);

/* The same for what a program makes as it runs, which has the same names at the same addresses,
 * where all lengths are the same. */
bool ca_py_is_same_made(const ca_py_layout_t *layout, const ca_py_code_t *known);

#define CA_PY_HASH_AFTER_LENGTH 8u /* in a string, of all versions */

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
static inline bool ca_py_same_characters(const ca_py_layout_t *layout, const ca_py_text_t *known)
{
    return (ca_py_half(known->object + layout->str.state) & CA_PY_SHAPE) == known->shape &&
           ca_py_same_words(known->object + ca_py_data_offset(layout, known->shape), known->data,
                            (size_t)known->length * known->width);
}

/* By the objects of the code that the copy was made of, where it has those: any may be another one
 * in that place, but is alive. The hash of the name stands for it, and where the code is a file's,
 * its first line and how many bytes of lines it has for those: the file would have to be changed
 * and read again into the same places. Not known to be the same where it is false. */
static inline bool ca_py_is_same_in_place(const ca_py_layout_t *layout, uintptr_t code,
                                          const ca_py_code_t *known)
{
    const uint32_t length = layout->str.length;
    uintptr_t name = known->name.object, file = known->file.object, lines = known->lines_object;
    if (((ca_py_word(code + layout->code.called) ^ name) |
         (ca_py_word(code + layout->code.file) ^ file) |
         (ca_py_word(code + layout->code.lines) ^ lines) |
         (ca_py_half(code + layout->code.first_line) ^ known->lines.first_line)) != 0)
        return false;
    return ((ca_py_word(name + length) ^ known->name.length) |
            (ca_py_word(file + length) ^ known->file.length) |
            (ca_py_word(lines + length) ^ known->lines.count) |
            (ca_py_word(name + length + CA_PY_HASH_AFTER_LENGTH) ^ known->name.hash)) == 0 &&
           ca_py_same_characters(layout, &known->file) &&
           (known->is_of_file || ca_py_is_same_made(layout, known));
}

/* Gives the codes of a walk their numbers. False where one is no code, or there is no room. */
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
