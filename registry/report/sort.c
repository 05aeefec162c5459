/* Heap sort: never slow, and no memory but one element on the stack. */
#include "registry/report/sort.h"

#include <string.h>

typedef struct sort {
    char *base;
    size_t bytes;
    ca_before_t *before;
} sort_t;

static void swap(const sort_t *sort, size_t a, size_t b)
{
    char kept[CA_SORT_MOST];
    memcpy(kept, sort->base + a * sort->bytes, sort->bytes);
    memcpy(sort->base + a * sort->bytes, sort->base + b * sort->bytes, sort->bytes);
    memcpy(sort->base + b * sort->bytes, kept, sort->bytes);
}

static bool is_before(const sort_t *sort, size_t a, size_t b)
{
    return sort->before(sort->base + a * sort->bytes, sort->base + b * sort->bytes);
}

static void sift_down(const sort_t *sort, size_t at, size_t count)
{
    for (size_t child = at * 2 + 1; child < count; child = at * 2 + 1) {
        if (child + 1 < count && is_before(sort, child, child + 1))
            child++;
        if (!is_before(sort, at, child))
            return;
        swap(sort, at, child);
        at = child;
    }
}

void ca_sort(void *elements, size_t count, size_t element_bytes, ca_before_t *before)
{
    sort_t sort = {elements, element_bytes, before};
    for (size_t i = count / 2; i-- > 0;)
        sift_down(&sort, i, count);
    for (size_t end = count; end-- > 1;) {
        swap(&sort, 0, end);
        sift_down(&sort, 0, end);
    }
}
