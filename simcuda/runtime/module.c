/*
 * What nvcc's host code registers before main: fat binaries, and in them kernels and variables by
 * the address of their host shadow (crt/host_runtime.h declares these functions).
 *
 * Registering keeps names only and calls no driver. A fat binary becomes a driver library when the
 * first of its kernels or variables is asked for; libraries belong to no context (cuda.h,
 * cuLibraryLoadData), so a device reset does not concern this file. Unregistering comes from atexit
 * handlers, when the driver may have been closed: it forgets the names and calls nothing.
 *
 * One hash table from address to entry, one lock, never held across a driver call: two threads may
 * load the same library, and the second unloads its own.
 */
#include "rt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* What nvcc's host code hands over, as the toolkit's fatbinary_section.h declares it. Said again
 * here because that header comes with the compiler alone, and the simulator is built without. */
#define FATBINC_MAGIC 0x466243B1
typedef struct {
    int magic;
    int version;
    const unsigned long long *data;
    void *filename_or_fatbins;
} __fatBinC_Wrapper_t;

typedef struct {
    const void *image;
    CUlibrary library; /* NULL until used */
    bool managed_placed;
} fatbin_t;

typedef struct entry {
    struct entry *next;
    const void *key;  /* host shadow, or the handle of a kernel that was handed out */
    const char *name; /* lives in the program that registered it */
    fatbin_t *owner;
    enum { KERNEL, VARIABLE, MANAGED } what;
    CUkernel kernel;   /* KERNEL; NULL until used */
    size_t bytes;      /* VARIABLE, MANAGED */
    void **managed_at; /* MANAGED: where host code finds the address */
} entry_t;

#define BUCKETS 1024
static entry_t *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static entry_t **bucket(const void *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key * 0x9E3779B97F4A7C15u;
    return &table[h >> 54];
}

/* Lock held. */
static entry_t *find(const void *key)
{
    entry_t *e = *bucket(key);
    while (e != NULL && e->key != key)
        e = e->next;
    return e;
}

/* A later registration of one address wins: a library that was unloaded may have left it. */
static void add(entry_t what)
{
    entry_t *e = malloc(sizeof *e);
    if (e == NULL)
        return;
    *e = what;
    pthread_mutex_lock(&lock);
    entry_t **b = bucket(e->key);
    e->next = *b;
    *b = e;
    pthread_mutex_unlock(&lock);
}

/* --- from names to driver objects ------------------------------------------------------------- */

static cudaError_t library_of(fatbin_t *f, CUlibrary *out)
{
    pthread_mutex_lock(&lock);
    *out = f->library;
    pthread_mutex_unlock(&lock);
    if (*out != NULL)
        return cudaSuccess;

    CUlibrary fresh = NULL;
    RT_TRY(rt_err(rt_legacy.cuLibraryLoadData(&fresh, f->image, NULL, NULL, 0, NULL, NULL, 0)));
    pthread_mutex_lock(&lock);
    bool first = f->library == NULL;
    if (first)
        f->library = fresh;
    *out = f->library;
    pthread_mutex_unlock(&lock);
    if (!first)
        (void)rt_legacy.cuLibraryUnload(fresh);
    return cudaSuccess;
}

void rt_kernel_handed_out(CUkernel kernel, const char *name)
{
    pthread_mutex_lock(&lock);
    bool known = find(kernel) != NULL;
    pthread_mutex_unlock(&lock);
    if (!known)
        add((entry_t){.key = kernel, .name = name, .what = KERNEL, .kernel = kernel});
}

cudaError_t rt_kernel(const void *func, CUkernel *kernel)
{
    pthread_mutex_lock(&lock);
    entry_t *e = find(func);
    if (e == NULL || e->what != KERNEL) {
        pthread_mutex_unlock(&lock);
        return cudaErrorInvalidDeviceFunction;
    }
    *kernel = e->kernel;
    fatbin_t *owner = e->owner;
    const char *name = e->name;
    pthread_mutex_unlock(&lock);
    if (*kernel != NULL)
        return cudaSuccess;

    CUlibrary library;
    RT_TRY(library_of(owner, &library));
    RT_TRY(rt_err(rt_legacy.cuLibraryGetKernel(kernel, library, name)));
    pthread_mutex_lock(&lock);
    e = find(func);
    if (e != NULL)
        e->kernel = *kernel;
    pthread_mutex_unlock(&lock);
    rt_kernel_handed_out(*kernel, name);
    return cudaSuccess;
}

const char *rt_kernel_name(const void *func)
{
    pthread_mutex_lock(&lock);
    entry_t *e = find(func);
    const char *name = e != NULL && e->what == KERNEL ? e->name : NULL;
    pthread_mutex_unlock(&lock);
    return name;
}

cudaError_t rt_symbol(const void *symbol, CUdeviceptr *address, size_t *bytes)
{
    entry_t found = {0};
    pthread_mutex_lock(&lock);
    entry_t *e = find(symbol);
    if (e != NULL)
        found = *e;
    pthread_mutex_unlock(&lock);
    if (e == NULL || found.what == KERNEL)
        return cudaErrorInvalidSymbol;
    *bytes = found.bytes;
    if (found.what == MANAGED) {
        *address = rt_dev(*found.managed_at);
        return *address != 0 ? cudaSuccess : cudaErrorInvalidSymbol;
    }
    CUlibrary library;
    size_t driver_bytes = 0;
    RT_TRY(library_of(found.owner, &library));
    RT_TRY(rt_err(rt_legacy.cuLibraryGetGlobal(address, &driver_bytes, library, found.name)));
    if (driver_bytes >= found.bytes)
        return cudaSuccess;
    /* The simulated driver cannot read sizes from code, and every variable has the same. */
    fprintf(stderr, "simcuda: a variable of %zu bytes is not modelled: %s\n", found.bytes,
            found.name);
    return cudaErrorNotSupported;
}

/* A managed variable has its address before host code first touches it. It is plain zeroed memory:
 * the simulator has no device code that could look, and an initial value would have to be read from
 * the fat binary. */
static void place_managed(const entry_t *e)
{
    void *m = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m != MAP_FAILED)
        *e->managed_at = m;
}

/* --- what generated code calls ---------------------------------------------------------------- */

RT_EXPORT void **__cudaRegisterFatBinary(void *fat_cubin)
{
    const __fatBinC_Wrapper_t *w = fat_cubin;
    fatbin_t *f = calloc(1, sizeof *f);
    if (f != NULL)
        f->image = w->magic == FATBINC_MAGIC ? (const void *)w->data : fat_cubin;
    return (void **)f;
}

RT_EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

RT_EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    if (handle == NULL)
        return;
    fatbin_t *f = (fatbin_t *)handle;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (entry_t **at = &table[i]; *at != NULL;) {
            entry_t *e = *at;
            if (e->owner != f) {
                at = &e->next;
                continue;
            }
            *at = e->next;
            free(e);
        }
    pthread_mutex_unlock(&lock);
    free(f);
}

RT_EXPORT void __cudaRegisterFunction(void **handle, const char *host_fun, char *device_fun,
                                      const char *device_name, int thread_limit, uint3 *tid,
                                      uint3 *bid, dim3 *block_dim, dim3 *grid_dim, int *warp_size)
{
    (void)device_fun, (void)thread_limit, (void)tid, (void)bid, (void)block_dim, (void)grid_dim;
    (void)warp_size;
    add((entry_t){
        .key = host_fun, .name = device_name, .owner = (fatbin_t *)handle, .what = KERNEL});
}

RT_EXPORT void __cudaRegisterVar(void **handle, char *host_var, char *device_address,
                                 const char *device_name, int ext, size_t bytes, int constant,
                                 int global)
{
    (void)device_address, (void)ext, (void)constant, (void)global;
    add((entry_t){.key = host_var,
                  .name = device_name,
                  .owner = (fatbin_t *)handle,
                  .what = VARIABLE,
                  .bytes = bytes});
}

RT_EXPORT void __cudaRegisterManagedVar(void **handle, void **host_var, char *device_address,
                                        const char *device_name, int ext, size_t bytes,
                                        int constant, int global)
{
    (void)device_address, (void)ext, (void)constant, (void)global;
    add((entry_t){.key = host_var,
                  .name = device_name,
                  .owner = (fatbin_t *)handle,
                  .what = MANAGED,
                  .bytes = bytes,
                  .managed_at = host_var});
}

/* Generated code calls this once per module, before its first use of a managed variable, and keeps
 * the answer as "done". Symbols are then the address in it, so that is a key as well. */
RT_EXPORT char __cudaInitModule(void **handle)
{
    entry_t todo[64];
    size_t count = 0;
    fatbin_t *f = (fatbin_t *)handle;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS && !f->managed_placed; i++)
        for (entry_t *e = table[i]; e != NULL; e = e->next)
            if (e->owner == f && e->what == MANAGED && count < sizeof todo / sizeof todo[0])
                todo[count++] = *e;
    f->managed_placed = true;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < count; i++) {
        place_managed(&todo[i]);
        todo[i].key = *todo[i].managed_at;
        add(todo[i]);
    }
    return 1;
}

RT_FN(cudaGetSymbolAddress, (void **address, const void *symbol), address, symbol)
{
    RT_NEED(address);
    CUdeviceptr p = 0;
    size_t bytes;
    RT_TRY(rt_symbol(symbol, &p, &bytes));
    *address = (void *)(uintptr_t)p;
    return cudaSuccess;
}

RT_FN(cudaGetSymbolSize, (size_t * bytes, const void *symbol), bytes, symbol)
{
    RT_NEED(bytes);
    CUdeviceptr p = 0;
    return rt_symbol(symbol, &p, bytes);
}
