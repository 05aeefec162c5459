/* A report that has everything in it that a writer may meet. Include after the system headers.
 * Header-only, because every unit program is linked alone. tests/test_formats.py knows its figures.
 */
#ifndef MADE_MODEL_H
#define MADE_MODEL_H

#include "registry/report/model.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define PROGRAM 0x400000000000
#define LIBRARY 0x7f1000000000

static const ca_place_t made_main = {"main", "/src/tiles.c", 187};
static const ca_place_t made_start[] = {{"inner;loop", "/src/a b.h", 7},
                                        {"start_tile", "/src/tiles.c", 108}};
static const ca_place_t made_no_line = {"_start", NULL, 0};
static const ca_place_t made_odd = {"new\nline \xff\xc3\xa9 operator()", "/src/\xf0\x9f\x98\x80.c",
                                    4000000000};
static const ca_place_t made_no_name = {NULL, "/src/lost.c", 3};
static char made_long_name[20000];
static const ca_place_t made_long = {made_long_name, "/src/long.c", 1};

#define IN(start, at, path, id)                                                                    \
    .address = (start) + (at) + 1, .module = (path), .build_id = (id), .offset = (at)
static const ca_place_t made_python = {"Block.forward", "/src/fwdbwd.py", 6};
static const ca_frame_t made_frames[] = {
    {IN(PROGRAM, 0x1000, "/opt/tiles", "abcdef01"), 1, &made_main, "main at tiles.c:187"},
    {IN(PROGRAM, 0x2345, "/opt/tiles", "abcdef01"), 2, made_start, "inner;loop at a b.h:7 < start"},
    {IN(PROGRAM, 0x0f10, "/opt/tiles", "abcdef01"), 1, &made_no_line, "_start (tiles+0xf10)"},
    {IN(LIBRARY, 0x7777, "/lib/libodd.so", NULL), 1, &made_odd, "odd"},
    {IN(LIBRARY, 0x8888, "/lib/libodd.so", NULL), 0, NULL, "libodd.so+0x8888"},
    {IN(LIBRARY, 0x9999, "/lib/libodd.so", NULL), 1, &made_no_name, "libodd.so+0x9999"},
    {IN(LIBRARY, 0xaaaa, "/lib/libodd.so", NULL), 1, &made_long, "long"},
    {.address = 0xffffffffffff1235, .text = "0xffffffffffff1235", .lines = "0xffffffffffff1235"},
    {.python = true,
     .place_count = 1,
     .places = &made_python,
     .text = "Block.forward at fwdbwd.py:6",
     .lines = "Block.forward at fwdbwd.py:6"},
};
#undef IN

#define F(i) &made_frames[i]
static const ca_frame_t *const made_tile[] = {F(3), F(1), F(8), F(0), F(2)};
static const ca_frame_t *const made_table[] = {F(4), F(0), F(2)};
static const ca_frame_t *const made_strange[] = {F(7), F(6), F(5)};
#undef F

static const ca_model_group_t made_leaked[] = {
    {5,
     made_tile,
     0,
     CA_KIND_DEVICE,
     2,
     UINT64_C(1) << 40,
     1 << 20,
     UINT64_C(1) << 39,
     1,
     9,
     1000000,
     9000000,
     UINT64_C(0x8000000000000010),
     1,
     {"main"},
     0,
     0},
    {3,
     made_table,
     0,
     CA_KIND_PINNED,
     1,
     4096,
     4096,
     4096,
     7,
     7,
     7000000,
     7000000,
     0,
     6,
     {"main", "loader", "w\xff", "9"},
     0,
     0},
    {3,
     made_strange,
     2,
     CA_KIND_DEVICE,
     3,
     300,
     100,
     100,
     2,
     8,
     2000000,
     8000000,
     0x7f0000001000,
     0,
     {0},
     0,
     0},
    {5,
     made_tile,
     2,
     CA_KIND_DEVICE,
     1,
     70000,
     70000,
     70000,
     3,
     3,
     0,
     0,
     1,
     2,
     {"main", "loader"},
     0,
     0},
    {0, NULL, 0, CA_KIND_DEVICE, 1, 77, 77, 77, 4, 4, 4000000, 4000000, 0, 0, {0}, 0, 0},
    {3, made_table, 1, CA_KIND_EXTERNAL, 1, 0, 0, 0, 10, 10, 0, 0, 0, 1, {"main"}, 0, 0},
};

static const ca_model_group_t made_destroyed[] = {
    {3,
     made_table,
     1,
     CA_KIND_MANAGED,
     100,
     6400,
     64,
     64,
     5,
     6,
     5000000,
     6000000,
     0,
     1,
     {"main"},
     0,
     0},
};

static const ca_model_group_t made_peak[] = {
    {5,
     made_tile,
     0,
     CA_KIND_DEVICE,
     10,
     UINT64_C(5) << 40,
     1 << 20,
     UINT64_C(1) << 39,
     1,
     9,
     1000000,
     9000000,
     0,
     1,
     {"main"},
     0,
     0},
    {3, made_strange, 1, CA_KIND_DEVICE, 1, 5, 5, 5, 6, 6, 6000000, 6000000, 0, 0, {0}, 0, 0},
};

static const ca_point_t made_points[] = {{0, 1, 0, 0}, {9000000, 9, 5 << 20, 6 << 20}};

#define ALL(list) .group_count = COUNT(list), .groups = (list)
static const ca_model_t made_model = {
    .version = "0.1.0",
    .cause = "exit",
    .pid = 123,
    .program = "tiles",
    .host = "node1",
    .rank = "3",
    .start_s = 1790000000,
    .now_ns = 10000000,
    .unwinder = "libunwind",
    .stack_depth = 16,
    .leak_max = 5,
    .leak_min = 50,
    .peak_bytes = (UINT64_C(5) << 40) + 5,
    .sections =
        {
            {.name = "leaked",
             .present = true,
             .count = 13,
             .bytes = (UINT64_C(1) << 40) + 74473 + 1000,
             .stacks = 6,
             ALL(made_leaked),
             .omitted_most = 1,
             .omitted_most_bytes = 900,
             .omitted_small = 2,
             .omitted_small_bytes = 100},
            {.name = "destroyed",
             .present = true,
             .count = 100,
             .bytes = 6400,
             .stacks = 1,
             ALL(made_destroyed)},
            {.name = "suppressed",
             .present = true,
             .count = 1,
             .bytes = 11,
             .stacks = 1,
             .omitted_most = 1,
             .omitted_most_bytes = 11},
            {.name = "peak",
             .present = true,
             .count = 11,
             .bytes = (UINT64_C(5) << 40) + 5,
             .stacks = 2,
             ALL(made_peak)},
        },
    .point_count = COUNT(made_points),
    .points = made_points,
};
#undef ALL

/* Once, before the model is used. */
static inline void made_model_init(void)
{
    memset(made_long_name, 'n', sizeof made_long_name - 1);
}

#endif
