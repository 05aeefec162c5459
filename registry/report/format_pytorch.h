/* What leaked as a memory snapshot of PyTorch's (a pickle, as torch.cuda.memory._dump_snapshot
 * writes): for https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py.
 *
 * A report knows no segments. Each device and kind of memory is shown as one, without a gap: its
 * blocks are the groups, as large as all of a group together, largest first, and its frames say the
 * kind. Addresses begin at 0 and are not the process's. The trace of a device has each group as one
 * allocation, at the time of its latest: a timeline of it never shows more than was there.
 *
 * With a history (base/history.h) the traces have its events instead, at their own addresses, and
 * there are no segments: what leaked is what a trace never frees.
 *
 * What contexts held that were destroyed is not in it, for a snapshot is of what is live, nor are
 * groups that are not listed; their bytes are in the dict "cachealloc", which is not PyTorch's:
 * version, cause, pid, program, host, rank (or None), bytes, not_listed_bytes, destroyed_bytes. */
#ifndef CA_REGISTRY_REPORT_FORMAT_PYTORCH_H
#define CA_REGISTRY_REPORT_FORMAT_PYTORCH_H

#include "base/out.h"
#include "registry/report/model.h"

/* Without memory for its tables the output fails with ENOMEM. */
void ca_format_pytorch(ca_out_t *out, const ca_model_t *model);

#endif
