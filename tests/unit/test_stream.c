/* Memory freed on a stream: at once for the same stream, behind a fence for all others. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "fake_upstream.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

static ca_arena_t *arena;
static ca_stream_t *one, *two;

typedef struct mine {
    ca_block_t *block;
    uint64_t address;
} mine_t;

/* The fake's own check of early reuse knows no streams: it is off (no space). */
static int set_up_with(ca_reuse_t reuse)
{
    ca_arena_params_t params = fake_params;
    params.reuse = reuse;
    fake_reset(1024 * MIB, 0);
    arena = ca_arena_create(&fake_upstream, NULL, &params);
    one = ca_arena_stream(arena, (void *)1, false);
    two = ca_arena_stream(arena, (void *)2, false);
    return arena && one && two ? 0 : -1;
}

static int set_up(void **state)
{
    (void)state;
    return set_up_with(CA_POOL_REUSE_AUTO);
}

static int set_up_joining(void **state)
{
    (void)state;
    return set_up_with(CA_POOL_REUSE_WAIT);
}

static int tear_down(void **state)
{
    (void)state;
    ca_arena_retire(arena);
    return fake.errors ? -1 : 0;
}

static void sound(void)
{
    const char *broken = ca_arena_check(arena);
    if (broken)
        fail_msg("%s", broken);
    assert_int_equal(fake.errors, 0);
}

static mine_t get(ca_stream_t *stream, size_t bytes)
{
    mine_t mine;
    assert_int_equal(ca_arena_alloc(arena, stream, bytes, &mine.block, &mine.address, NULL), 0);
    sound();
    return mine;
}

static void put(mine_t mine, ca_stream_t *stream)
{
    ca_arena_free_on(mine.block, stream);
    sound();
}

static ca_arena_stats_t stats(void)
{
    ca_arena_stats_t now;
    ca_arena_stats(arena, &now);
    return now;
}

/* A block of the same size for `stream` that is not at `address`: then another segment grew, or
 * another place was found. */
static bool gets_another(ca_stream_t *stream, size_t bytes, uint64_t address)
{
    mine_t other = get(stream, bytes);
    return other.address >= address + bytes || other.address + bytes <= address;
}

static void a_pair_on_one_stream_makes_no_call(void **state)
{
    (void)state;
    const size_t sizes[] = {512, 100 * KIB, 6 * MIB, 200 * MIB};
    for (unsigned s = 0; s < 4; s++) {
        mine_t first = get(one, sizes[s]);
        put(first, one);
        fake_log();
        for (unsigned i = 0; i < 1000; i++) {
            mine_t again = get(one, sizes[s]);
            assert_int_equal(again.address, first.address);
            put(again, one);
        }
        assert_string_equal(fake_log(), "");
    }
}

static void another_stream_waits_for_the_fence(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    assert_true(gets_another(two, 6 * MIB, a.address));
    assert_true(gets_another(NULL, 6 * MIB, a.address));
    fake_pass(fake.recorded);
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
    mine_t c = get(two, 6 * MIB);
    assert_int_equal(c.address, a.address);
}

static void a_plain_free_is_for_nobody_yet(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, NULL);
    assert_true(gets_another(one, 6 * MIB, a.address));
}

static void a_smaller_request_is_cut_from_what_the_stream_freed(void **state)
{
    (void)state;
    mine_t filler[3];
    mine_t a = get(one, 7 * MIB);
    for (unsigned i = 0; i < 3; i++)
        filler[i] = get(one, 256 * KIB); /* the segment is full but for a little */
    (void)get(one, stats().largest_ready);
    put(a, one);
    fake_log();
    mine_t b = get(one, 3 * MIB), c = get(one, 4 * MIB);
    assert_int_equal(b.address, a.address);
    assert_int_equal(c.address, a.address + 3 * MIB);
    assert_string_equal(fake_log(), "");
    put(b, one);
    put(c, two);
    put(filler[0], NULL);
}

static void an_epoch_of_a_stream_closes_by_count(void **state)
{
    (void)state;
    mine_t held[CA_STREAM_EPOCH_BLOCKS];
    for (unsigned i = 0; i < CA_STREAM_EPOCH_BLOCKS; i++)
        held[i] = get(one, 4096);
    fake_log();
    for (unsigned i = 0; i + 1 < CA_STREAM_EPOCH_BLOCKS; i++)
        put(held[i], one);
    assert_string_equal(fake_log(), "");
    put(held[CA_STREAM_EPOCH_BLOCKS - 1], one);
    assert_string_equal(fake_log(), "R");
}

static void a_destroyed_stream_strands_nothing(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    fake_log();
    ca_stream_retire(one);
    assert_string_equal(fake_log(), "Rq");
    one = ca_arena_stream(arena, (void *)1, false); /* the handle comes again */
    assert_true(gets_another(one, 6 * MIB, a.address));
    fake_pass(fake.recorded);
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
    sound();
}

static size_t streams(void)
{
    size_t count = 0;
    for (const ca_stream_t *stream = arena->streams; stream; stream = stream->next)
        count++;
    return count;
}

/* As in a program with a stream for each of its requests. */
static void use_streams(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        ca_stream_t *stream = ca_arena_stream(arena, (void *)(uintptr_t)(i + 10), false);
        ca_arena_free_on(get(stream, 64 * KIB).block, stream);
        ca_stream_retire(stream);
        fake_pass(fake.recorded - 1); /* all but the last one are done */
    }
    sound();
}

static void streams_that_come_and_go_do_not_pile_up(void **state)
{
    (void)state;
    use_streams(1000);
    assert_in_range(streams(), 3, 5); /* with the two that stay */
    assert_in_range(stats().pending_bytes, 0, 3 * 64 * KIB);
}

static void a_destroyed_stream_that_works_for_ever_is_in_nobodys_way(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    fake.stuck = fake.recorded + 1;
    ca_stream_retire(one);
    use_streams(1000);
    assert_in_range(streams(), 3, 8);
    assert_true(gets_another(two, 6 * MIB, a.address));
    fake.stuck = 0;
}

static void what_was_done_when_its_stream_was_destroyed_is_ready_at_once(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    fake.auto_pass = true;
    ca_stream_retire(one);
    assert_int_equal(stats().pending_bytes, 0);
    sound();
}

static void a_destroyed_stream_that_gets_no_fence_waits_for_all_work(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    fake.capturing = true;
    ca_stream_retire(one);
    sound();
    fake.capturing = false;
    ca_arena_trim(arena, 0);
    sound();
    assert_int_equal(stats().pending_bytes, 6 * MIB);
    fake_pass(fake.recorded);
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
}

static void a_stream_whose_fences_fail_waits_for_all_work(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    fake.fail_rc[FAKE_RECORD] = -EINVAL;
    fake.fail_at[FAKE_RECORD] = 1;
    ca_arena_trim(arena, 0);
    sound();
    fake_pass(fake.recorded);
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
}

static void what_is_freed_after_a_fence_that_failed_is_given_back(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB), b = get(one, 6 * MIB);
    put(a, one);
    fake.fail_rc[FAKE_RECORD] = -EINVAL;
    fake.fail_at[FAKE_RECORD] = 1;
    ca_arena_trim(arena, 0);
    put(b, one);
    ca_arena_trim(arena, 0); /* soon after the failure */
    fake_pass(fake.recorded);
    ca_arena_trim(arena, SIZE_MAX);
    assert_int_equal(stats().reserved_bytes, 0);
    sound();
}

static void *trim(void *unused)
{
    ca_arena_trim(arena, 0);
    return unused;
}

static void only_its_own_thread_records_on_a_confined_stream(void **state)
{
    (void)state;
    pthread_t other;
    ca_stream_t *own = ca_arena_stream(arena, (void *)3, true);
    mine_t a = get(own, 6 * MIB);
    put(a, own);
    fake_log();
    assert_int_equal(pthread_create(&other, NULL, trim, NULL), 0);
    pthread_join(other, NULL);
    assert_string_equal(fake_log(), "Rq"); /* one, behind all work */
    assert_int_equal(stats().epochs, 1);
    sound();
}

/* Behind all work, as another thread would have to record it, it might wait for that thread. */
static void a_large_free_on_a_confined_stream_has_its_fence_at_once(void **state)
{
    (void)state;
    ca_stream_t *own = ca_arena_stream(arena, (void *)3, true);
    mine_t a = get(own, 200 * MIB);
    fake_log();
    put(a, own);
    assert_string_equal(fake_log(), "R");
    put(get(one, 200 * MIB), one);
    assert_null(strchr(fake_log(), 'R'));
}

static void a_stream_is_made_to_wait_instead(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    fake_log();
    put(a, one);
    mine_t b = get(two, 6 * MIB);
    assert_int_equal(b.address, a.address);
    assert_string_equal(fake_log(), "RqJ");
    put(b, two);
    assert_true(gets_another(NULL, 6 * MIB, b.address)); /* no stream, nothing to join */
}

static void growth_out_of_proportion_gives_way_to_a_waiting_stream(void **state)
{
    (void)state;
    const size_t bytes = 6 * MIB;
    for (unsigned i = 0; i < 1000; i++) /* no fence ever passes */
        put(get(i % 2 ? one : two, bytes), i % 2 ? two : one);
    assert_true(stats().reserved_bytes < 200 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
    assert_int_equal(fake.calls[FAKE_WAIT], 0);
}

static void use_and_free(ca_stream_t *stream, unsigned count)
{
    mine_t held[40];
    for (unsigned i = 0; i < count; i++)
        held[i] = get(stream, 6 * MIB);
    for (unsigned i = 0; i < count; i++)
        put(held[i], stream);
}

/* Until `two` asks for what `one` freed. */
static void outgrow(unsigned count)
{
    fake.auto_pass = false;
    use_and_free(one, count);
    use_and_free(two, count);
    fake.auto_pass = true;
    fake_pass_all();
    ca_arena_trim(arena, 0);
}

static uint64_t fences_of_pairs_of_frees(unsigned pairs)
{
    uint64_t before = fake.recorded;
    for (unsigned i = 0; i < pairs; i++) {
        mine_t c = get(one, 4096), d = get(one, 4096);
        put(c, one);
        put(d, one);
    }
    return fake.recorded - before;
}

static void frees_have_fences_of_their_own_while_streams_would_join(void **state)
{
    (void)state;
    outgrow(20);
    fences_of_pairs_of_frees(1); /* their segment is there */
    assert_int_equal(fences_of_pairs_of_frees(100), 200);
    for (unsigned i = 0; i < CA_STREAM_PRECISE / 2; i++)
        ca_arena_free_on(get(two, 512).block, two);
    assert_in_range(fences_of_pairs_of_frees(100), 0, 100 * 2 / CA_STREAM_EPOCH_BLOCKS + 1);
    outgrow(40);
    assert_int_equal(fences_of_pairs_of_frees(100), 200);
}

static void a_stream_without_others_needs_no_fences(void **state)
{
    (void)state;
    outgrow(20);
    ca_stream_retire(two);
    assert_in_range(fences_of_pairs_of_frees(100), 0, 100 * 2 / CA_STREAM_EPOCH_BLOCKS + 1);
}

static void only_a_fence_right_behind_the_free_is_joined(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB), b = get(one, 512);
    arena->precise_until = 0; /* two frees share a fence */
    put(a, one);
    put(b, one);
    assert_true(gets_another(two, 6 * MIB, a.address));
    assert_int_equal(fake.calls[FAKE_JOIN], 0);
}

static void a_stream_that_cannot_wait_gets_other_memory(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB);
    put(a, one);
    fake.fail_rc[FAKE_JOIN] = -EINVAL;
    fake.fail_at[FAKE_JOIN] = 1;
    assert_true(gets_another(two, 6 * MIB, a.address));
    fake_pass(fake.recorded + 1);
    ca_arena_trim(arena, 0);
    assert_int_equal(stats().pending_bytes, 0);
}

static void a_context_that_goes_takes_its_streams_along(void **state)
{
    (void)state;
    mine_t a = get(one, 6 * MIB), b = get(two, 512);
    put(a, one);
    ca_arena_retire(arena);
    ca_arena_free_on(b.block, two);
    ca_stream_retire(one);
    uint64_t address;
    ca_block_t *block;
    assert_int_equal(ca_arena_alloc(arena, two, 512, &block, &address, NULL), -EIO);
    assert_null(ca_arena_stream(arena, (void *)3, false));
}

static void memory_that_streams_hold_serves_a_full_device(void **state)
{
    (void)state;
    mine_t held[4];
    fake.limit = 512 * MIB;
    for (unsigned i = 0; i < 4; i++)
        held[i] = get(i % 2 ? one : two, 120 * MIB);
    for (unsigned i = 0; i < 4; i++)
        put(held[i], i % 2 ? one : two);
    fake_pass(fake.recorded);
    fake.auto_pass = true;
    (void)get(NULL, 400 * MIB);
    assert_int_equal(fake.unbounded_waits, 0);
}

static void nobody_waits_without_bound_for_a_stream(void **state)
{
    (void)state;
    fake.limit = 256 * MIB;
    mine_t a = get(one, 200 * MIB);
    uint64_t address;
    ca_block_t *block;
    put(a, one);
    assert_int_equal(ca_arena_alloc(arena, NULL, 200 * MIB, &block, &address, NULL), -ENOMEM);
    assert_int_equal(fake.unbounded_waits, 0);
    assert_int_equal(fake.waiting_frees, 0);
    sound();
}

#define SLOTS 300

/* Any order of everything keeps the invariants. */
static void random_use_is_sound(void **state)
{
    (void)state;
    uint64_t seed = 7;
    mine_t slots[SLOTS] = {0};
    ca_stream_t *streams[] = {one, two, NULL, ca_arena_stream(arena, (void *)3, true)};
    fake.auto_pass = true;
    fake.lag = 5;
    for (unsigned i = 0; i < 30000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1;
        mine_t *slot = &slots[(seed >> 33) % SLOTS];
        ca_stream_t *stream = streams[(seed >> 45) % 4];
        size_t bytes = ((size_t)512 << (seed >> 50) % 12) + (seed >> 20) % 4096;
        if (slot->block)
            ca_arena_free_on(slot->block, stream);
        assert_int_equal(ca_arena_alloc(arena, stream, bytes, &slot->block, &slot->address, NULL),
                         0);
        if (i % 500 == 0) {
            ca_stream_retire(streams[i / 500 % 2]);
            streams[i / 500 % 2] = ca_arena_stream(arena, (void *)(uintptr_t)(i + 10), false);
        }
        if (i % 100 == 0)
            sound();
    }
    for (unsigned i = 0; i < SLOTS; i++)
        for (unsigned j = i + 1; j < SLOTS; j++)
            assert_true(!slots[i].block || slots[i].block != slots[j].block);
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].block)
            ca_arena_free_on(slots[i].block, streams[i % 4]);
    fake.lag = 0;
    fake_pass(fake.recorded);
    ca_arena_trim(arena, SIZE_MAX);
    sound();
    assert_int_equal(stats().reserved_bytes, 0);
}

static ca_stream_t *legacy(void)
{
    ca_stream_t *stream = ca_arena_legacy_stream(arena, (void *)3);
    assert_non_null(stream);
    assert_ptr_equal(stream, ca_arena_legacy_stream(arena, (void *)3));
    return stream;
}

/* The record is what other streams wait for. */
static void a_pair_on_the_legacy_stream_makes_one_record(void **state)
{
    (void)state;
    mine_t first = get(legacy(), 6 * MIB);
    put(first, legacy());
    fake_log();
    for (unsigned i = 0; i < 20; i++) { /* no fence ever passes */
        mine_t again = get(legacy(), 6 * MIB);
        assert_int_equal(again.address, first.address);
        put(again, legacy());
    }
    assert_string_equal(fake_log(), "RRRRRRRRRRRRRRRRRRRR");
    assert_true(gets_another(one, 6 * MIB, first.address) || fake.calls[FAKE_JOIN] > 0);
}

static void before_that_record_nothing_is_taken(void **state)
{
    (void)state;
    mine_t a = get(legacy(), 6 * MIB);
    fake.capturing = true;
    put(a, legacy());
    assert_true(gets_another(legacy(), 6 * MIB, a.address));
    fake.capturing = false;
    mine_t small = get(legacy(), 512);
    put(small, legacy());
    mine_t next;
    int rc = ca_arena_alloc_ready(arena, legacy(), 512, &next.block, &next.address, NULL);
    assert_true(rc == -EAGAIN || next.address != small.address);
}

static void small_frees_on_the_legacy_stream_share_a_record(void **state)
{
    (void)state;
    mine_t held[CA_STREAM_EPOCH_BLOCKS];
    for (unsigned i = 0; i < CA_STREAM_EPOCH_BLOCKS; i++)
        held[i] = get(legacy(), 512);
    uint64_t recorded = fake.recorded;
    for (unsigned i = 0; i < CA_STREAM_EPOCH_BLOCKS; i++)
        put(held[i], legacy());
    assert_int_equal(fake.recorded, recorded + 1);
}

/* All blocking streams would wait for the other one. */
static void the_legacy_stream_is_not_made_to_wait(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        put(get(i % 2 ? one : legacy(), 6 * MIB), one);
    assert_int_equal(fake.calls[FAKE_JOIN], 0);
}

static void free_unordered(mine_t mine, ca_stream_t *stream, uint16_t number)
{
    ca_arena_free_async(mine.block, stream, number);
    sound();
}

static void what_cuda_free_frees_goes_back_to_its_stream_s_order(void **state)
{
    (void)state;
    uint64_t recorded = fake.recorded;
    mine_t a = get(one, 6 * MIB);
    for (unsigned i = 0; i < 100; i++) {
        free_unordered(a, one, ca_stream_number(one));
        mine_t again = get(one, 6 * MIB);
        assert_int_equal(again.address, a.address);
        a = again;
    }
    assert_int_equal(fake.recorded, recorded);
    free_unordered(a, one, ca_stream_number(one));
    assert_true(gets_another(NULL, 6 * MIB, a.address));
}

static void not_where_that_is_another_stream_by_now(void **state)
{
    (void)state;
    uint16_t number = ca_stream_number(one);
    mine_t a = get(one, 6 * MIB), b = get(one, 6 * MIB), c = get(one, 6 * MIB);
    free_unordered(a, two, number);
    assert_true(gets_another(two, 6 * MIB, a.address));
    ca_stream_retire(one);
    free_unordered(b, one, number);
    ca_stream_t *next = ca_arena_stream(arena, (void *)1, false);
    assert_int_not_equal(ca_stream_number(next), number);
    assert_true(gets_another(next, 6 * MIB, b.address));
    free_unordered(c, next, number);
    assert_true(gets_another(next, 6 * MIB, c.address));
}

static void what_another_context_s_work_is_at_holds_up_nothing_else(void **state)
{
    (void)state;
    mine_t a = get(NULL, 6 * MIB), b = get(NULL, 6 * MIB);
    ca_arena_free_elsewhere(a.block);
    sound();
    fake.stuck = fake.recorded;
    put(b, NULL);
    fake_pass_all();
    mine_t c = get(NULL, 6 * MIB);
    assert_int_equal(c.address, b.address);
    assert_true(gets_another(one, 6 * MIB, a.address));
    assert_true(gets_another(legacy(), 6 * MIB, a.address));
    assert_int_equal(fake.calls[FAKE_JOIN], 0);
    fake.stuck = 0;
    ca_arena_trim(arena, 0);
    assert_int_equal(get(NULL, 6 * MIB).address, a.address);
}

static unsigned walked(void)
{
    unsigned count = 0;
    (void)ca_streams_reap(arena, 0, false);
    for (const ca_stream_t *stream = arena->busy; stream; stream = stream->next_busy)
        count++;
    return count;
}

static void streams_with_nothing_to_ask_are_not_looked_at(void **state)
{
    (void)state;
    ca_stream_t *stream[100];
    for (unsigned i = 0; i < 100; i++) {
        stream[i] = ca_arena_stream(arena, &stream[i], false);
        put(get(stream[i], 1000), stream[i]);
    }
    assert_int_equal(walked(), 100);
    ca_arena_trim(arena, 0);
    assert_int_equal(walked(), 100); /* their fences have not passed */
    fake_pass_all();
    ca_arena_trim(arena, 0);
    assert_int_equal(walked(), 0);
    put(get(stream[7], 1000), stream[7]);
    assert_int_equal(walked(), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define JOINING(name) cmocka_unit_test_setup_teardown(name, set_up_joining, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_pair_on_one_stream_makes_no_call),
        TEST(another_stream_waits_for_the_fence),
        TEST(a_plain_free_is_for_nobody_yet),
        TEST(a_smaller_request_is_cut_from_what_the_stream_freed),
        TEST(an_epoch_of_a_stream_closes_by_count),
        TEST(a_destroyed_stream_strands_nothing),
        TEST(streams_that_come_and_go_do_not_pile_up),
        TEST(a_destroyed_stream_that_works_for_ever_is_in_nobodys_way),
        TEST(what_was_done_when_its_stream_was_destroyed_is_ready_at_once),
        TEST(a_destroyed_stream_that_gets_no_fence_waits_for_all_work),
        TEST(a_stream_whose_fences_fail_waits_for_all_work),
        TEST(what_is_freed_after_a_fence_that_failed_is_given_back),
        TEST(only_its_own_thread_records_on_a_confined_stream),
        TEST(a_large_free_on_a_confined_stream_has_its_fence_at_once),
        JOINING(a_stream_is_made_to_wait_instead),
        JOINING(a_stream_that_cannot_wait_gets_other_memory),
        TEST(growth_out_of_proportion_gives_way_to_a_waiting_stream),
        TEST(frees_have_fences_of_their_own_while_streams_would_join),
        TEST(a_stream_without_others_needs_no_fences),
        JOINING(only_a_fence_right_behind_the_free_is_joined),
        TEST(a_context_that_goes_takes_its_streams_along),
        TEST(memory_that_streams_hold_serves_a_full_device),
        TEST(nobody_waits_without_bound_for_a_stream),
        TEST(random_use_is_sound),
        JOINING(random_use_is_sound),
        TEST(a_pair_on_the_legacy_stream_makes_one_record),
        TEST(before_that_record_nothing_is_taken),
        TEST(small_frees_on_the_legacy_stream_share_a_record),
        TEST(the_legacy_stream_is_not_made_to_wait),
        TEST(what_cuda_free_frees_goes_back_to_its_stream_s_order),
        TEST(not_where_that_is_another_stream_by_now),
        TEST(what_another_context_s_work_is_at_holds_up_nothing_else),
        TEST(streams_with_nothing_to_ask_are_not_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
