/* The events of modules.def: each function here runs down the list. */
#include "shim/life/modules.h"
#include "base/counters.h"
#include "base/history.h"
#include "pool/arena.h"
#include "registry/stack/stack.h"
#include "registry/table/registry.h"
#include "shim/alloc/debug_fill.h"
#include "shim/alloc/oom.h"
#include "shim/alloc/other_streams.h"
#include "shim/hooks/api_struct.h"
#include "shim/hooks/nvtx.h"
#include "shim/alloc/recorder.h"
#include "shim/alloc/report_lock.h"
#include "shim/alloc/shared_memory.h"
#include "shim/alloc/track.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/context_entries.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/streams.h"
#include "shim/cuda/submissions.h"
#include "shim/driver/green.h"
#include "shim/driver/mappings.h"
#include "shim/life/decay.h"
#include "shim/life/dump_signal.h"
#include "shim/life/exit_output.h"
#include "shim/life/keep_journal.h"
#include "shim/life/report_destination.h"
#include "shim/life/life.h"
#include "shim/life/metrics.h"
#include "shim/life/report_collect.h"
#include "shim/upstream/attributes.h"
#include "shim/upstream/backend_async.h"
#include "shim/upstream/pin_mode.h"
#include "shim/upstream/upstream.h"

void ca_modules_configure(void)
{
#define CA_CONFIGURE(function) function();
#include "shim/life/modules.def"
}

void ca_modules_fork_asleep(void)
{
#define CA_FORK_ASLEEP(function) function();
#include "shim/life/modules.def"
}

void ca_modules_fork_child(void)
{
#define CA_FORK_CHILD(function) function();
#include "shim/life/modules.def"
}

void ca_modules_context_made(void)
{
#define CA_CONTEXT_MADE(function) function();
#include "shim/life/modules.def"
}

void ca_modules_context_first(void)
{
#define CA_CONTEXT_FIRST(function) function();
#include "shim/life/modules.def"
}

void ca_modules_context_retired(const ca_context_t *context)
{
#define CA_CONTEXT_RETIRED(function) function(context);
#include "shim/life/modules.def"
}
