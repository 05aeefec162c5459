#include "shim/cuda/driver_table.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include "base/mem.h"
#include "base/mutation.h"
#include "pool/fence/order.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/submissions.h"

ca_driver_t *_Atomic ca_driver_published;

/* Stands for a driver that cannot be found at all (no memory for a table, no libcuda). */
static const ca_driver_t nothing;

typedef struct ca_wrapped {
    const char *symbol; /* the linker's name */
    const char *name;   /* the name asked of cuGetProcAddress */
    int version;        /* the first CUDA version that means this form */
    int per_thread;
    void *wrapper;
    size_t offset; /* of the real pointer in ca_driver_t */
} ca_wrapped_t;

#define ENTRY(symbol, name, version, per_thread)                                                   \
    {#symbol, name, version, per_thread, (void *)symbol, offsetof(ca_driver_t, symbol)},
#define NO_ENTRY(...)

/* First those that are always wanted. */
static const ca_wrapped_t wrapped[] = {
#define CA_DRIVER ENTRY
#define CA_SUBMISSION NO_ENTRY
#include "shim/hooks/hooks.def"
#define CA_DRIVER NO_ENTRY
#define CA_SUBMISSION(symbol, name, version, per_thread, ...)                                      \
    ENTRY(symbol, name, version, per_thread)
#include "shim/hooks/hooks.def"
};
#define WRAPPED_COUNT (sizeof(wrapped) / sizeof(wrapped[0]))

/* Those of the order of work are the last of them. */
enum {
    SUBMISSIONS_COUNT = 0
#define CA_DRIVER NO_ENTRY
#define CA_SUBMISSION(...) +1
#include "shim/hooks/hooks.def"
};

/* How many of `wrapped` look-ups are answered with. */
static size_t wanted_count(void)
{
    return ca_submissions_wanted() ? WRAPPED_COUNT : WRAPPED_COUNT - SUBMISSIONS_COUNT;
}

static void *real_of(const ca_driver_t *driver, const ca_wrapped_t *entry)
{
    void *real;
    memcpy(&real, (const char *)driver + entry->offset, sizeof(real));
    return real;
}

static bool is_ours(void *address)
{
    for (size_t i = 0; i < WRAPPED_COUNT; i++)
        if (wrapped[i].wrapper == address)
            return true;
    return false;
}

/* A look-up through a global handle may find our own export; that is not the real one. */
static void *look_up(void *handle, const char *symbol)
{
    void *address = ca_dlsym_call(handle, symbol);
    return is_ours(address) ? NULL : address;
}

typedef struct ca_used {
    const char *symbol;
    size_t offset; /* as in ca_wrapped_t */
} ca_used_t;

static const ca_used_t used[] = {
#define CA_DRIVER_USED(symbol) {#symbol, offsetof(ca_driver_t, symbol)},
#include "shim/hooks/hooks.def"
};

static void find(ca_driver_t *driver, void *handle, const char *symbol, size_t offset)
{
    void *real = look_up(handle, symbol);
    memcpy((char *)driver + offset, &real, sizeof(real));
}

static void fill(ca_driver_t *driver, void *handle)
{
    for (size_t i = 0; i < WRAPPED_COUNT; i++)
        find(driver, handle, wrapped[i].symbol, wrapped[i].offset);
    for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++)
        find(driver, handle, used[i].symbol, used[i].offset);
}

const ca_driver_t *ca_driver_resolve(void *handle)
{
    ca_driver_t *driver = atomic_load_explicit(&ca_driver_published, memory_order_acquire);
    if (driver)
        return driver;

    /* The reference that this dlopen takes is kept: after a dlclose by its other users the cached
     * pointers would dangle. */
    void *libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (libcuda)
        handle = libcuda;
    if (!handle)
        handle = RTLD_NEXT;
    if (libcuda && CA_MUTATED(driver_not_kept))
        dlclose(libcuda);

    driver = ca_mem_map(sizeof(*driver));
    if (!driver)
        return &nothing;
    fill(driver, handle);
    if (!driver->cuMemAlloc_v2) {
        /* Not a driver: the program asked another library for a name that begins like ours. */
        ca_mem_unmap(driver, sizeof(*driver));
        return &nothing;
    }

    /* Every wrapper comes by here before it looks. */
    if (!ca_submissions_wanted())
        ca_order_end(NULL);
    ca_driver_t *expected = NULL;
    if (!atomic_compare_exchange_strong(&ca_driver_published, &expected, driver)) {
        ca_mem_unmap(driver, sizeof(*driver));
        driver = expected;
    }
    return driver;
}

const ca_driver_t *ca_driver_open(void)
{
    const ca_driver_t *driver = ca_driver();
    if (driver->cuMemAlloc_v2)
        return driver;
    void *libcuda = dlopen("libcuda.so.1", RTLD_LAZY); /* kept open, as in ca_driver_resolve */
    return libcuda ? ca_driver_resolve(libcuda) : driver;
}

bool ca_driver_wraps(const char *symbol)
{
    for (size_t i = 0, count = wanted_count(); i < count; i++)
        if (strcmp(wrapped[i].symbol, symbol) == 0)
            return true;
    return false;
}

void *ca_driver_swap(void *address)
{
    const ca_driver_t *driver = ca_driver();
    for (size_t i = 0, count = wanted_count(); i < count; i++)
        if (address && real_of(driver, &wrapped[i]) == address)
            return wrapped[i].wrapper;
    return address;
}

/* Our wrapper of the form that was asked for, or NULL: not where it is newer than the headers that
 * we were built with, since it may have other parameters. */
static void *wrapper_of(const char *name, int version, cuuint64_t flags)
{
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const ca_wrapped_t *best = NULL;
    if (version > CUDA_VERSION)
        return NULL;
    for (size_t i = 0, count = wanted_count(); i < count; i++) {
        const ca_wrapped_t *entry = &wrapped[i];
        if (strcmp(entry->name, name) != 0 || entry->version > version)
            continue;
        /* Functions without a per-thread twin are answered with their only form. */
        if (entry->per_thread > per_thread)
            continue;
        if (!best || entry->per_thread > best->per_thread ||
            (entry->per_thread == best->per_thread && entry->version > best->version))
            best = entry;
    }
    /* Only when the form is known to the real driver too: our wrapper calls that one. */
    return best && real_of(ca_driver(), best) ? best->wrapper : NULL;
}

void *ca_driver_swap_query(void *address, const char *name, int version, cuuint64_t flags)
{
    void *swapped = ca_driver_swap(address);
    if (swapped != address || is_ours(address))
        return swapped;
    return name ? wrapper_of(name, version, flags) : NULL;
}
