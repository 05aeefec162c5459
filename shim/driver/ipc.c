/* Lane D, cuIpcGetMemHandle and cuMemGetHandleForAddressRange: memory that other processes open,
 * and devices on the bus.
 *
 * The driver's handle is of its whole allocation, with us of the whole segment, and opens the base
 * of that. Programs that ask for the address range, export its base and pass the offset on (UCX,
 * NCCL, Open MPI) need no more than this. One that takes it for granted that its pointer is such a
 * base (PyTorch) is right only where its block begins a segment: any other gets no handle, for it
 * would lead to somebody else's bytes. What may be exported so begins one: see pool/range/export.h,
 * and from the first refusal on every large block has a segment of its own.
 *
 * From the first handle on the memory stays as it is: see there, too. */
#include "base/log.h"
#include "config/options.h"
#include "pool/range/export.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/expandable.h"
#include "shim/life/life.h"

/* What the driver answers for memory that it cannot export, memory of its pools for one. */
static CUresult refuse(void)
{
    ca_pool_dedicate(true);
    ca_warn_once(
        "an IPC handle of memory inside a segment is refused: it would open the segment's "
        "base in the other process%s",
        ca_options.ipc == CA_IPC_DEDICATED
            ? "; with ipc:dedicated that is so for allocations below 2M, and where memory is "
              "short (cuMemGetAddressRange tells a base that has a handle)"
            : "; set ipc:dedicated to give allocations of 2M and more handles of their own, "
              "as new ones have from now on (cuMemGetAddressRange tells a base that has one)");
    return CUDA_ERROR_INVALID_VALUE;
}

/* Memory of a range has none, wherever in it the address lies. One that a driver gives all the same
 * is not of the allocation. */
static CUresult refuse_range(CUresult code)
{
    ca_expandable_refused("an IPC handle");
    return code == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : code;
}

CA_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CA_REAL(cuIpcGetMemHandle);
    if (!ca_life_active())
        return real(handle, address);
    ca_expandable_sign("an IPC handle was asked for");
    if (ca_range_holds(address))
        return refuse_range(real(handle, address));
    if (ca_pool_exports(address) == CA_EXPORT_INTERIOR)
        return refuse();
    ca_order_leave();
    CUresult code = real(handle, address);
    if (code == CUDA_SUCCESS) /* not before: what is refused, nobody can open */
        ca_pool_export(address);
    return code;
}

/* A device on the bus reaches the memory by the file descriptor, in no stream's order. "Users are
 * also expected to retrieve a new handle every time the underlying physical allocation(s) ... are
 * changed" (cuda.h): the program knows nothing of ours, so they are changed no more. Not before the
 * call: the program lives there meanwhile. */
CA_EXPORT CUresult CUDAAPI cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address,
                                                         size_t bytes, CUmemRangeHandleType type,
                                                         unsigned long long flags)
{
    CA_REAL(cuMemGetHandleForAddressRange);
    if (!ca_life_active() || !ca_pool_owns(address))
        return real(handle, address, bytes, type, flags);
    ca_order_leave();
    CUresult code = real(handle, address, bytes, type, flags);
    if (code == CUDA_SUCCESS)
        ca_range_pin(address, bytes);
    return code;
}
