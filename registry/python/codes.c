/* Both are in pages that never move, so that one that has a number is read without the lock; what
 * is looked up by content is looked up under it. */
#include "registry/python/codes.h"

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/mem.h"
#include "registry/stack/intern.h"

#define PAGE_BITS 10
#define PAGE_ITEMS (1u << PAGE_BITS)
#define CODES_MOST (256u * PAGE_ITEMS) /* a program may make new ones for ever */
#define SITES_MOST (1024u * PAGE_ITEMS)
#define LEAST_BUCKETS 256u

typedef struct list {
    void **pages;
    size_t item_bytes;
    uint32_t most;
    _Atomic uint32_t count;
} list_t;

static void *code_pages[CODES_MOST / PAGE_ITEMS], *site_pages[SITES_MOST / PAGE_ITEMS];
static list_t codes = {code_pages, sizeof(ca_py_code_t), CODES_MOST, 0};
static list_t sites = {site_pages, sizeof(ca_py_site_t), SITES_MOST, 0};

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_STACKS);
static ca_bump_t memory;  /* under the lock, as is what follows */
static uint32_t *buckets; /* codes by content: a number, or 0 */
static size_t bucket_count;
static ca_intern_t places; /* sites by code and offset */
static const ca_py_listener_t *_Atomic listener;

static void *item_of(const list_t *list, uint32_t number)
{
    char *page = list->pages[(number - 1) >> PAGE_BITS];
    return page + ((number - 1) & (PAGE_ITEMS - 1)) * list->item_bytes;
}

/* The next one, which counts once `publish` is called; NULL without room. Under the lock. */
static void *next_item(list_t *list)
{
    uint32_t count = atomic_load_explicit(&list->count, memory_order_relaxed);
    if (count == list->most)
        return NULL;
    void **page = &list->pages[count >> PAGE_BITS];
    if (!*page)
        *page = ca_mem_map(PAGE_ITEMS * list->item_bytes);
    return *page ? item_of(list, count + 1) : NULL;
}

static uint32_t publish(list_t *list)
{
    uint32_t number = atomic_load_explicit(&list->count, memory_order_relaxed) + 1;
    atomic_store_explicit(&list->count, number, memory_order_release);
    return number;
}

/* --- texts ------------------------------------------------------------------------------------ */

static size_t text_bytes(const ca_py_text_t *text)
{
    return (size_t)text->width * text->length;
}

static uint32_t character(const ca_py_text_t *text, uint32_t index)
{
    const uint8_t *bytes = text->data;
    uint16_t half;
    uint32_t whole;
    switch (text->width) {
    case 1:
        return bytes[index];
    case 2:
        memcpy(&half, bytes + (size_t)index * sizeof half, sizeof half);
        return half;
    default:
        memcpy(&whole, bytes + (size_t)index * sizeof whole, sizeof whole);
        return whole;
    }
}

/* Bytes of a file's name that are no UTF-8 are there as half of a pair. */
static size_t encode(uint32_t code, char to[4])
{
    enum { BYTE_FIRST = 0xdc80, BYTE_LAST = 0xdcff, BYTE = 0xdc00 };
    if (code < 0x80 || (code >= BYTE_FIRST && code <= BYTE_LAST)) {
        to[0] = (char)(code < 0x80 ? code : code - BYTE);
        return 1;
    }
    size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
    to[0] = (char)(first[more] | code >> 6 * more);
    for (size_t i = 1; i <= more; i++)
        to[i] = (char)(0x80 | (code >> 6 * (more - i) & 0x3f));
    return more + 1;
}

/* A NUL ends it, as wherever it is shown. */
static const char *as_utf8(const ca_py_text_t *text)
{
    char *copy = ca_bump_take(&memory, (size_t)text->length * 4 + 1), *to = copy;
    for (uint32_t i = 0; copy && i < text->length; i++)
        to += encode(character(text, i), to);
    return copy;
}

/* Behind bytes of 0, as a string has it; NULL without memory. */
static void *copy_characters(const ca_py_text_t *from)
{
    char *copy = ca_bump_take(&memory, CA_PY_TAIL + text_bytes(from) + 1);
    return copy ? memcpy(copy + CA_PY_TAIL, from->data, text_bytes(from)) : NULL;
}

static bool copy_text(const ca_py_text_t *from, ca_py_text_t *to)
{
    *to = *from;
    to->data = copy_characters(from);
    return to->data;
}

ca_py_string_t ca_py_string_of(const ca_py_text_t *live, const void *copy)
{
    size_t bytes = text_bytes(live), tail = bytes < CA_PY_TAIL ? bytes : CA_PY_TAIL;
    uintptr_t tail_at = (uintptr_t)live->data + bytes - CA_PY_TAIL;
    ca_py_string_t string = {
        .object = tail_at < live->object ? 0 : live->object,
        .tail_at = tail_at,
        .length = live->length,
        .shape = live->shape,
        .tail_bytes = (uint32_t)tail,
        .front = (uint32_t)(bytes - tail),
        .text = copy,
    };
    memcpy(string.tail + CA_PY_TAIL - tail, string.text + bytes - tail, tail);
    return string;
}

#define FILES_KEPT 64u /* the last ones: the codes of a file are met one soon after another */
static const ca_py_string_t *files[FILES_KEPT];
static unsigned file_next;

/* The one for that file's name; NULL without memory. */
static const ca_py_string_t *file_string(const ca_py_text_t *live)
{
    for (unsigned i = 0; i < FILES_KEPT; i++)
        if (files[i] && files[i]->object == live->object && files[i]->shape == live->shape &&
            files[i]->length == live->length &&
            memcmp(files[i]->text, live->data, text_bytes(live)) == 0)
            return files[i];
    ca_py_string_t *string = ca_bump_take(&memory, sizeof *string);
    const void *copy = string ? copy_characters(live) : NULL; /* behind it */
    if (copy) {
        *string = ca_py_string_of(live, copy);
        files[file_next++ % FILES_KEPT] = string;
    }
    return copy ? string : NULL;
}

/* --- codes ------------------------------------------------------------------------------------ */

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return (hash ^ count) * 0x9e3779b97f4a7c15u;
}

static uint64_t hash_of(const ca_py_code_t *code)
{
    uint64_t hash = hash_bytes(code->lines.first_line, code->name.data, text_bytes(&code->name));
    hash = hash_bytes(hash, code->file.data, text_bytes(&code->file));
    hash = hash_bytes(hash, code->lines.bytes, code->lines.count);
    return hash ^ hash >> 29;
}

static bool same_text(const ca_py_text_t *a, const ca_py_text_t *b)
{
    return a->width == b->width && a->length == b->length &&
           memcmp(a->data, b->data, text_bytes(a)) == 0;
}

static bool same_code(const ca_py_code_t *a, const ca_py_code_t *b)
{
    return a->lines.first_line == b->lines.first_line && a->lines.count == b->lines.count &&
           a->lines.form == b->lines.form && !a->lines.bytes == !b->lines.bytes &&
           same_text(&a->name, &b->name) && same_text(&a->file, &b->file) &&
           (!a->lines.bytes || memcmp(a->lines.bytes, b->lines.bytes, a->lines.count) == 0);
}

/* Where it is among the buckets, or belongs. */
static uint32_t *bucket_of(uint32_t *in, size_t count, const ca_py_code_t *code)
{
    for (size_t at = hash_of(code) & (count - 1);; at = (at + 1) & (count - 1))
        if (in[at] == 0 || same_code(item_of(&codes, in[at]), code))
            return &in[at];
}

static bool have_bucket(void)
{
    uint32_t known = atomic_load_explicit(&codes.count, memory_order_relaxed);
    if (buckets && known < bucket_count / 2)
        return true;
    size_t count = buckets ? bucket_count * 2 : LEAST_BUCKETS;
    uint32_t *bigger = ca_mem_map(count * sizeof *bigger);
    if (!bigger)
        return false;
    for (uint32_t number = 1; number <= known; number++)
        *bucket_of(bigger, count, item_of(&codes, number)) = number;
    ca_mem_unmap(buckets, bucket_count * sizeof *buckets);
    buckets = bigger;
    bucket_count = count;
    return true;
}

bool ca_py_is_made(const ca_py_code_t *code)
{
    const ca_py_text_t *file = &code->file;
    return file->length == 0 || file->width != 1 || *(const char *)file->data == '<';
}

/* Its objects, once the rest is copied. */
static bool note_place(const ca_py_code_t *from, ca_py_code_t *to)
{
    if (from->name.object == 0)
        return true;
    const ca_py_string_t *file = file_string(&from->file);
    if (!file)
        return false;
    to->file.data = file->text;
    to->place = (ca_py_in_place_t){
        .name = ca_py_string_of(&from->name, to->name.data),
        .file = file,
        .file_object = file->object,
        .lines = from->place.lines,
        .first_line = from->lines.first_line,
        .lines_count = (uint32_t)from->lines.count,
    };
    to->place.is_plain = to->place.name.front == 0 && !ca_py_is_made(from);
    return true;
}

static bool copy_code(const ca_py_code_t *from, ca_py_code_t *to)
{
    *to = *from;
    to->function = as_utf8(&from->name);
    to->path = as_utf8(&from->file);
    if (from->lines.bytes)
        to->lines.bytes = (const uint8_t *)ca_bump_text(&memory, (const char *)from->lines.bytes,
                                                        from->lines.count);
    return to->function && to->path && copy_text(&from->name, &to->name) &&
           (from->file.object != 0 || copy_text(&from->file, &to->file)) &&
           (!from->lines.bytes || to->lines.bytes) && note_place(from, to);
}

/* Under the lock. */
static uint32_t find_or_add(const ca_py_code_t *code)
{
    uint32_t *bucket = have_bucket() ? bucket_of(buckets, bucket_count, code) : NULL;
    if (!bucket || *bucket != 0)
        return bucket ? *bucket : 0;
    ca_py_code_t *item = next_item(&codes);
    if (!item || !copy_code(code, item))
        return 0;
    *bucket = publish(&codes);
    const ca_py_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (called)
        called->code(*bucket, item->function, item->path);
    return *bucket;
}

uint32_t ca_py_code_add(const ca_py_code_t *code)
{
    ca_lock_take(&lock);
    uint32_t number = find_or_add(code);
    ca_lock_drop(&lock);
    return number;
}

const ca_py_code_t *ca_py_code_of(uint32_t number)
{
    return item_of(&codes, number);
}

uint32_t ca_py_code_put(const char *function, const char *path)
{
    const ca_py_code_t code = {
        .name = {.width = 1, .length = (uint32_t)strlen(function), .data = function},
        .file = {.width = 1, .length = (uint32_t)strlen(path), .data = path},
    };
    ca_lock_take(&lock);
    uint32_t before = atomic_load(&codes.count), number = find_or_add(&code);
    if (number > before) { /* it is UTF-8 already */
        ca_py_code_t *item = item_of(&codes, number);
        item->function = item->name.data;
        item->path = item->file.data;
    }
    ca_lock_drop(&lock);
    return number;
}

/* --- sites ------------------------------------------------------------------------------------ */

/* Under the lock. */
static uint32_t find_or_add_site(uint32_t code, uint32_t offset)
{
    ca_py_site_t *item = next_item(&sites);
    uint32_t known = atomic_load_explicit(&sites.count, memory_order_relaxed);
    if (!item)
        return 0;
    size_t number = ca_intern(&places, code, offset);
    if (places.failed) {
        places.failed = false;
        return 0;
    }
    if (number < known)
        return (uint32_t)number + 1;
    const ca_py_table_t *lines = &((const ca_py_code_t *)item_of(&codes, code))->lines;
    *item = (ca_py_site_t){code, offset, lines->bytes ? ca_py_line(lines, offset) : offset};
    publish(&sites);
    const ca_py_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (called)
        called->site(known + 1, code, item->line);
    return known + 1;
}

uint32_t ca_py_site_add(uint32_t code, uint32_t offset)
{
    ca_lock_take(&lock);
    uint32_t number = find_or_add_site(code, offset);
    ca_lock_drop(&lock);
    return number;
}

const ca_py_site_t *ca_py_site_of(uint32_t number)
{
    bool known = number != 0 && number <= atomic_load_explicit(&sites.count, memory_order_acquire);
    return known ? item_of(&sites, number) : NULL;
}

/* --- others ----------------------------------------------------------------------------------- */

void ca_py_listen(const ca_py_listener_t *called)
{
    atomic_store(&listener, called);
}

void ca_py_notify_all(const ca_py_listener_t *called)
{
    uint32_t code_count = atomic_load_explicit(&codes.count, memory_order_acquire);
    for (uint32_t number = 1; number <= code_count; number++) {
        const ca_py_code_t *code = item_of(&codes, number);
        called->code(number, code->function, code->path);
    }
    uint32_t site_count = atomic_load_explicit(&sites.count, memory_order_acquire);
    for (uint32_t number = 1; number <= site_count; number++) {
        const ca_py_site_t *site = item_of(&sites, number);
        called->site(number, site->code, site->line);
    }
}

void ca_py_codes_reset_after_fork(void)
{
    /* What the parent mapped stays mapped: another thread may have been adding to it. */
    ca_lock_init(&lock, CA_RANK_STACKS);
    memset(code_pages, 0, sizeof code_pages);
    memset(site_pages, 0, sizeof site_pages);
    atomic_store(&codes.count, 0);
    atomic_store(&sites.count, 0);
    memory = (ca_bump_t){0};
    buckets = NULL;
    bucket_count = 0;
    places = (ca_intern_t){0};
    memset(files, 0, sizeof files);
}
