/* See expandable.h. */
#include "shim/upstream/expandable.h"
#include <stdatomic.h>
#include <stddef.h>
#include "base/log.h"
#include "base/mutation.h"
#include "config/options.h"
#include "pool/range/export.h"
#include "pool/range/range.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/libraries.h"

/* CUDA versions of drivers (cuDriverGetVersion) for which a run of tests/gpu on hardware has shown
 * that mapped memory behaves as ranges need it. There is none yet. */
static const int proven[] = {0};

/* Libraries that share memory by handles of cuIpcGetMemHandle, or reach it as peers, by the
 * beginnings of their names. Frameworks link NCCL and use it where there are several devices. */
static const struct {
    const char *begins, *why;
    bool several; /* it is used with several devices only */
} libraries[] = {
    {"libucp.so", "UCX is loaded", false},
    {"libuct.so", "UCX is loaded", false},
    {"libmpi.so", "MPI is loaded", false},
    {"libmpi_", "MPI is loaded", false},
    {"libmpich", "MPI is loaded", false},
    {"libfabric.so", "libfabric is loaded", false},
    {"libnccl.so", "NCCL is loaded, and there are several devices", true},
};

static _Atomic(const char *) sign; /* the reason that was found first */
static _Atomic bool on;            /* with `auto` a context has ranges */
static ca_libraries_seen_t seen;

static bool is_proven(void)
{
    int version = 0;
    if (CA_MUTATED(unproven_used))
        return true;
    if (!proven[0])
        return false;
    __typeof__(cuDriverGetVersion) *ask = ca_driver()->cuDriverGetVersion;
    if (!ask || ask(&version) != CUDA_SUCCESS)
        return false;
    for (size_t i = 0; i < sizeof(proven) / sizeof(proven[0]); i++)
        if (proven[i] == version)
            return true;
    return false;
}

static bool has_several_devices(void)
{
    __typeof__(cuDeviceGetCount) *ask = ca_driver()->cuDeviceGetCount;
    int count = 0;
    return !ask || ask(&count) != CUDA_SUCCESS || count > 1;
}

void ca_expandable_sign(const char *why)
{
    const char *none = NULL;
    if (!atomic_compare_exchange_strong(&sign, &none, why))
        return;
    if (!atomic_load(&on))
        return;
    ca_ranges_end();
    ca_info("expandable segments grow no more: %s", why);
}

static void check_library(const char *name, size_t length, void *none)
{
    (void)none;
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++)
        if (ca_library_begins(name, length, libraries[i].begins) &&
            (!libraries[i].several || has_several_devices()))
            ca_expandable_sign(libraries[i].why);
}

bool ca_expandable_may_grow(void)
{
    if (ca_options.expandable_segments != CA_EXPANDABLE_AUTO)
        return true;
    if (!atomic_load(&sign) && ca_libraries_changed(&seen))
        ca_libraries_each(check_library, NULL);
    return !atomic_load(&sign);
}

bool ca_expandable_wanted(void)
{
    if (ca_options.expandable_segments != CA_EXPANDABLE_AUTO)
        return ca_options.expandable_segments == CA_EXPANDABLE_TRUE;
    if (!is_proven())
        return false;
    atomic_store(&on, true); /* before the signs are checked */
    return ca_expandable_may_grow();
}

void ca_expandable_refused(const char *what)
{
    if (!CA_MUTATED(ipc_still_range)) {
        ca_pool_dedicate(true);
        ca_ranges_end();
    }
    ca_warn_once("%s is refused for memory of an expandable segment; from now on there are no new "
                 "ones, and allocations of 2M and more are the driver's own: set "
                 "expandable_segments:false where a program does not try again with new memory",
                 what);
}
