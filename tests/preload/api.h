/* What the programs that use the public interface share. They begin with `if (!api_there()) return
 * 0;`: the functions are weak, and without the library there is nothing to call. */
#ifndef CA_TESTS_PRELOAD_API_H
#define CA_TESTS_PRELOAD_API_H

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdbool.h>
#include "check.h"
#include "shim_stats.h"

#define NOINLINE __attribute__((noinline))

/* All or none. */
static inline bool api_there(void)
{
    bool there = cachealloc_stats != NULL;
    CHECK((cachealloc_trim != NULL) == there && (cachealloc_version != NULL) == there);
    CHECK((cachealloc_set_pin_mode != NULL) == there && (cachealloc_info != NULL) == there);
    CHECK((cachealloc_alias != NULL) == there && (cachealloc_register != NULL) == there);
    CHECK((cachealloc_mark != NULL) == there && (cachealloc_python != NULL) == there);
    CHECK((cachealloc_dump != NULL) == there && (cachealloc_on_oom != NULL) == there);
    CHECK((cachealloc_unregister != NULL) == there && (cachealloc_is_registered != NULL) == there);
    if (!there)
        puts("no shim");
    return there;
}

static inline cachealloc_stats_t api_stats(void)
{
    cachealloc_stats_t stats = {.size = sizeof(stats)};
    OK(cachealloc_stats(&stats));
    CHECK(stats.version == CACHEALLOC_STATS_VERSION);
    return stats;
}

static inline cachealloc_info_t api_info(const void *pointer)
{
    cachealloc_info_t info = {.size = sizeof(info)};
    OK(cachealloc_info(pointer, &info));
    CHECK(info.version == CACHEALLOC_INFO_VERSION);
    return info;
}

static inline void api_unknown(const void *pointer)
{
    cachealloc_info_t info = {.size = sizeof(info)};
    ANSWERS(ENOENT, cachealloc_info(pointer, &info));
}

#endif
