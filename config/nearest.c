/* "Did you mean": the edit distance between a mistyped key and the known ones. */
#include "config/values.h"

#include <string.h>

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

static char fold(char c)
{
    if (c == '-')
        return '_';
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static bool same_start(const char *a, const char *b, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (fold(a[i]) != fold(b[i]))
            return false;
    return true;
}

/* Insertions, deletions, changes and swaps of neighbours between two short words; WORD_MAX where
 * their lengths alone tell that there are more than NEAR. */
#define WORD_MAX 32
#define NEAR 2
static size_t distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][WORD_MAX + 1];
    if (a_length > WORD_MAX || b_length > WORD_MAX || a_length > b_length + NEAR ||
        b_length > a_length + NEAR)
        return WORD_MAX;
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *second = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            bool same = fold(a[i - 1]) == fold(b[j - 1]);
            row[j] = smallest(above[j] + 1, row[j - 1] + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]) && second[j - 2] + 1 < row[j])
                row[j] = second[j - 2] + 1;
        }
    }
    return rows[a_length % 3][b_length];
}

const char *ca_option_nearest(const char *key, size_t key_length)
{
    const char *best = NULL;
    size_t best_score = 4;
    for (size_t i = 0; i < ca_option_count; i++) {
        const char *name = ca_option_table[i].name;
        size_t length = strlen(name);
        size_t shorter = key_length < length ? key_length : length;
        size_t score = distance(key, key_length, name, length);
        if (score > NEAR || score >= shorter) {
            bool prefix = shorter >= 2 && same_start(key, name, shorter);
            score = prefix ? 3 : 4;
        }
        if (score < best_score) {
            best_score = score;
            best = name;
        }
    }
    return best;
}
