/* A consumer of DLPack that knows nothing of Python: it deletes a tensor in a thread of its own, or
 * when the process ends. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tensor {
    struct {
        void *data;
        int32_t device_type, device_id, ndim;
        struct {
            uint8_t code, bits;
            uint16_t lanes;
        } dtype;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } array;
    void *manager_ctx;
    void (*deleter)(struct tensor *tensor);
} tensor_t;

static tensor_t *kept;

#define PUBLIC __attribute__((visibility("default")))
PUBLIC void plugin_keep(tensor_t *tensor);
PUBLIC void plugin_delete(tensor_t *tensor);

void plugin_keep(tensor_t *tensor)
{
    kept = tensor;
}

static void *delete (void *tensor)
{
    ((tensor_t *)tensor)->deleter(tensor);
    return NULL;
}

void plugin_delete(tensor_t *tensor)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, delete, tensor) == 0)
        pthread_join(thread, NULL);
}

__attribute__((destructor)) static void at_end(void)
{
    if (kept)
        kept->deleter(kept);
}
