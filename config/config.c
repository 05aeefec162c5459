/* The process-wide objects of config/: options and counters. */
#include "config/counters.h"
#include "config/options.h"

ca_options_t ca_options;
ca_counters_t ca_counters;
