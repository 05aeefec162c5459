/* The one place that calls the upstream table: proves that no lock of ours is held, and counts. */
#include "pool/upstream.h"

#include "base/counters.h"
#include "base/lock.h"
#include "base/mutation.h"

int ca_upstream_alloc(const ca_upstream_t *upstream, void *context, size_t bytes, uint64_t *address)
{
    ca_lock_assert_none("upstream alloc");
    ca_count(upstream_allocs);
    return upstream->alloc(context, bytes, address);
}

int ca_upstream_free(const ca_upstream_t *upstream, void *context, uint64_t address, size_t bytes,
                     ca_free_t how)
{
    ca_lock_assert_none("upstream free");
    ca_count(upstream_frees);
    if (how == CA_FREE_IDLE && upstream->free_idle)
        return upstream->free_idle(context, address, bytes);
    if (how == CA_FREE_PASSED && upstream->free_passed)
        return upstream->free_passed(context, address, bytes);
    return upstream->free(context, address, bytes);
}

size_t ca_upstream_available(const ca_upstream_t *upstream, void *context)
{
    ca_lock_assert_none("upstream available");
    return upstream->available ? upstream->available(context) : SIZE_MAX;
}

int ca_upstream_fence_record(const ca_upstream_t *upstream, void *context, bool all, void **fence)
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

int ca_upstream_fence_record_on(const ca_upstream_t *upstream, void *context, void *queue,
                                void **fence)
{
    ca_lock_assert_none("fence record");
    ca_count(fence_records);
    return upstream->fence_record_on(context, queue, fence);
}

int ca_upstream_fence_join(const ca_upstream_t *upstream, void *context, void *queue, void *fence)
{
    ca_lock_assert_none("fence join");
    ca_count(fence_joins);
    return upstream->fence_join(context, queue, fence);
}

int ca_upstream_fence_query(const ca_upstream_t *upstream, void *context, void *fence)
{
    ca_lock_assert_none("fence query");
    ca_count(fence_queries);
    return upstream->fence_query(context, fence);
}

int ca_upstream_fence_wait(const ca_upstream_t *upstream, void *context, void *fence,
                           uint64_t nanoseconds)
{
    ca_lock_assert_none("fence wait");
    ca_count(fence_waits);
    return upstream->fence_wait(context, fence, nanoseconds);
}

void ca_upstream_fence_release(const ca_upstream_t *upstream, void *context, void *fence)
{
    ca_lock_assert_none("fence release");
    upstream->fence_release(context, fence);
}

int ca_upstream_synchronize(const ca_upstream_t *upstream, void *context, bool all)
{
    ca_lock_assert_none("synchronize");
    ca_count(fence_waits);
    return upstream->synchronize(context, all);
}

size_t ca_upstream_reclaim(const ca_upstream_t *upstream, void *context, size_t bytes)
{
    ca_lock_assert_none("reclaim");
    return upstream->reclaim ? upstream->reclaim(context, bytes) : 0;
}

size_t ca_upstream_page_unit(const ca_upstream_t *upstream, void *context)
{
    ca_lock_assert_none("upstream page unit");
    return upstream->pages ? upstream->pages->unit(context) : 0;
}

int ca_upstream_reserve(const ca_upstream_t *upstream, void *context, size_t bytes, uint64_t *at)
{
    ca_lock_assert_none("upstream reserve");
    return upstream->pages->reserve(context, bytes, at);
}

void ca_upstream_unreserve(const ca_upstream_t *upstream, void *context, uint64_t at, size_t bytes)
{
    ca_lock_assert_none("upstream unreserve");
    upstream->pages->unreserve(context, at, bytes);
}

int ca_upstream_make(const ca_upstream_t *upstream, void *context, size_t bytes, uint64_t *handle)
{
    ca_lock_assert_none("upstream make");
    ca_count(upstream_allocs);
    return upstream->pages->make(context, bytes, handle);
}

void ca_upstream_drop(const ca_upstream_t *upstream, void *context, uint64_t handle)
{
    ca_lock_assert_none("upstream drop");
    ca_count(upstream_frees);
    upstream->pages->drop(context, handle);
}

int ca_upstream_map(const ca_upstream_t *upstream, void *context, uint64_t at,
                    const ca_page_t *pages, size_t count)
{
    ca_lock_assert_none("upstream map");
    ca_count_add(upstream_allocs, count);
    return upstream->pages->map(context, at, pages, count);
}

int ca_upstream_unmap(const ca_upstream_t *upstream, void *context, uint64_t at, size_t bytes)
{
    ca_lock_assert_none("upstream unmap");
    ca_count(upstream_frees);
    return upstream->pages->unmap(context, at, bytes);
}
