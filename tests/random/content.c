/* What a buffer holds, as a short list of extents: a pattern by number, one byte, a grid (a 2D set
 * inside a plain one), or nothing defined. A buffer's expected bytes are computed from it, so that
 * no second copy of the data is kept. */
#include "random.h"
#include <string.h>

static inline uint64_t pattern_word(uint32_t id, uint64_t index)
{
    return mix64(((uint64_t)id << 32) + index + 1);
}

static inline unsigned char byte_of(const extent_t *e, uint64_t i)
{
    uint64_t at = (uint64_t)((int64_t)i - e->base);
    switch (e->kind) {
    case PATTERN:
        return (unsigned char)(pattern_word(e->id, at / 8) >> (at % 8 * 8));
    case GRID:
        return (unsigned char)(at % e->pitch < e->width ? e->id : e->id >> 8);
    default:
        return (unsigned char)e->id;
    }
}

content_t content_of(extent_t one, uint64_t bytes)
{
    content_t c = {.n = 1};
    c.at[0] = one;
    c.at[0].end = bytes;
    return c;
}

/* Appends with the neighbours joined where they are one. */
static bool append(content_t *c, extent_t e)
{
    extent_t *last = c->n ? &c->at[c->n - 1] : NULL;
    if (last && last->kind == e.kind && last->id == e.id && last->pitch == e.pitch &&
        last->width == e.width && (last->base == e.base || e.kind == FILL || e.kind == UNDEFINED)) {
        last->end = e.end;
        return true;
    }
    if (c->n == MAX_EXTENTS)
        return false;
    c->at[c->n++] = e;
    return true;
}

/* The extents of `from` between two bytes, moved by `shift`. */
static bool append_part(content_t *c, const content_t *from, uint64_t start, uint64_t end,
                        int64_t shift)
{
    for (int i = 0; i < from->n && start < end; i++) {
        if (from->at[i].end <= start)
            continue;
        extent_t e = from->at[i];
        e.base += shift;
        start = e.end < end ? e.end : end;
        e.end = (uint64_t)((int64_t)start + shift);
        if (!append(c, e))
            return false;
    }
    return true;
}

bool content_copy(content_t *c, uint64_t start, uint64_t bytes, const content_t *from,
                  uint64_t from_start)
{
    content_t next = {0};
    uint64_t all = c->at[c->n - 1].end;
    if (!append_part(&next, c, 0, start, 0) ||
        !append_part(&next, from, from_start, from_start + bytes,
                     (int64_t)start - (int64_t)from_start) ||
        !append_part(&next, c, start + bytes, all, 0))
        return false;
    *c = next;
    return true;
}

bool content_put(content_t *c, uint64_t start, uint64_t bytes, extent_t piece)
{
    content_t one = content_of(piece, bytes);
    return content_copy(c, start, bytes, &one, 0);
}

bool content_defined(const content_t *c, uint64_t start, uint64_t bytes)
{
    uint64_t from = 0;
    for (int i = 0; i < c->n; from = c->at[i++].end)
        if (c->at[i].kind == UNDEFINED && from < start + bytes && c->at[i].end > start)
            return false;
    return true;
}

static const extent_t *extent_at(const content_t *c, uint64_t i)
{
    const extent_t *e = c->at;
    while (e->end <= i)
        e++;
    return e;
}

/* Bytes start .. start + n, which lie in one extent. */
static void write_part(const extent_t *e, uint64_t start, uint64_t n, unsigned char *out)
{
    if (e->kind == FILL) {
        memset(out, (int)e->id, n);
        return;
    }
    uint64_t i = 0;
    if (e->kind == PATTERN) {
        while (i < n && ((int64_t)(start + i) - e->base) % 8 != 0) {
            out[i] = byte_of(e, start + i);
            i++;
        }
        for (; i + 8 <= n; i += 8) {
            uint64_t word = pattern_word(e->id, (uint64_t)((int64_t)(start + i) - e->base) / 8);
            memcpy(out + i, &word, 8);
        }
    }
    for (; i < n; i++)
        out[i] = byte_of(e, start + i);
}

void content_write(const content_t *c, uint64_t start, uint64_t bytes, unsigned char *out)
{
    for (uint64_t i = 0; i < bytes;) {
        const extent_t *e = extent_at(c, start + i);
        uint64_t n = e->end - start - i < bytes - i ? e->end - start - i : bytes - i;
        write_part(e, start + i, n, out + i);
        i += n;
    }
}

int64_t content_check(const content_t *c, uint64_t start, uint64_t bytes, const unsigned char *data,
                      uint64_t *hash, int *expected)
{
    unsigned char want[1024];
    for (uint64_t i = 0; i < bytes;) {
        const extent_t *e = extent_at(c, start + i);
        uint64_t n = e->end - start - i < bytes - i ? e->end - start - i : bytes - i;
        if (n > sizeof(want))
            n = sizeof(want);
        if (e->kind != UNDEFINED) {
            write_part(e, start + i, n, want);
            if (memcmp(want, data + i, n) != 0) {
                uint64_t k = 0;
                while (k + 1 < n && want[k] == data[i + k])
                    k++;
                *expected = want[k];
                return (int64_t)(i + k);
            }
            for (uint64_t k = 0; k < n; k += 64) /* what was seen, thinned out */
                *hash = mix64(*hash + data[i + k]);
        }
        i += n;
    }
    return -1;
}
