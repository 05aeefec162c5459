/* See dump.h. Nothing of ours is locked while a report is written: it is made from a copy, taken
 * one part of the registry at a time. */
#include "shim/life/dump.h"
#include <errno.h>
#include "base/thread_state.h"
#include "base/out.h"
#include "include/cachealloc.h"
#include "shim/hooks/api_struct.h"
#include "shim/life/report_destination.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/report_lock.h"

#define WAIT_MS 10000 /* for another thread's report: names of large programs take their time */

int ca_dump(const char *cause, const char *path)
{
    static ca_out_t out;
    int saved = errno, result = -EBUSY;
    int cancel = ca_cancel_hold(); /* a thread that vanishes would keep the lock */
    if (ca_report_lock_take(WAIT_MS)) {
        result = ca_report_dump(&out, cause, path);
        ca_report_lock_drop();
    }
    ca_cancel_resume(cancel);
    errno = saved;
    return result;
}

CA_PUBLIC int cachealloc_dump(const char *path)
{
    return ca_life_active() ? -ca_dump("dump", path) : ENOTSUP;
}
