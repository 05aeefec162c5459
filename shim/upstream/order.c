/* See order.h. */
#include "shim/upstream/order.h"

#include "config/options.h"
#include "pool/fence/order.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/upstream.h"

/* Memory is filled and checked on streams of this library's, and waited for: `order` cannot serve
 * it. */
static bool may_begin(void)
{
    return ca_order_wanted(ca_options.reuse) && ca_options.backend == CA_BACKEND_POOL &&
           !ca_options.free_sync && !ca_options.zero && !(ca_options.debug & CA_DEBUG_ANY);
}

/* Without context-wide events no fence covers all work of a context. */
static bool has_fences(void)
{
    const ca_driver_t *driver = ca_driver();

    return driver->cuCtxRecordEvent && driver->cuStreamWaitEvent && driver->cuEventQuery;
}

void ca_order_consider(ca_context_t *context)
{
    ca_context_t *living[CA_CONTEXTS_MAX];

    if (!may_begin() || !has_fences())
        return;
    if (ca_contexts_living(living) > 1)
        ca_order_end("there is a second context");
    else
        ca_order_start(&ca_upstream_cuda, context, ca_options.reuse_wait);
}
