/* Process-wide event counters, relaxed: they are read for reports, never for decisions. */
#ifndef CA_CONFIG_COUNTERS_H
#define CA_CONFIG_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct ca_counters {
#define CA_COUNTER(name, label) _Atomic uint64_t name;
#include "config/counters.def"
#undef CA_COUNTER
} ca_counters_t;

extern ca_counters_t ca_counters;

#define ca_count_add(name, n)                                                                      \
    atomic_fetch_add_explicit(&ca_counters.name, (uint64_t)(n), memory_order_relaxed)
#define ca_count(name) ca_count_add(name, 1)
#define ca_counter_read(name) atomic_load_explicit(&ca_counters.name, memory_order_relaxed)

#endif
