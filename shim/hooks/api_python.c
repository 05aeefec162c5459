/* What python/cachealloc cannot do itself: drop a reference of Python's from C.
 *
 * A function of Python's that C calls (a ctypes callback) loses the exception that is being raised,
 * if there is one; a capsule that is refused, for instance, is dropped with the reason set. And
 * after the interpreter has ended there is nothing to call. Dropping a reference in C has neither
 * problem: what the object then does in its __del__ keeps exceptions apart. */
#include "include/cachealloc.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "shim/hooks/api_struct.h"

static cachealloc_python_t python; /* written once, before `known` */
static atomic_bool known;
static atomic_flag claimed = ATOMIC_FLAG_INIT;

static const char tensor_name[] = "dltensor";

/* The head of a tensor, as DLPack's DLManagedTensor has it. */
typedef struct tensor {
    char description[48]; /* DLTensor */
    void *object;         /* manager_ctx: the Python object that holds all of it */
    void (*deleter)(struct tensor *tensor);
} tensor_t;

_Static_assert(offsetof(tensor_t, object) == 48 && sizeof(tensor_t) == 64, "DLPack's layout");

/* From any thread, with the interpreter's lock or without. While the interpreter ends it counts as
 * not initialised, and the thread that ends it still drops what its modules held. */
static void drop(void *object)
{
    int saved = errno;
    if (python.is_initialized() || python.this_thread()) {
        int state = python.ensure();
        python.drop(object);
        python.release(state);
    }
    errno = saved;
}

static void delete_tensor(void *tensor)
{
    drop(((tensor_t *)tensor)->object);
}

/* The destructor of a capsule. Code that took the tensor out of it has given it another name. */
static void end_capsule(void *capsule)
{
    if (python.is_capsule(capsule, tensor_name)) {
        tensor_t *tensor = python.content(capsule, tensor_name);
        tensor->deleter(tensor);
    }
}

static void delete_registered(void *ptr, size_t bytes, void *object)
{
    (void)ptr, (void)bytes;
    drop(object);
}

CA_PUBLIC int cachealloc_python(cachealloc_python_t *interface)
{
    if (!interface || interface->size < sizeof *interface || !interface->is_initialized ||
        !interface->this_thread || !interface->ensure || !interface->release || !interface->drop ||
        !interface->is_capsule || !interface->content)
        return EINVAL;
    if (!atomic_flag_test_and_set(&claimed)) {
        python = *interface;
        atomic_store_explicit(&known, true, memory_order_release);
    }
    if (!atomic_load_explicit(&known, memory_order_acquire))
        return EBUSY; /* another thread writes it */
    interface->tensor_name = tensor_name;
    interface->delete_tensor = delete_tensor;
    interface->end_capsule = end_capsule;
    interface->delete_registered = delete_registered;
    return 0;
}
