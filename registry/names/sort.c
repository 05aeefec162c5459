/* Heap sort: never slow, and no memory but one element on the stack. */
#include "registry/names/sort.h"

#include <string.h>

typedef struct sort {
    char *base;
    size_t bytes;
    ca_before_t *before;
} sort_t;

static char *element(const sort_t *sort, size_t index)
{
    return sort->base + index * sort->bytes;
}

/* Puts `moved`, which is none of the elements, where it belongs at `at` or below. */
static void sift_down(const sort_t *sort, const char *moved, size_t at, size_t count)
{
    for (size_t child; (child = at * 2 + 1) < count; at = child) {
        child += child + 1 < count && sort->before(element(sort, child), element(sort, child + 1));
        if (!sort->before(moved, element(sort, child)))
            break;
        memcpy(element(sort, at), element(sort, child), sort->bytes);
    }
    memcpy(element(sort, at), moved, sort->bytes);
}

void ca_sort(void *elements, size_t count, size_t element_bytes, ca_before_t *before)
{
    sort_t sort = {elements, element_bytes, before};
    char moved[CA_SORT_MOST];
    for (size_t i = count / 2; i-- > 0;) {
        memcpy(moved, element(&sort, i), element_bytes);
        sift_down(&sort, moved, i, count);
    }
    for (size_t end = count; end-- > 1;) {
        memcpy(moved, element(&sort, end), element_bytes);
        memcpy(element(&sort, end), elements, element_bytes);
        sift_down(&sort, moved, 0, end);
    }
}
