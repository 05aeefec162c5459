/* Bounded text building and the escaping of what a user's environment may hold. */
#include "config/text.h"

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
        size_t room = text->bytes - text->length - 1;
        size_t taken = length < room ? length : room;
        memcpy(text->buffer + text->length, piece, taken);
        text->buffer[text->length + taken] = '\0';
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

/* Bytes of the character that starts here, 0 where it is a control character or not UTF-8. */
static size_t character_bytes(const unsigned char *at, size_t left)
{
    if (at[0] < 0x80)
        return at[0] >= 0x20 && at[0] != 0x7f;

    size_t bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || bytes > left)
        return 0;
    uint32_t code = at[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
    bool control = code < 0xa0 || code == 0x2028 || code == 0x2029;
    bool surrogate = code >= 0xd800 && code < 0xe000;
    return overlong || control || surrogate || code > 0x10ffff ? 0 : bytes;
}

void ca_text_escape(ca_text_t *text, const char *piece, size_t length, size_t most)
{
    size_t written = 0;
    size_t whole = 0; /* where the text may be cut with room for the dots */
    size_t start = text->length;

    for (size_t i = 0; i < length;) {
        size_t bytes = character_bytes((const unsigned char *)piece + i, length - i);
        char code[8];
        const char *shown = piece + i;
        size_t shown_bytes = bytes;
        if (bytes == 0) {
            bytes = 1;
            shown_bytes = 4;
            snprintf(code, sizeof code, "\\x%02x", (unsigned char)piece[i]);
            shown = code;
        }
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
        i += bytes;
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
