/* Sorting in place: qsort takes memory from the host's heap. */
#ifndef CA_REGISTRY_NAMES_SORT_H
#define CA_REGISTRY_NAMES_SORT_H

#include <stdbool.h>
#include <stddef.h>

#define CA_SORT_MOST 256 /* bytes of an element */

/* Whether `a` belongs before `b`. */
typedef bool ca_before_t(const void *a, const void *b);

/* Not stable: elements of which neither belongs before the other come in any order. */
void ca_sort(void *elements, size_t count, size_t element_bytes, ca_before_t *before);

#endif
