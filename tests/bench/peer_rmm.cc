// RMM's resources: the pool, the arena, bins over the pool, the tracking adaptor over the pool.
// Pool and arena take their memory at the start, which is best for them: they never grow here.
#include "peer.h"

#include <rmm/cuda_device.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pinned_host_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>

#include <cstring>
#include <new>

// librmm.so contains a CUDA runtime of its own, which refuses a simulated driver. What reaches that
// runtime on our paths is defined here instead; all else is the library's.
namespace rmm
{

cuda_device_id get_current_cuda_device()
{
    int device = 0;
    cudaGetDevice(&device);
    return cuda_device_id{device};
}

int get_num_cuda_devices()
{
    int count = 0;
    cudaGetDeviceCount(&count);
    return count;
}

std::pair<std::size_t, std::size_t> available_device_memory()
{
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return {free_bytes, total_bytes};
}

void cuda_stream_view::synchronize() const
{
    cudaStreamSynchronize(value());
}

void cuda_stream_view::synchronize_no_throw() const noexcept
{
    cudaStreamSynchronize(value());
}

} // namespace rmm

namespace
{

using resource_t = rmm::mr::device_memory_resource;
using upstream_t = rmm::mr::cuda_memory_resource;
using pool_t = rmm::mr::pool_memory_resource<upstream_t>;
using pinned_pool_t = rmm::mr::pool_memory_resource<rmm::mr::pinned_host_memory_resource>;

const std::size_t device_bytes = std::size_t{64} << 30, pinned_bytes = std::size_t{1} << 30;

resource_t *resource;
pinned_pool_t *pinned;

// Left alive at the end, as the allocators of programs are.
resource_t *make(const char *name)
{
    auto *upstream = new upstream_t;
    if (std::strcmp(name, "rmm_arena") == 0)
        return new rmm::mr::arena_memory_resource<upstream_t>(upstream, device_bytes);
    auto *pool = new pool_t(upstream, device_bytes);
    if (std::strcmp(name, "rmm_pool") == 0)
        return pool;
    if (std::strcmp(name, "rmm_binning") == 0) // 256 B to 1 MiB; above that the pool
        return new rmm::mr::binning_memory_resource<pool_t>(pool, 8, 20);
    if (std::strcmp(name, "rmm_tracking") == 0)
        return new rmm::mr::tracking_resource_adaptor<pool_t>(pool);
    return nullptr;
}

} // namespace

bool peer_open(const char *name)
{
    resource = make(name);
    if (std::strcmp(name, "rmm_pool") == 0)
        pinned = new pinned_pool_t(new rmm::mr::pinned_host_memory_resource, pinned_bytes);
    return resource != nullptr;
}

bool peer_has(peer_memory_t memory)
{
    return memory != PEER_PINNED || pinned;
}

void *peer_stream_alloc(size_t bytes, cudaStream_t stream)
{
    try {
        return resource->allocate(rmm::cuda_stream_view{stream}, bytes);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void peer_stream_free(void *block, size_t bytes, cudaStream_t stream)
{
    resource->deallocate(rmm::cuda_stream_view{stream}, block, bytes);
}

void *peer_alloc(size_t bytes)
{
    return peer_stream_alloc(bytes, nullptr);
}

void peer_free(void *block, size_t bytes)
{
    peer_stream_free(block, bytes, nullptr);
}

void *peer_pinned_alloc(size_t bytes)
{
    try {
        return pinned->allocate(rmm::cuda_stream_view{}, bytes);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void peer_pinned_free(void *block, size_t bytes)
{
    pinned->deallocate(rmm::cuda_stream_view{}, block, bytes);
}

bool peer_trim(void)
{
    return false;
}
