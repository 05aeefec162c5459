/* Python's pickle, protocol 2, as far as dicts, lists, strings, numbers, booleans and pairs go. A
 * value is written where it belongs: pushed by one of these, then put into what is around it.
 *
 *   ca_pickle_dict(p); ca_pickle_text(p, "a"); ca_pickle_number(p, 1); ca_pickle_set(p);
 *
 * Strings that come again are references. Must be UTF-8 there: what is not, and control characters,
 * become \xNN. No values but these, so that reading one runs no code. */
#ifndef CA_REGISTRY_REPORT_PICKLE_H
#define CA_REGISTRY_REPORT_PICKLE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/out.h"
#include "registry/stack/intern.h"

typedef struct ca_pickle {
    ca_out_t *out;
    ca_intern_t texts;  /* with even references */
    ca_intern_t values; /* with odd ones */
} ca_pickle_t;

/* `pickle` is all zero. */
void ca_pickle_begin(ca_pickle_t *pickle, ca_out_t *out);
/* Without memory for its tables the output has failed with ENOMEM. */
void ca_pickle_end(ca_pickle_t *pickle);

void ca_pickle_dict(ca_pickle_t *pickle);
void ca_pickle_list(ca_pickle_t *pickle);
void ca_pickle_text(ca_pickle_t *pickle, const char *text);
void ca_pickle_number(ca_pickle_t *pickle, uint64_t number);
void ca_pickle_bool(ca_pickle_t *pickle, bool value);
void ca_pickle_none(ca_pickle_t *pickle);
void ca_pickle_pair(ca_pickle_t *pickle); /* of the two values pushed last */

/* Puts the value pushed last into the dict below it, under the key in between. */
void ca_pickle_set(ca_pickle_t *pickle);
/* The same, for the list below it. */
void ca_pickle_append(ca_pickle_t *pickle);

/* Both at once, for dicts of plain values. */
void ca_pickle_set_text(ca_pickle_t *pickle, const char *key, const char *text);
void ca_pickle_set_number(ca_pickle_t *pickle, const char *key, uint64_t number);

/* A value that is known by `identity`, an address: true pushes the one that was kept. False where
 * none was: the caller pushes it and calls ca_pickle_keep. */
bool ca_pickle_again(ca_pickle_t *pickle, const void *identity);
void ca_pickle_keep(ca_pickle_t *pickle, const void *identity);

#endif
