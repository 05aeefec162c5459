/* See unseen.h. */
#include "shim/cuda/unseen.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mutation.h"
#include "pool/fence/order.h"
#include "shim/cuda/bindings.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/libraries.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/seen.h"

/* By the beginnings of their names. What they submit, or let a device reach, comes by no entry
 * point of the driver's that we wrap. Frameworks link some of them and do without in most programs
 * (PyTorch's wheels cuFile, CUPTI and NVSHMEM): of those that were there before the first context
 * only what is `linked` counts, or where the `device` is there by which it works. NVSHMEM reaches
 * memory that it allocates itself, or by libibverbs; CUPTI that works for a tool is opened by it.
 */
static const struct {
    const char *begins, *why;
    bool linked;
    const char *device;
} libraries[] = {
    {"libcupti.so", "CUPTI is loaded", false, NULL},
    {"libibverbs.so", "libibverbs is loaded: a network device may reach the memory", true, NULL},
    {"libgdrapi.so", "GDRCopy is loaded: the host may reach the memory", true, NULL},
    {"libcufile.so", "cuFile is loaded: a storage device may reach the memory", false,
     "/dev/nvidia-fs0"},
    {"libnvshmem", "NVSHMEM is loaded: other processes may reach the memory", false, NULL},
};
#define LIBRARIES (sizeof(libraries) / sizeof(libraries[0]))
#define DRIVER "libcuda.so"

/* Those that the runtimes ask for, and that a run on a GPU has shown to submit nothing unseen
 * (tests/gpu: the fact order_seen lists both). None has been shown yet. */
static const CUuuid known_tables[] = {
    {{0}},
};

static atomic_flag scanning = ATOMIC_FLAG_INIT;
static bool
    linked; /* what was there before the first context has been seen; for the thread that looks */
static bool seen[LIBRARIES];

static bool ended(void)
{
    return atomic_load_explicit(&ca_order_current, memory_order_relaxed) == CA_ORDER_OFF ||
           CA_MUTATED(order_unseen);
}

static void end(const char *why)
{
    if (!ended())
        ca_order_end(why);
}

/* --- libraries ----------------------------------------------------------------------------------
 */

static void note_library(size_t i)
{
    bool was_there = !linked || seen[i];

    seen[i] |= !linked;
    if (!was_there || libraries[i].linked ||
        (libraries[i].device && access(libraries[i].device, F_OK) == 0))
        end(libraries[i].why);
}

static void check_library(const char *name, size_t length, void *drivers)
{
    for (size_t i = 0; i < LIBRARIES; i++)
        if (ca_library_begins(name, length, libraries[i].begins))
            note_library(i);
    if (ca_library_begins(name, length, DRIVER))
        ++*(unsigned *)drivers;
}

static void check_all(void)
{
    unsigned drivers = 0;
    if (getenv("CUDA_INJECTION64_PATH"))
        end("CUDA_INJECTION64_PATH is set");
    ca_libraries_each(check_library, &drivers);
    if (drivers > 1)
        end("the driver is loaded twice, by dlmopen");
    linked = true;
}

void ca_unseen_scan(void)
{
    bool changed = false;
    if (ended())
        return;
    /* Another thread is at it, or this one was, below a signal handler. */
    if (atomic_flag_test_and_set(&scanning))
        return;
    if (!ca_hooks_in_place())
        end("the library was opened by the program: its submissions are not seen");
    else if (ca_bindings_past_us(&changed))
        end("a module calls the driver past this library, by RTLD_DEEPBIND");
    if (changed)
        check_all();
    atomic_flag_clear(&scanning);
}

/* --- contexts and devices -----------------------------------------------------------------------
 */

void ca_unseen_context(CUcontext same)
{
    for (ca_context_t *one = ended() ? NULL : ca_context_next(NULL); one;
         one = ca_context_next(one))
        if (atomic_load(&one->state) != CA_CONTEXT_RETIRED && atomic_load(&one->handle) != same)
            end("there is a second context");
}

void ca_unseen_device(CUdevice device)
{
    static const CUdevice_attribute attributes[] = {
        CU_DEVICE_ATTRIBUTE_INTEGRATED,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    };
    __typeof__(cuDeviceGetAttribute) *ask = ca_driver()->cuDeviceGetAttribute;
    if (ended())
        return;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        int value = 1;
        if (!ask || ask(&value, attributes[i], device) != CUDA_SUCCESS || value)
            end("the host reaches the device's memory, too, or nobody can tell");
    }
}

/* --- functions and graphs -----------------------------------------------------------------------
 */

void ca_unseen_table(const CUuuid *id)
{
    ca_seen_table(id);
    for (size_t i = 0; id && i + 1 < sizeof(known_tables) / sizeof(known_tables[0]); i++)
        if (memcmp(id, &known_tables[i], sizeof *id) == 0)
            return;
    end("cuGetExportTable hands out functions without names");
}

void ca_unseen_graph(cuuint64_t flags)
{
    enum { DEVICE_LAUNCH = 4 }; /* CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, of CUDA 12.0 */
    if (flags & DEVICE_LAUNCH)
        end("the device may launch graphs");
}
