/* Frames of all forms that C makes. Compiled several times, with and without frame pointers. */
#include "tests/callgraphs/callgraphs.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

static NOINLINE void plain(uint64_t way, unsigned levels)
{
    go_on(way, levels);
    sink++;
}

static NOINLINE void wide(uint64_t way, unsigned levels)
{
    volatile char room[200];
    room[levels % sizeof room] = 1;
    go_on(way, levels);
    sink += (unsigned)room[levels % sizeof room];
}

static NOINLINE void variable(uint64_t way, unsigned levels)
{
    volatile char *room = __builtin_alloca(16 + way % 5 * 16);
    room[0] = 1;
    go_on(way, levels);
    sink += (unsigned)room[0];
}

static NOINLINE void array(uint64_t way, unsigned levels)
{
    volatile uint64_t room[1 + way % 7];
    room[0] = way;
    go_on(way, levels);
    sink += room[0] != way;
}

static NOINLINE void realigned(uint64_t way, unsigned levels)
{
    _Alignas(64) volatile char room[64];
    room[levels % 64] = 1;
    go_on(way, levels);
    sink += (unsigned)room[levels % 64];
}

static NOINLINE void realigned_variable(uint64_t way, unsigned levels)
{
    _Alignas(128) volatile char room[128];
    volatile char *more = __builtin_alloca(16 + way % 3 * 48);
    room[levels % 64] = more[0] = 1;
    go_on(way, levels);
    sink += (unsigned)room[levels % 64] + (unsigned)more[0];
}

static NOINLINE void recursive(uint64_t way, unsigned levels)
{
    if (levels > 0 && way % 4 != 0)
        recursive(mix(way), levels - 1);
    else
        go_on(way, levels);
    sink++;
}

/* Ends in a jump, to a function that has another caller's frame above it then. */
static NOINLINE void tail(uint64_t way, unsigned levels)
{
    sink++;
    if (levels == 0) {
        check();
        sink++;
        return;
    }
    form_of(way >> 8)(mix(way + levels), levels - 1);
}

static NOINLINE void around_tail(uint64_t way, unsigned levels)
{
    volatile uint64_t room[6];
    room[way % 6] = way;
    tail(way, levels);
    sink += room[way % 6] != way;
}

/* Goes down, jumps back up over all of that, and goes down again. */
static NOINLINE void deeper(jmp_buf *back, uint64_t way, unsigned levels)
{
    volatile char *room = __builtin_alloca(16 + way % 9 * 16);
    room[0] = 1;
    if (levels > 0)
        deeper(back, mix(way), levels - 1);
    check();
    sink += (unsigned)room[0];
    if (room[0] == 1) /* always */
        longjmp(*back, 1);
}

static NOINLINE void jumps(uint64_t way, unsigned levels)
{
    jmp_buf back;
    volatile uint64_t kept_way = way;
    volatile unsigned kept_levels = levels;
    if (setjmp(back) == 0)
        deeper(&back, way, (unsigned)(way % 4));
    count(JUMPS);
    go_on(kept_way, kept_levels);
    sink++;
}

/* By way of the C library: from qsort. */
static int compare(const void *a, const void *b, void *arg)
{
    uint64_t *walk = arg;
    if (walk[1] != UINT64_MAX) {
        unsigned levels = (unsigned)walk[1];
        walk[1] = UINT64_MAX;
        go_on(walk[0], levels);
    }
    return *(const int *)a - *(const int *)b;
}

static NOINLINE void called_back(uint64_t way, unsigned levels)
{
    int numbers[4] = {(int)(way % 7), 3, (int)(way % 5), 1};
    uint64_t walk[2] = {way, levels};
    qsort_r(numbers, 4, sizeof numbers[0], compare, walk);
    sink += (unsigned)numbers[0];
}

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
static NOINLINE void
forced(uint64_t way, unsigned levels)
{
    go_on(way, levels);
    sink++;
}

/* Arguments on the stack, which the caller takes off again. */
static NOINLINE void pushed(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                            uint64_t way, uint64_t levels, uint64_t more)
{
    go_on(way, (unsigned)levels);
    sink += (unsigned)(a + b + c + d + e + f + more);
}

static NOINLINE void pushes(uint64_t way, unsigned levels)
{
    pushed(1, 2, 3, 4, 5, 6, way, levels, way);
    sink++;
}

/* Two ways that begin at one place, as both take the same room before they get there. What the
 * first leaves, return addresses too, lies in the second's variables. */
static NOINLINE void second_part(size_t room, uint64_t way, unsigned levels)
{
    volatile char *rest = __builtin_alloca(room);
    rest[0] = 1;
    check();
    if (levels > 0)
        go_on(way, levels);
    sink += (unsigned)rest[0];
}

static NOINLINE void first_part(size_t room, uint64_t way, unsigned levels)
{
    volatile char *rest = __builtin_alloca(room);
    rest[0] = 1;
    if (room > 256) {
        second_part(1024 - room, way, levels);
        sink += (unsigned)rest[0];
    } else {
        second_part(1024 - room, way, levels);
        sink += 2;
    }
}

static NOINLINE void divided(uint64_t way, unsigned levels)
{
    for (volatile unsigned part = 0; part < 2; part++)
        first_part(part == way % 2 ? 512 : 64, way, part == 0 ? 0 : levels);
}

form_t *const FORMS_NAME[FORMS] = {
    plain,     wide,    variable,    array, realigned,   realigned_variable,
    recursive, tail,    around_tail, jumps, called_back, forced,
    pushes,    divided,
};
