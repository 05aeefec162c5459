/* The call of upstream.h's that is more than a call. */
#include "pool/upstream.h"

#include "base/mutation.h"

int ca_upstream_fence_record(CA_UPSTREAM, bool all, void **fence)
{
    ca_lock_assert_none("fence record");
    ca_count(fence_records);
    int rc = upstream->fence_record(context, all, fence);
    if (CA_MUTATED(fence_before_free) && rc == 0) {
        static void *earlier, *earlier_context; /* tests of one thread only */
        void *now = *fence;
        if (earlier_context == context)
            *fence = earlier;
        else
            rc = upstream->fence_record(context, all, &now);
        earlier = now;
        earlier_context = context;
    }
    return rc;
}
