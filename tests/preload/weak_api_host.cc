// A C++ program that links no CUDA library and asks the public interface, where it is preloaded.
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"
#include <cerrno>
#include <cstdio>
#include <cstdlib>

static int calls;

static void count(void *pointer, size_t bytes, void *argument)
{
    calls += argument == pointer && bytes == 1;
}

int main()
{
    if (!cachealloc_stats) {
        std::puts("no shim");
        return 0;
    }
    cachealloc_stats_t stats = {};
    stats.size = sizeof(stats);
    cachealloc_info_t info = {};
    info.size = sizeof(info);
    char memory = 0;
    bool right = cachealloc_stats(&stats) == 0 && stats.live_allocations == 0 &&
                 cachealloc_trim() == 0 && cachealloc_info(&memory, &info) == ENOENT &&
                 cachealloc_register(&memory, 1, count, &memory) == 0 &&
                 cachealloc_is_registered(&memory) == 1 && cachealloc_info(&memory, &info) == 0 &&
                 info.kind == CACHEALLOC_KIND_EXTERNAL && info.base == &memory &&
                 cachealloc_alias(&memory, &memory + 1) == 0 &&
                 cachealloc_unregister(&memory) == EBUSY && calls == 0;
    std::printf("version %s, %s\n", cachealloc_version(), right ? "right" : "wrong");
    return 0; // what is still registered is reported
}
