/* Allocations and frees in any order, with fences that pass late, calls that fail, memory that runs
 * out, captures and pins: what is handed out overlaps nothing, and is used again only when a later
 * fence has passed (the model is fake_upstream.h); afterwards nothing is left. */
#include <errno.h>
#include "tests/fuzz/fuzz.h"

#define FAKE_RANGES 1024 /* few, or most of the time goes to clearing them */
#include "tests/unit/fake_upstream.h"

#define HELD 64

static void sound(ca_arena_t *arena)
{
    const char *broken = ca_arena_check(arena);
    if (broken)
        fprintf(stderr, "%s\n", broken);
    CLAIM(!broken && fake.errors == 0);
}

/* Up to 4 MiB, about as many of each power of two; some sizes come again and again. */
static size_t size_from(input_t *input)
{
    uint8_t what = next_byte(input);
    size_t power = (size_t)1 << what % 22;
    return what >= 200 ? power : power + next_number(input, 2) % power;
}

static void fail_a_call(input_t *input)
{
    static const struct {
        fake_call_t call;
        int rc;
    } failures[] = {{FAKE_ALLOC, -ENOMEM}, {FAKE_RECORD, -EAGAIN}, {FAKE_QUERY, -EAGAIN},
                    {FAKE_WAIT, -EAGAIN},  {FAKE_SYNC, -EAGAIN},   {FAKE_JOIN, -EAGAIN}};
    uint8_t what = next_byte(input);
    fake_call_t call = failures[what % 6].call;
    fake.fail_rc[call] = failures[what % 6].rc;
    fake.fail_at[call] = 1 + what / 6 % 4;
}

static ca_arena_t *start(input_t *input)
{
    static const size_t limits[] = {8 * MIB, 12 * MIB, 16 * MIB, 32 * MIB};
    uint8_t what = next_byte(input);
    ca_arena_params_t params = fake_params;
    size_t limit = limits[what % 4];
    params.max_split = what & 4 ? MIB : SIZE_MAX;
    params.small = what & 8 ? 64 * KIB : 0;
    params.thread_cache = what & 16 ? 8 * MIB : 0;
    params.warmup = what & 32 ? 100 : 0;
    params.reuse_wait_ns = 1000;
    fake_reset(limit, 2 * limit);
    fake.auto_pass = what & 64;
    fake.no_fences = what & 128;
    ca_arena_t *arena = ca_arena_create(&fake_upstream, NULL, &params);
    CLAIM(arena);
    return arena;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    held_t held[HELD] = {0};
    input_t input = {data, size};
    ca_arena_t *arena = start(&input);
    bool pinned = false;

    while (input.left) {
        uint8_t what = next_byte(&input);
        held_t *one = &held[what % HELD];
        switch (what / HELD) {
        case 0:
        case 1:
            if (!one->block)
                (void)hold(arena, size_from(&input), one);
            else if (what / HELD == 0)
                let_go(one);
            else
                let_go_past_the_cache(one);
            break;
        case 2:
            if (fake.recorded > what % HELD)
                fake_pass(fake.recorded - what % HELD);
            break;
        default:
            if (what % 8 == 0)
                fake.capturing = !fake.capturing;
            else if (what % 8 == 1)
                ca_arena_pin(arena, pinned = !pinned);
            else if (what % 8 == 2)
                ca_arena_trim(arena, next_number(&input, 4));
            else if (what % 8 == 3)
                sound(arena);
            else
                fail_a_call(&input);
        }
    }
    for (size_t i = 0; i < HELD; i++)
        if (held[i].block)
            let_go(&held[i]);
    sound(arena);

    if (pinned)
        ca_arena_pin(arena, false);
    fake_calm_down();
    /* The first one may have to learn that there are no fences. */
    ca_arena_trim_as(arena, SIZE_MAX, CA_TRIM_ASKED);
    ca_arena_trim_as(arena, SIZE_MAX, CA_TRIM_ASKED);
    sound(arena);
    CLAIM(fake.used == 0 && fake.fences == 0);
    ca_arena_retire(arena);
    return 0;
}
