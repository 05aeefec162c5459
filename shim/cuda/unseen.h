/* Where work reaches the device without one of our wrappers: then no memory in flight is handed out
 * any more (ca_order_end). All of these may be called at any time, from any thread. */
#ifndef CA_SHIM_CUDA_UNSEEN_H
#define CA_SHIM_CUDA_UNSEEN_H

#include "shim/cuda/cuda_decls.h"

/* Looks for libraries and settings by which work is submitted, or memory reached, unseen. Where the
 * loader has loaded nothing since the last scan it makes one call of the loader's, which counts,
 * and reads what was not bound then. Not with a lock of ours held. */
void ca_unseen_scan(void);

/* Before the driver makes or retains a context: is there another one than `same` (NULL: than none
 * at all)? */
void ca_unseen_context(CUcontext same);

/* Before cuGetExportTable: functions without names. */
void ca_unseen_table(const CUuuid *id);

/* Before a graph is instantiated with these flags: it may be launched by the device. */
void ca_unseen_graph(cuuint64_t flags);

/* Before a context is first served: of a device whose memory the host reaches, too? */
void ca_unseen_device(CUdevice device);

#endif
