/* The driver API's hooks: cuIpcGetMemHandle and cuMemGetHandleForAddressRange, memory that other
 * processes and devices on the bus open.
 *
 * The driver's handle names its whole allocation, which is a whole segment here, and opens its
 * base. Programs that ask for the address range, export its base and pass the offset on (UCX, NCCL,
 * Open MPI) need no more than this. A program that takes its own pointer for such a base (PyTorch)
 * is right only where its block begins a segment: any other block gets no handle, since it would
 * open other allocations' bytes. A block that may be exported begins a segment
 * (pool/range/export.h), and from the first refusal on every large block has a segment of its own.
 *
 * From its first handle on the memory is never split, merged or released (see there, too). */
#include "base/log.h"
#include "config/options.h"
#include "pool/range/export.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/expandable.h"
#include "shim/cuda/life_state.h"

/* The driver's error for memory that it cannot export, that of its pools for example. */
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

/* Memory of a range has no handle, wherever in the range the address lies. Where a driver returns
 * one all the same, it is not the allocation's. */
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
    if (code == CUDA_SUCCESS) /* afterwards: a refused call leaves nothing to open */
        ca_pool_export(address);
    return code;
}

/* A device on the bus reaches the memory by the file descriptor, in no stream's order. "Users are
 * also expected to retrieve a new handle every time the underlying physical allocation(s) ... are
 * changed" (cuda.h): the program does not know of the pool's changes, so there are none from now
 * on. That begins after the call: the program's allocation is live meanwhile. */
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
