/* The driver API's hooks: cuGetProcAddress in its two forms. The real function answers, and its
 * answer is replaced when it is a function with a wrapper: so the driver chooses version and
 * variant. */
#include <stddef.h>
#include "base/mutation.h"
#include "shim/cuda/driver_table.h"
#include "shim/driver/unknown_entry.h"

static void *answer(void *address, const char *name, int version, cuuint64_t flags)
{
    void *swapped = ca_driver_swap_query(address, name, version, flags);
    if (swapped || !name)
        return swapped ? swapped : address;
    return ca_unknown_entry(address, name);
}

CA_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                               cuuint64_t flags,
                                               CUdriverProcAddressQueryResult *status)
{
    CA_REAL(cuGetProcAddress_v2);
    if ((CA_MUTATED(status_needed) && !status) ||
        (CA_MUTATED(empty_name_refused) && symbol && !symbol[0]))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = real(symbol, function, version, flags, status);
    if (code == CUDA_SUCCESS && function && *function && !CA_MUTATED(lookup_blind))
        *function = answer(*function, symbol, version, flags);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **function, int version,
                                            cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *status)
{
    CA_REAL(cuGetProcAddress);
    if (CA_MUTATED(fifth_argument_read))
        real = ca_driver()->cuGetProcAddress_v2;
    CUresult code = real(symbol, function, version, flags, status);
    if (code == CUDA_SUCCESS && function && *function && !CA_MUTATED(lookup_blind))
        *function = answer(*function, symbol, version, flags);
    return code;
}
