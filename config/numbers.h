/* Sizes, durations and whole numbers as text. Reading returns 0, -EINVAL (not understood) or
 * -ERANGE (does not fit); integers alone, and no locale. */
#ifndef CA_CONFIG_NUMBERS_H
#define CA_CONFIG_NUMBERS_H

#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* `512`, `4K`, `64MiB`, `1.5GB`, `0x1000`, `inf` (SIZE_MAX); K is 1024. In bytes. */
int ca_size_parse(const char *text, size_t length, uint64_t *bytes);

/* `80%`: whole ones from 1 to 100. Part of 100. */
int ca_percent_parse(const char *text, size_t length, size_t *part, size_t *of);

/* `1/4`: above 0, up to the whole, of at most CA_PARTS_MAX parts. */
#define CA_PARTS_MAX 1024
int ca_fraction_parse(const char *text, size_t length, size_t *part, size_t *of);

/* `10ms`, `1.5s`, `inf` (UINT64_MAX). In nanoseconds. A unit is required: what a bare 10 means is a
 * guess that goes wrong by a factor of 1000. */
int ca_duration_parse(const char *text, size_t length, uint64_t *nanoseconds);

/* Up to UINT_MAX, decimal or 0x. */
int ca_uint_parse(const char *text, size_t length, uint64_t *value);

/* In the largest unit that shows it exactly, so that it is read back to the same value. */
void ca_size_print(uint64_t bytes, ca_text_t *out);
void ca_duration_print(uint64_t nanoseconds, ca_text_t *out);

/* Whether the text is this word, ASCII case aside. */
bool ca_word_same(const char *text, size_t length, const char *word);

#endif
