/* Lane D, watching cuIpcGetMemHandle: memory that other processes open.
 *
 * The driver's handle is of its whole allocation, with us of the whole segment, and opens the base
 * of that. Programs that ask for the address range, export its base and pass the offset on (UCX,
 * NCCL, Open MPI) need no more than this. One that takes it for granted that its pointer is such a
 * base is right only where the block has a segment of its own: so that is what blocks get, large
 * ones, once the program was seen to export an interior pointer.
 *
 * From the first handle on the memory stays as it is: see pool/export.h. */
#include "config/log.h"
#include "config/options.h"
#include "pool/export.h"
#include "shim/driver_table.h"
#include "shim/life.h"

#define ABOUT                                                                                      \
    "an IPC handle of memory inside a segment opens the segment's base in the other process, "     \
    "which must add the offset (cuMemGetAddressRange tells it)"

static void made_of_interior(void)
{
    if (ca_options.ipc == CA_IPC_DEDICATED) {
        ca_warn_once(ABOUT "; with ipc:dedicated that is so for allocations below 2M, and where "
                           "memory is short");
        return;
    }
    ca_pool_dedicate(true);
    ca_warn_once(ABOUT "; set ipc:dedicated to give allocations of 2M and more handles of their "
                       "own, as new ones have from now on");
}

CA_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CA_REAL(cuIpcGetMemHandle);
    CUresult code = real(handle, address);
    /* Not before: what is refused, nobody can open. */
    if (code == CUDA_SUCCESS && ca_life_active() && ca_pool_export(address) == CA_EXPORT_INTERIOR)
        made_of_interior();
    return code;
}
