#include "shim/cuda/life_state.h"

_Atomic int ca_life_state = CA_LIFE_ASLEEP;

/* Not initialized: only pages that are of no file can be wiped. */
ca_life_page_t ca_life_page;
