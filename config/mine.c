#include "config/mine.h"

_Thread_local ca_mine_t ca_mine = {
    .tickets = {[0 ... CA_LANES - 1] = CA_MINE_NO_TICKET},
};
