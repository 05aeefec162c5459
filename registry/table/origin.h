/* The process whose allocations the table has, where that is not this one (registry/journal). */
#ifndef CA_REGISTRY_TABLE_ORIGIN_H
#define CA_REGISTRY_TABLE_ORIGIN_H

#include <stddef.h>
#include <stdint.h>

typedef struct ca_origin {
    long pid;
    const char *program, *host, *rank, *unwinder, *version;
    uint64_t start_s; /* since 1970 */
    unsigned stack_depth;
    size_t sampled;      /* bytes from one sampled stack to the next; 0: all have one, or none */
    uint64_t peak_bytes; /* at most so many were ever live */
} ca_origin_t;

#endif
