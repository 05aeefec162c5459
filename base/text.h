/* Text put together in a caller's buffer: appended piece by piece, never past the end, always
 * terminated, and counting the length that it would have had. No heap, no locale. */
#ifndef CA_BASE_TEXT_H
#define CA_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ca_text {
    char *buffer;
    size_t bytes;  /* of the buffer, its NUL included; may be 0 */
    size_t length; /* what was appended; the text was cut where this is not below `bytes` */
} ca_text_t;

void ca_text_init(ca_text_t *text, char *buffer, size_t bytes);
void ca_text_add(ca_text_t *text, const char *piece, size_t length);
void ca_text_printf(ca_text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ca_text_vprintf(ca_text_t *text, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Reads one UTF-8 character. Its bytes, or 0 where there is none: `left` is 0, or these bytes are
 * not UTF-8. */
size_t ca_text_decode(const char *at, size_t left, uint32_t *code);

/* Appends bytes of unknown origin so that they are safe to show: control characters and what is not
 * UTF-8 become \xNN. At most `most` bytes are appended; a longer one ends in `...`. Applying it
 * twice changes nothing. */
void ca_text_escape(ca_text_t *text, const char *piece, size_t length, size_t most);

/* One step of that: what stands for the first character of `piece` (not empty), a NUL behind it.
 * Returns how many bytes of `piece` that was. */
size_t ca_text_escape_next(const char *piece, size_t length, char shown[5]);

/* Where the text was cut: ends it in `...`, at the border of a character. */
void ca_text_mark_cut(ca_text_t *text);

#endif
