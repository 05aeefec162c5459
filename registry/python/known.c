#include "registry/python/known.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mutation.h"
#include "registry/stack/hash.h"

#define TEXT_MOST (1u << 16)  /* characters of a name */
#define TABLE_MOST (1u << 20) /* bytes of a line table */
#define CODE_MOST (1u << 26)  /* of bytecode */

/* Whether two codes were seen to have different versions, or the same one. */
enum { NOT_SEEN, DIFFERENT, SAME };
static _Atomic unsigned versions;

unsigned ca_py_versions_epoch(void)
{
    return atomic_load_explicit(&versions, memory_order_relaxed);
}

void ca_py_known_reset_after_fork(void)
{
    atomic_store(&versions, NOT_SEEN);
}

/* 0 where there is none. */
static bool read_version(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t code,
                         uint32_t *version)
{
    *version = 0;
    return !layout->code.version || ca_py_get_half(reader, code + layout->code.version, version);
}

static bool read_identity(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t code,
                          uint64_t *identity)
{
    uint32_t version, first_line;
    if (!read_version(layout, reader, code, &version) ||
        !ca_py_get_half(reader, code + layout->code.first_line, &first_line))
        return false;
    bool tells = version != 0 && ca_py_versions_epoch() == DIFFERENT;
    *identity = tells ? (uint64_t)first_line << 32 | version : 0;
    return true;
}

/* Of codes that are alive together. */
static bool compare_versions(const ca_py_layout_t *layout, ca_py_reader_t *reader,
                             const ca_py_walk_t *walk)
{
    uintptr_t last = 0;
    uint32_t last_version = 0, version;
    for (unsigned i = 0; i < walk->link_count && ca_py_versions_epoch() != SAME; i++) {
        uintptr_t code = walk->links[i].code;
        if (walk->links[i].is_entry)
            continue;
        if (code % sizeof(uint64_t) != 0 || !read_version(layout, reader, code, &version))
            return false;
        if (last && last != code && version != 0) {
            unsigned now = version == last_version ? SAME : DIFFERENT;
            if (ca_py_versions_epoch() != now)
                atomic_store_explicit(&versions, now, memory_order_relaxed);
        }
        last = code;
        last_version = version;
    }
    return true;
}

/* --- what a code says ------------------------------------------------------------------------- */

static bool is_of_type(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t object,
                       uintptr_t type)
{
    uint64_t its = 0;
    return object % sizeof its == 0 && ca_py_get(reader, object + layout->type, &its) &&
           its == type;
}

static bool read_text(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t object,
                      ca_py_text_t *text)
{
    uint64_t length;
    uint32_t state;
    if (!is_of_type(layout, reader, object, layout->str_type) ||
        !ca_py_get(reader, object + layout->str.length, &length) ||
        !ca_py_get_half(reader, object + layout->str.state, &state))
        return false;
    uint32_t width = state >> CA_PY_KIND_SHIFT & CA_PY_KIND;
    if (length > TEXT_MOST || !(state & CA_PY_COMPACT) || (width != 1 && width != 2 && width != 4))
        return false;
    uintptr_t data = object + ca_py_data_offset(layout, state);
    *text = (ca_py_text_t){
        .width = width,
        .length = (uint32_t)length,
        .data = (const void *)data,
        .object = object,
        .shape = state & CA_PY_SHAPE,
    };
    return ca_py_readable(reader, data, (size_t)(length + 1) * width);
}

/* The text that a word of an object leads to. */
static bool read_text_at(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t word,
                         ca_py_text_t *text)
{
    uint64_t object;
    return ca_py_get(reader, word, &object) && read_text(layout, reader, object, text);
}

/* A NUL behind it, as all have. */
static bool is_terminated(const ca_py_text_t *text)
{
    uintptr_t end = (uintptr_t)text->data + (size_t)text->length * text->width;
    for (uint32_t i = 0; i < text->width; i++)
        if (ca_py_byte(end + i) != 0)
            return false;
    return true;
}

/* The bytes that a word of an object leads to. */
static bool read_bytes_at(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t word,
                          const uint8_t **data, size_t *count, size_t most)
{
    uint64_t object, length;
    if (!ca_py_get(reader, word, &object) ||
        !is_of_type(layout, reader, object, layout->bytes_type) ||
        !ca_py_get(reader, object + layout->bytes.length, &length))
        return false;
    *count = length;
    *data = (const uint8_t *)(object + layout->bytes.data);
    return length <= most && ca_py_readable(reader, (uintptr_t)*data, length + 1);
}

/* All of it but how long the bytecode is. */
static bool read_code(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t code,
                      ca_py_code_t *content)
{
    uint32_t first_line;
    uint64_t lines;
    if (!is_of_type(layout, reader, code, layout->code_type) ||
        !ca_py_get_half(reader, code + layout->code.first_line, &first_line) ||
        !ca_py_get(reader, code + layout->code.lines, &lines))
        return false;
    content->place.lines = (uintptr_t)lines;
    content->function = content->path = NULL;
    content->lines.form = layout->lines;
    content->lines.first_line = first_line;
    return read_text_at(layout, reader, code + layout->code.called, &content->name) &&
           read_text_at(layout, reader, code + layout->code.file, &content->file) &&
           read_bytes_at(layout, reader, code + layout->code.lines, &content->lines.bytes,
                         &content->lines.count, TABLE_MOST);
}

static bool read_code_bytes(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t code,
                            size_t *bytes)
{
    const uint8_t *data;
    uint64_t units;
    if (layout->minor < 11)
        return read_bytes_at(layout, reader, code + layout->code.bytecode, &data, bytes, CODE_MOST);
    if (!ca_py_get(reader, code + layout->bytes.length, &units) || units > CODE_MOST)
        return false;
    *bytes = (size_t)units * layout->instruction_unit;
    return true;
}

/* The last part of a qualified name is the name. */
static bool ends_with_name(const ca_py_layout_t *layout, ca_py_reader_t *reader, uintptr_t code,
                           const ca_py_text_t *whole)
{
    ca_py_text_t name;
    if (!layout->code.qualname)
        return true;
    if (!read_text_at(layout, reader, code + layout->code.name, &name) || !is_terminated(&name) ||
        name.length > whole->length)
        return false;
    size_t bytes = (size_t)name.length * name.width;
    const uint8_t *end = (const uint8_t *)whole->data + (size_t)whole->length * whole->width;
    return name.width != whole->width || memcmp(end - bytes, name.data, bytes) == 0;
}

static bool same_text(const ca_py_text_t *a, const ca_py_text_t *b)
{
    return a->width == b->width && a->length == b->length &&
           memcmp(a->data, b->data, (size_t)a->width * a->length) == 0;
}

bool ca_py_is_same_otherwise(const ca_py_layout_t *layout, const ca_py_code_t *known)
{
    const void *lines = (const void *)(known->place.lines + layout->bytes.data);
    const ca_py_string_t *name = &known->place.name;
    return (name->front == 0 || ca_py_is_same_front(name)) &&
           (!ca_py_is_made(known) || memcmp(lines, known->lines.bytes, known->lines.count) == 0);
}

bool ca_py_is_same(const ca_py_layout_t *layout, uintptr_t code, const ca_py_code_t *known)
{
    ca_py_reader_t plainly = {.guarded = false};
    ca_py_code_t now;
    return CA_MUTATED(python_code_unchecked) ||
           (read_code(layout, &plainly, code, &now) &&
            now.lines.first_line == known->lines.first_line &&
            now.lines.count == known->lines.count && same_text(&now.name, &known->name) &&
            same_text(&now.file, &known->file) &&
            memcmp(now.lines.bytes, known->lines.bytes, now.lines.count) == 0);
}

/* --- numbers ---------------------------------------------------------------------------------- */

bool ca_py_is_interpreters(const ca_py_code_t *code)
{
    return code->lines.first_line == 0 && code->lines.count == 1 &&
           same_text(&code->name, &code->file);
}

/* Never seen before, as far as the thread knows. */
static uint32_t add_code(const ca_py_layout_t *layout, uintptr_t code)
{
    ca_py_reader_t guarded = {.guarded = true};
    ca_py_code_t content;
    size_t bytes;
    if (!read_code(layout, &guarded, code, &content) || !is_terminated(&content.name) ||
        !is_terminated(&content.file) || content.name.length == 0 ||
        !ends_with_name(layout, &guarded, code, &content.name) ||
        !read_code_bytes(layout, &guarded, code, &bytes) ||
        (!ca_py_is_interpreters(&content) && !ca_py_lines_cover(&content.lines, bytes)))
        return 0;
    return ca_py_code_add(&content);
}

static bool is_in_place(const ca_py_layout_t *layout, uintptr_t code, const ca_py_code_t *copy)
{
    return ca_py_is_same_in_place(layout, code, copy) &&
           ca_py_is_same_string(layout, copy->place.file);
}

static inline bool is_it(const ca_py_layout_t *layout, const struct ca_py_known_code *one,
                         uintptr_t code, uint64_t identity)
{
    if (one->code != code || one->number == 0)
        return false;
    if (identity)
        return one->identity == identity;
    return is_in_place(layout, code, one->copy) || ca_py_is_same(layout, code, one->copy);
}

/* What stands for the code of a link that was not seen in this walk; NULL without room. */
static __attribute__((noinline)) struct ca_py_known_code *
meet(const ca_py_layout_t *layout, struct ca_py_known_code *set, const ca_py_link_t *link)
{
    unsigned to = CA_PY_WAYS - 1; /* that is given up */
    for (unsigned way = 0; way < CA_PY_WAYS; way++) {
        if (is_it(layout, &set[way], link->code, link->identity))
            return &set[way];
        if (set[way].code == link->code)
            to = way;
    }
    uint32_t number = add_code(layout, link->code);
    if (number == 0)
        return NULL;
    memmove(set + 1, set, to * sizeof *set);
    set[0] = (struct ca_py_known_code){
        .code = link->code,
        .identity = link->identity,
        .copy = ca_py_code_of(number),
        .number = number,
    };
    return set;
}

static inline bool number_link(const ca_py_layout_t *layout, ca_py_reader_t *reader,
                               ca_py_known_t *known, ca_py_link_t *link)
{
    struct ca_py_known_code *set =
        known->codes[ca_hash_word(link->code) >> (64 - CA_PY_CODE_SET_BITS)];
    for (unsigned way = 0; way < CA_PY_WAYS; way++)
        if (set[way].code == link->code && set[way].walk == known->walk) {
            link->number = set[way].number;
            link->copy = set[way].copy;
            link->again = true;
            return true;
        }
    if (link->code % sizeof(uint64_t) != 0 ||
        !read_identity(layout, reader, link->code, &link->identity))
        return false;
    struct ca_py_known_code *one = meet(layout, set, link);
    if (!one)
        return false;
    one->walk = known->walk;
    link->number = one->number;
    link->copy = one->copy;
    link->is_in_place = link->identity == 0 && is_in_place(layout, link->code, one->copy);
    return true;
}

/* A number that none of what is known has. */
static void begin_walk(ca_py_known_t *known)
{
    if (++known->walk == 0) {
        memset(known->codes, 0, sizeof known->codes);
        known->walk = 1;
    }
}

bool ca_py_number(const ca_py_layout_t *layout, ca_py_reader_t *reader, ca_py_known_t *known,
                  ca_py_walk_t *walk)
{
    bool seen = ca_py_versions_epoch() != NOT_SEEN && !reader->guarded;
    if (!seen && !compare_versions(layout, reader, walk))
        return false;
    begin_walk(known);
    for (unsigned i = 0; i < walk->link_count; i++)
        if (!walk->links[i].is_entry && !number_link(layout, reader, known, &walk->links[i]))
            return false;
    return true;
}

/* Before its first instruction a frame stands at none. */
static bool offset_of(const ca_py_layout_t *layout, const ca_py_link_t *link, uint32_t *offset)
{
    int64_t at = layout->instruction_is_index
                     ? (int64_t)(int32_t)link->instruction * layout->instruction_unit
                     : (int64_t)(link->instruction - link->code - layout->code.bytecode);
    if (at < -(int64_t)layout->instruction_unit || at > CODE_MOST)
        return false;
    *offset = at < 0 ? 0 : (uint32_t)at;
    return true;
}

uint32_t ca_py_site(const ca_py_layout_t *layout, ca_py_reader_t *reader, ca_py_known_t *known,
                    const ca_py_link_t *link)
{
    uint32_t offset;
    size_t bytes;
    if (!offset_of(layout, link, &offset))
        return 0;
    uint64_t key = (uint64_t)link->number << 32 | offset;
    struct ca_py_known_site *set = known->sites[ca_hash_word(key) >> (64 - CA_PY_SITE_SET_BITS)];
    for (unsigned way = 0; way < CA_PY_WAYS; way++)
        if (set[way].key == key)
            return set[way].number;
    if (!read_code_bytes(layout, reader, link->code, &bytes) || offset >= bytes)
        return 0;
    uint32_t number = ca_py_site_add(link->number, offset);
    if (number != 0) {
        memmove(set + 1, set, (CA_PY_WAYS - 1) * sizeof *set);
        set[0] = (struct ca_py_known_site){key, number};
    }
    return number;
}
