/* The driver's log: one callback type under two names. */
#include "rt.h"

RT_FN_UNBOUND(cudaLogsRegisterCallback,
              (cudaLogsCallback_t fn, void *data, cudaLogsCallbackHandle *out), fn, data, out)
{
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuLogsRegisterCallback((CUlogsCallback)fn, data, out));
}

RT_FN_UNBOUND(cudaLogsUnregisterCallback, (cudaLogsCallbackHandle callback), callback)
{
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuLogsUnregisterCallback(callback));
}

RT_FN_UNBOUND(cudaLogsCurrent, (cudaLogIterator * out, unsigned int flags), out, flags)
{
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuLogsCurrent(out, flags));
}

RT_FN_UNBOUND(cudaLogsDumpToFile,
              (cudaLogIterator * iterator, const char *path, unsigned int flags), iterator, path,
              flags)
{
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuLogsDumpToFile(iterator, path, flags));
}

RT_FN_UNBOUND(cudaLogsDumpToMemory,
              (cudaLogIterator * iterator, char *buffer, size_t *size, unsigned int flags),
              iterator, buffer, size, flags)
{
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuLogsDumpToMemory(iterator, buffer, size, flags));
}
