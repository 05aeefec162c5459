/* The driver's log (cuda.h, cuLogsRegisterCallback): callbacks are accepted and never called,
 * because this driver logs nothing; its messages go to stderr. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

struct CUlogsCallbackEntry_st {
    CUlogsCallback fn;
    void *data;
    CUlogsCallbackHandle next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static CUlogsCallbackHandle callbacks;

SIM_API CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void *userData,
                                        CUlogsCallbackHandle *callback_out)
{
    SIM_ENTER_IF(cuLogsRegisterCallback, false);
    if (!callbackFunc) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUlogsCallbackHandle made = calloc(1, sizeof(*made));
    if (!made) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->fn = callbackFunc;
    made->data = userData;
    pthread_mutex_lock(&mu);
    made->next = callbacks;
    callbacks = made;
    pthread_mutex_unlock(&mu);
    if (callback_out) {
        *callback_out = made;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback)
{
    SIM_ENTER_IF(cuLogsUnregisterCallback, false);
    pthread_mutex_lock(&mu);
    CUlogsCallbackHandle *at = &callbacks;
    while (*at && *at != callback) {
        at = &(*at)->next;
    }
    CUlogsCallbackHandle found = *at;
    if (found) {
        *at = found->next;
    }
    pthread_mutex_unlock(&mu);
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The flags are "reserved for future use, must be 0", and the iterators and handles "optional". */
SIM_API CUresult cuLogsCurrent(CUlogIterator *iterator_out, unsigned int flags)
{
    SIM_ENTER_IF(cuLogsCurrent, false);
    if (!iterator_out || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *iterator_out = 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLogsDumpToFile(CUlogIterator *iterator, const char *pathToFile,
                                  unsigned int flags)
{
    SIM_ENTER_IF(cuLogsDumpToFile, false);
    (void)iterator;
    if (!pathToFile || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    FILE *f = fopen(pathToFile, "w");
    return f && fclose(f) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* "If there are no messages to dump, *size will be set to 0". */
SIM_API CUresult cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size,
                                    unsigned int flags)
{
    SIM_ENTER_IF(cuLogsDumpToMemory, false);
    (void)iterator;
    if (!buffer || !size || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (*size) {
        buffer[0] = 0;
    }
    *size = 0;
    return CUDA_SUCCESS;
}
