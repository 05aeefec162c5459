/* mmap and munmap for the targets, put in their place by the linker (--wrap): without this most of
 * an execution is the kernel's time for pages that the next one takes again. What is unmapped is
 * kept, poisoned until it is handed out again, full of zeros: so a use after the end is told as it
 * was before, and no execution sees what an earlier one left. */
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#define KEPT 64                   /* mappings that wait, and as many that are in use */
#define KEPT_LARGEST (256u << 10) /* to clear more costs more than new pages do */

void *__real_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t from);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t from);
int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);

typedef struct mapping {
    char *at;
    size_t bytes;
} mapping_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static mapping_t used[KEPT], idle[KEPT];

/* `bytes` at `at`, or at any address where that is NULL. */
static mapping_t *find(mapping_t *in, const void *at, size_t bytes)
{
    for (mapping_t *one = in; one < in + KEPT; one++)
        if (one->bytes == bytes && (!at || one->at == at))
            return one;
    return NULL;
}

/* The oldest one is forgotten: what stays mapped for good fills no place. */
static void note_used(mapping_t mapping)
{
    static size_t next;
    used[next++ % KEPT] = mapping;
}

/* A mapping that is given anything else is not handed out again. */
static void forget(const char *at, size_t bytes)
{
    for (mapping_t *one = used; at && one < used + KEPT; one++)
        if (one->bytes && one->at < at + bytes && at < one->at + one->bytes)
            *one = (mapping_t){0};
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t from)
{
    bool ours = !at && access == (PROT_READ | PROT_WRITE) && bytes > 0 && bytes <= KEPT_LARGEST &&
                flags == (MAP_PRIVATE | MAP_ANONYMOUS);
    pthread_mutex_lock(&mutex);
    mapping_t *again = ours ? find(idle, NULL, bytes) : NULL;
    void *memory;
    if (again) {
        memory = again->at;
        *again = (mapping_t){0};
        __asan_unpoison_memory_region(memory, bytes);
        memset(memory, 0, bytes);
    } else {
        forget(at, bytes);
        memory = __real_mmap(at, bytes, access, flags, fd, from);
    }
    if (ours && memory != MAP_FAILED)
        note_used((mapping_t){memory, bytes});
    pthread_mutex_unlock(&mutex);
    return memory;
}

int __wrap_munmap(void *at, size_t bytes)
{
    int rc = 0;
    pthread_mutex_lock(&mutex);
    mapping_t *one = at && bytes ? find(used, at, bytes) : NULL;
    mapping_t *place = one ? find(idle, NULL, 0) : NULL;
    if (place) {
        *place = *one;
        *one = (mapping_t){0};
        __asan_poison_memory_region(at, bytes);
    } else {
        forget(at, bytes);
        rc = __real_munmap(at, bytes);
    }
    pthread_mutex_unlock(&mutex);
    return rc;
}
