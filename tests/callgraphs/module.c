/* Compiled twice, with frames of another ROOM: the code is the same, byte for byte but for that
 * number, and so are its addresses. What an unwinder must know of them is not. */
#include "tests/callgraphs/callgraphs.h"

#ifndef ROOM /* a checker that compiles it alone */
#define ROOM 1
#endif

static volatile unsigned written;

static NOINLINE void inner(form_t *next, uint64_t way, unsigned levels)
{
    volatile char room[ROOM];
    room[sizeof room - 1] = 1;
    next(way, levels);
    written += (unsigned)room[sizeof room - 1];
}

__attribute__((visibility("default"))) void enter(form_t *next, uint64_t way, unsigned levels)
{
    volatile char room[2 * ROOM];
    room[sizeof room - 1] = 1;
    inner(next, way, levels);
    written += (unsigned)room[sizeof room - 1];
}
