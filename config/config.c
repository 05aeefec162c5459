/* The process-wide options. */
#include "config/options.h"

ca_options_t ca_options;
