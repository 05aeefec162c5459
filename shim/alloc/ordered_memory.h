/* Stream-ordered memory for the library's own interface (cachealloc_alloc, cachealloc_free): the
 * pool's, as cuMemAllocAsync gets it, but on a named device, in captures too, and where no hook is
 * in place. `alone`: the legacy stream is its own work alone (ca_arena_default_stream). Bytes;
 * answers are the driver's errors. From any thread, with no lock held. */
#ifndef CA_SHIM_ALLOC_ORDERED_MEMORY_H
#define CA_SHIM_ALLOC_ORDERED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include "shim/cuda/cuda_decls.h"

#define CA_ORDERED_HERE (-1) /* the current context's device */

/* What is ready in the pool, and a free of memory of the pool, both on a stream that was met
 * before: counted where they serve. False: nothing has changed. */
bool ca_ordered_alloc_ready(CUdeviceptr *address, size_t bytes, int device, CUstream stream,
                            bool alone);
bool ca_ordered_free_pooled(CUdeviceptr address, int device, CUstream stream, bool alone);

/* The same in every case. Where the thread has no context of the device, and the stream names
 * none, its primary one serves, which is then kept for good.
 * CUDA_ERROR_INVALID_DEVICE: the stream is another device's.
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: it is captured, which no hook has seen: it is not known
 * how long the graph needs the memory. */
CUresult ca_ordered_alloc(CUdeviceptr *address, size_t bytes, int device, CUstream stream,
                          bool alone);
CUresult ca_ordered_free(CUdeviceptr address, int device, CUstream stream, bool alone);

/* Work of `stream` uses the memory: its free by ca_ordered_free is then behind all work.
 * CUDA_ERROR_NOT_FOUND: no live allocation begins there. CUDA_ERROR_OUT_OF_MEMORY: no host memory.
 */
CUresult ca_ordered_used_on(CUdeviceptr address, CUstream stream);

#endif
