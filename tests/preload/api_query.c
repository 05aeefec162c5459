/* What the library tells: the statistics, and where a pointer leads. */
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "api.h"

static void stats_of_every_size(void)
{
    struct {
        cachealloc_stats_t stats;
        char more[64];
    } newer;
    ANSWERS(EINVAL, cachealloc_stats(NULL));
    cachealloc_stats_t stats = {.size = 0};
    ANSWERS(EINVAL, cachealloc_stats(&stats));
    /* An older program's struct: nothing behind it is touched. */
    memset(&newer, 0xa5, sizeof(newer));
    newer.stats.size = offsetof(cachealloc_stats_t, live_allocations);
    OK(cachealloc_stats(&newer.stats));
    CHECK(newer.stats.version == CACHEALLOC_STATS_VERSION);
    CHECK(newer.stats.live_allocations == 0xa5a5a5a5a5a5a5a5u);
    /* A newer one's. */
    newer.stats.size = sizeof(newer);
    OK(cachealloc_stats(&newer.stats));
    CHECK(newer.stats.size == sizeof(newer));
    for (size_t i = 0; i < sizeof(newer.more); i++)
        CHECK(newer.more[i] == 0);
}

static void stats_agree_with_what_was_done(void)
{
    enum { COUNT = 20 };
    const size_t bytes = 10000;
    void *pointers[COUNT];
    cachealloc_stats_t before = api_stats(), now;
    for (size_t i = 0; i < COUNT; i++)
        OK(cudaMalloc(&pointers[i], bytes));
    now = api_stats();
    CHECK(now.alloc_calls == before.alloc_calls + COUNT && now.contexts == 1);
    CHECK(now.live_allocations == before.live_allocations + COUNT);
    CHECK(now.live_bytes == before.live_bytes + COUNT * bytes && now.stacks > 0);
    CHECK(now.live_peak_bytes >= now.live_bytes && now.host_bytes > 0 && !now.incomplete);
    bool pooled = api_info(pointers[0]).block_bytes > 0;
    if (pooled) {
        CHECK(now.block_bytes >= now.live_bytes && now.reserved_bytes >= now.block_bytes);
        CHECK(now.block_bytes + now.pending_bytes + now.ready_bytes == now.reserved_bytes);
        CHECK(now.segments >= 1 && now.blocks >= COUNT && now.idle_bytes == 0);
        CHECK(now.hits + now.misses >= before.hits + before.misses + COUNT);
        CHECK(now.largest_ready_bytes <= now.ready_bytes && now.splits > before.splits);
    }
    for (size_t i = 0; i < COUNT; i++)
        OK(cudaFree(pointers[i]));
    cudaError_t code = cudaFree(pointers[0]);
    CHECK(code == cudaErrorInvalidValue && cudaGetLastError() == code);
    now = api_stats();
    CHECK(now.free_calls == before.free_calls + COUNT + 1);
    CHECK(now.live_allocations == before.live_allocations && now.live_bytes == before.live_bytes);
    if (pooled) {
        CHECK(now.pending_bytes > 0 && now.wrong_frees == before.wrong_frees + 1);
        CHECK(now.idle_bytes == now.reserved_bytes);
    }
    size_t reserved = now.reserved_bytes;
    OK(cudaDeviceSynchronize());
    CHECK(cachealloc_trim() == reserved);
    now = api_stats();
    CHECK(now.reserved_bytes == 0 && now.segments == 0 && now.blocks == 0 &&
          now.pending_bytes == 0);
}

/* Names are not counted twice by the calls that free them. */
static void frees_of_names_are_counted_once(void)
{
    char *pointer;
    OK(cudaMalloc((void **)&pointer, 1000));
    OK(cachealloc_alias(pointer, pointer + 1));
    uint64_t frees = api_stats().free_calls;
    OK(cudaFree(pointer));
    OK(cudaFree(pointer + 1));
    CHECK(api_stats().free_calls == frees + 2);
}

static NOINLINE void *allocate_here(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes));
    return pointer;
}

static void *allocate_in_thread(void *argument)
{
    *(long *)argument = syscall(SYS_gettid);
    return allocate_here(5000);
}

static void info_of_an_allocation(void)
{
    void *frames[64], *few[2] = {NULL, NULL};
    long thread = 0;
    pthread_t other;
    char *pointer = NULL;
    OK(pthread_create(&other, NULL, allocate_in_thread, &thread));
    OK(pthread_join(other, (void **)&pointer));
    cachealloc_info_t info = {.size = sizeof(info), .stack = frames, .stack_capacity = 64};
    OK(cachealloc_info(pointer, &info));
    CHECK(info.version == CACHEALLOC_INFO_VERSION && info.kind == CACHEALLOC_KIND_DEVICE);
    CHECK(!strcmp(info.kind_name, "device") && info.base == pointer && info.bytes == 5000);
    CHECK(info.block_bytes == 0 || (info.block_bytes >= 5000 && info.block_bytes % 512 == 0));
    CHECK(info.names == 1 && info.device == 0 && info.stream == NULL && info.age == 0);
    CHECK(info.thread == (uint32_t)thread && info.stack == frames && info.stack_capacity == 64);
    /* The innermost is the caller of cudaMalloc. */
    uintptr_t function = (uintptr_t)allocate_here, innermost = (uintptr_t)frames[0];
    CHECK(info.stack_count >= 2 && innermost > function && innermost < function + 500);
    info.stack = few;
    info.stack_capacity = 1;
    OK(cachealloc_info(pointer, &info));
    CHECK(info.stack_count == 1 && few[0] == frames[0] && few[1] == NULL);
    info.stack = NULL;
    OK(cachealloc_info(pointer, &info));
    CHECK(info.stack_count == 0);

    void *later[3];
    for (size_t i = 0; i < 3; i++)
        later[i] = allocate_here(100);
    /* Exact within a thread; `pointer` comes from another one. */
    uint64_t age = api_info(pointer).age, latest = api_info(later[2]).age;
    CHECK(api_info(later[0]).age == latest + 2 && api_info(later[1]).age == latest + 1);
    CHECK(age < 64 && latest < 64);
    OK(cachealloc_alias(pointer, pointer + 8)); /* a name is no allocation */
    CHECK(api_info(pointer + 8).age == age && api_info(later[2]).age == latest);
    OK(cudaFree(pointer + 8));
    CHECK(api_info(pointer).age == age);
    for (size_t i = 0; i < 3; i++)
        OK(cudaFree(later[i]));
    OK(cudaFree(pointer));
    api_unknown(pointer);
    api_unknown(NULL);
    api_unknown(&pointer);
    info.size = sizeof(info) - 1;
    ANSWERS(EINVAL, cachealloc_info(pointer, &info));
    ANSWERS(EINVAL, cachealloc_info(pointer, NULL));
}

/* Every address of a block leads to it, and those of its freed neighbours nowhere. */
static void info_of_an_address_inside(void)
{
    enum { COUNT = 60 };
    char *pointers[COUNT];
    size_t sizes[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        sizes[i] = i % 3 == 0 ? 1 : i * 20000;
        pointers[i] = allocate_here(sizes[i]);
    }
    bool pooled = api_info(pointers[0]).block_bytes > 0;
    for (size_t i = 0; i < COUNT; i += 2)
        OK(cudaFree(pointers[i]));
    for (size_t i = 1; i < COUNT && pooled; i++) {
        if (i % 2 == 0) {
            api_unknown(pointers[i] + sizes[i] / 2);
            continue;
        }
        cachealloc_info_t info = api_info(pointers[i]);
        CHECK(info.base == pointers[i] && info.bytes == sizes[i]);
        CHECK(api_info(pointers[i] + sizes[i] / 2).base == pointers[i]);
        CHECK(api_info(pointers[i] + info.block_bytes - 1).base == pointers[i]);
        cachealloc_info_t next = {.size = sizeof(next)};
        if (cachealloc_info(pointers[i] + info.block_bytes, &next) == 0)
            CHECK(next.base != pointers[i]);
    }
    if (!pooled)
        api_unknown(pointers[1] + 1);
    for (size_t i = 1; i < COUNT; i += 2)
        OK(cudaFree(pointers[i]));
}

int main(void)
{
    if (!api_there())
        return 0;
    CHECK(strcmp(cachealloc_version(), CACHEALLOC_VERSION) == 0);
    stats_of_every_size();
    CHECK(cachealloc_trim() == 0); /* before the first context */
    OK(cudaFree(NULL));
    void *first = allocate_here(1); /* the context's entry */
    OK(cudaFree(first));
    OK(cudaDeviceSynchronize());
    cachealloc_trim();
    stats_agree_with_what_was_done();
    frees_of_names_are_counted_once();
    info_of_an_allocation();
    info_of_an_address_inside();
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
