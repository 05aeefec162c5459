/* Heap sort: never slow, and no memory but one element on the stack. */
#include "registry/report/sort.h"

#include <string.h>

typedef struct heap {
    char *base;
    size_t bytes;
    ca_before_t *before;
} heap_t;

static void swap(const heap_t *heap, size_t a, size_t b)
{
    char kept[CA_SORT_MOST];
    memcpy(kept, heap->base + a * heap->bytes, heap->bytes);
    memcpy(heap->base + a * heap->bytes, heap->base + b * heap->bytes, heap->bytes);
    memcpy(heap->base + b * heap->bytes, kept, heap->bytes);
}

static bool is_before(const heap_t *heap, size_t a, size_t b)
{
    return heap->before(heap->base + a * heap->bytes, heap->base + b * heap->bytes);
}

static void sift_down(const heap_t *heap, size_t at, size_t count)
{
    for (size_t child = at * 2 + 1; child < count; child = at * 2 + 1) {
        if (child + 1 < count && is_before(heap, child, child + 1))
            child++;
        if (!is_before(heap, at, child))
            return;
        swap(heap, at, child);
        at = child;
    }
}

void ca_sort(void *elements, size_t count, size_t element_bytes, ca_before_t *before)
{
    heap_t heap = {elements, element_bytes, before};
    for (size_t i = count / 2; i-- > 0;)
        sift_down(&heap, i, count);
    for (size_t end = count; end-- > 1;) {
        swap(&heap, 0, end);
        sift_down(&heap, 0, end);
    }
}
