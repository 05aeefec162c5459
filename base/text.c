/* Bounded text building and the escaping of what a user's environment may hold. */
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void ca_text_init(ca_text_t *text, char *buffer, size_t bytes)
{
    text->buffer = buffer;
    text->bytes = bytes;
    text->length = 0;
    if (bytes)
        buffer[0] = '\0';
}

void ca_text_add(ca_text_t *text, const char *piece, size_t length)
{
    if (text->length < text->bytes) {
        size_t space = text->bytes - text->length - 1;
        size_t copied = length < space ? length : space;
        memcpy(text->buffer + text->length, piece, copied);
        text->buffer[text->length + copied] = '\0';
    }
    text->length += length;
}

void ca_text_vprintf(ca_text_t *text, const char *format, va_list args)
{
    bool full = text->length >= text->bytes;
    int length = vsnprintf(full ? NULL : text->buffer + text->length,
                           full ? 0 : text->bytes - text->length, format, args);
    if (length > 0)
        text->length += (size_t)length;
}

void ca_text_printf(ca_text_t *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ca_text_vprintf(text, format, args);
    va_end(args);
}

size_t ca_text_decode(const char *text, size_t left, uint32_t *code)
{
    const unsigned char *at = (const unsigned char *)text;
    if (left == 0)
        return 0;
    *code = at[0];
    if (at[0] < 0x80)
        return 1;
    size_t bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || bytes > left)
        return 0;
    *code = at[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (at[i] & 0x3fu);
    }
    bool overlong = (bytes == 3 && *code < 0x800) || (bytes == 4 && *code < 0x10000);
    bool surrogate = *code >= 0xd800 && *code < 0xe000;
    return overlong || surrogate || *code > 0x10ffff ? 0 : bytes;
}

/* Bytes of the character that starts here, 0 where it is a control character or not UTF-8. */
static size_t character_bytes(const char *at, size_t left)
{
    uint32_t code = 0;
    size_t bytes = ca_text_decode(at, left, &code);
    bool control = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029;
    return control ? 0 : bytes;
}

size_t ca_text_escape_next(const char *piece, size_t length, char shown[5])
{
    static const char digits[] = "0123456789abcdef";
    size_t bytes = character_bytes(piece, length);
    if (bytes == 0) {
        unsigned char code = (unsigned char)*piece;
        memcpy(shown, (char[]){'\\', 'x', digits[code >> 4], digits[code & 15], '\0'}, 5);
        return 1;
    }
    memcpy(shown, piece, bytes);
    shown[bytes] = '\0';
    return bytes;
}

void ca_text_escape(ca_text_t *text, const char *piece, size_t length, size_t most)
{
    size_t written = 0;
    size_t whole = 0; /* where the text may be cut with room for the dots */
    size_t start = text->length;

    for (size_t i = 0; i < length;) {
        char shown[5];
        i += ca_text_escape_next(piece + i, length - i, shown);
        size_t shown_bytes = strlen(shown);
        if (written + shown_bytes > most) {
            if (most < 3)
                return;
            text->length = start + whole;
            ca_text_add(text, "...", 3);
            return;
        }
        ca_text_add(text, shown, shown_bytes);
        written += shown_bytes;
        if (written + 3 <= most)
            whole = written;
    }
}

void ca_text_mark_cut(ca_text_t *text)
{
    if (text->length < text->bytes || text->bytes < 4)
        return;
    size_t end = text->bytes - 4;
    while (end > 0 && ((unsigned char)text->buffer[end] & 0xc0) == 0x80)
        end--;
    memcpy(text->buffer + end, "...", 4);
    text->length = end + 3;
}
