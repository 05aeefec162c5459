/* Records in places that others have for them: found like any record, gone with one exchange, and
 * never mistaken for what was there before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "registry/table/fast_path.h"
#include "registry/table/registry.h"

#define BASE ((uint64_t)0x7f0000000000)

static int fresh(void **state)
{
    (void)state;
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    return 0;
}

static ca_record_t record_at(uint64_t address)
{
    ca_record_t record = {.address = address};
    ca_record_init(&record);
    return record;
}

static ca_allocation_t record_of(uint64_t address, uint64_t bytes)
{
    return (ca_allocation_t){.address = address,
                             .bytes = bytes,
                             .kind = CA_KIND_PINNED,
                             .device = 200,
                             .context = 65000,
                             .stream = 0xfedcba9876543210,
                             .owner = &fresh,
                             .stack = 0xfffffffe,
                             .thread = 0x7ffffffe};
}

/* As a free that is a hit does. */
static ca_record_t *hold(uint64_t address, uint64_t *state)
{
    ca_record_t *record = ca_registry_find_unlocked(address, state);
    return record && ca_record_lock(record, *state) ? record : NULL;
}

static void a_record_comes_back_as_it_was_put_in(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t in = record_of(BASE, ((uint64_t)1 << 48) - 1), out;
    assert_int_equal(ca_registry_insert_at(&record, &in), 0);
    assert_true(ca_registry_find(BASE, &out));
    in.sequence = 1;
    assert_memory_equal(&in, &out, sizeof in);
    memset(&out, 0, sizeof out);
    assert_true(ca_registry_erase(BASE, &out));
    assert_memory_equal(&in, &out, sizeof in);
    assert_false(ca_registry_erase(BASE, &out));
    assert_false(ca_registry_find(BASE, &out));
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
    assert_int_equal(ca_registry_peak_bytes(), in.bytes);
}

static void a_place_that_is_known_is_filled_again(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t out;
    for (uint64_t i = 1; i <= 1000; i++) {
        ca_allocation_t in = record_of(BASE, i);
        assert_int_equal(ca_registry_insert_at(&record, &in), 0);
        assert_true(ca_record_indexed(&record));
        assert_true(ca_registry_take_owned(BASE, &out));
        assert_int_equal(out.bytes, i);
        assert_int_equal(out.sequence, i);
    }
}

static void a_place_that_was_forgotten_is_found_at_its_new_address_alone(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 1), out;
    ca_registry_insert_at(&record, &in);
    ca_registry_erase(BASE, &out);
    ca_registry_forget(&record);
    assert_false(ca_record_indexed(&record));
    record.address = BASE + 512;
    in = record_of(BASE + 512, 2);
    assert_int_equal(ca_registry_insert_at(&record, &in), 0);
    assert_false(ca_registry_find(BASE, &out));
    assert_true(ca_registry_find(BASE + 512, &out));
    assert_int_equal(out.bytes, 2);
}

static void the_latest_at_an_address_is_what_lives_there(void **state)
{
    (void)state;
    ca_record_t old = record_at(BASE), new = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 1), out;
    ca_registry_insert_at(&old, &in);
    in.bytes = 2;
    assert_int_equal(ca_registry_insert_at(&new, &in), 0);
    assert_int_equal(ca_registry_total().count, 1);
    in.bytes = 4;
    in.owner = NULL;
    assert_int_equal(ca_registry_insert(&in), -EEXIST);
    assert_int_equal(ca_registry_total().bytes, 4);
    assert_true(ca_registry_erase(BASE, &out));
    assert_int_equal(out.bytes, 4);
    /* It is empty, and still known: the driver may give its address to somebody else. */
    assert_int_equal(ca_registry_insert(&in), 0);
    assert_false(ca_record_indexed(&new));
    assert_true(ca_registry_erase(BASE, &out));
    in = record_of(BASE, 8);
    assert_int_equal(ca_registry_insert_at(&new, &in), 0);
    assert_true(ca_registry_find(BASE, &out));
    assert_int_equal(out.bytes, 8);
}

static void what_ends_is_gone_and_takes_nothing_more(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 7), out;
    ca_registry_insert_at(&record, &in);
    ca_registry_end(&record);
    assert_false(ca_registry_find(BASE, &out));
    assert_int_equal(ca_registry_total().bytes, 0);
    assert_int_equal(ca_registry_insert_at(&record, &in), -EIO);
    memset(&record, 0, sizeof record); /* its memory was discarded */
    record.address = BASE;
    assert_int_equal(ca_registry_insert_at(&record, &in), -EIO);
    assert_int_equal(ca_registry_total().count, 0);
    assert_false(ca_registry_find(BASE, &out));
}

static void what_comes_too_late_replaces_nothing(void **state)
{
    (void)state;
    ca_record_t late = record_at(BASE), there = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 1), other = record_of(BASE, 2), out;
    other.context = 1;
    assert_int_equal(ca_registry_insert_at(&there, &other), 0);
    assert_int_equal(ca_registry_insert_at_new(&late, &in), -EEXIST);
    assert_true(ca_registry_find(BASE, &out));
    assert_int_equal(out.bytes, 2);
    assert_true(ca_registry_erase(BASE, &out));
    assert_int_equal(ca_registry_insert_at_new(&late, &in), -EEXIST); /* it is a block's own */
    assert_true(ca_record_indexed(&there));
    assert_int_equal(ca_registry_insert_at(&there, &other), 0);
    ca_registry_end(&late);
    assert_int_equal(ca_registry_insert_at(&late, &in), -EIO);
    assert_true(ca_registry_find(BASE, &out));
    assert_int_equal(out.bytes, 2);
    assert_int_equal(ca_registry_total().bytes, 2);
    ca_registry_end(&there);
    late = record_at(BASE);
    assert_int_equal(ca_registry_insert_at_new(&late, &in), 0);
    assert_int_equal(ca_registry_total().bytes, 1);
}

static void a_record_is_taken_out_as_one_of_its_context(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 1), out;
    assert_false(ca_registry_take_of(BASE, 65000));
    assert_int_equal(ca_registry_insert_at(&record, &in), 0);
    assert_false(ca_registry_take_of(BASE, 1));
    assert_true(ca_registry_find(BASE, &out));
    assert_true(ca_registry_take_of(BASE, 65000));
    assert_false(ca_registry_find(BASE, &out));
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_insert(&in), 0);
    assert_false(ca_registry_take_of(BASE, 1));
    assert_true(ca_registry_take_of(BASE, 65000));
    assert_int_equal(ca_registry_total().bytes, 0);
}

static void a_dropped_context_takes_its_records_out_of_their_places(void **state)
{
    (void)state;
    ca_record_t mine = record_at(BASE), other = record_at(BASE + 512);
    ca_allocation_t in = record_of(BASE, 3), out;
    ca_registry_insert_at(&mine, &in);
    in = record_of(BASE + 512, 5);
    in.context = 1;
    ca_registry_insert_at(&other, &in);
    ca_registry_total_t gone = ca_registry_drop_context(65000);
    assert_int_equal(gone.count, 1);
    assert_int_equal(gone.bytes, 3);
    assert_false(ca_registry_find(BASE, &out));
    assert_true(ca_registry_find(BASE + 512, &out));
}

static void a_shared_record_stays_in_its_place(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 3), out, shared;
    ca_registry_insert_at(&record, &in);
    ca_registry_find(BASE, &in);
    shared = in;
    shared.shared = CA_SHARED_OWNER;
    assert_true(ca_registry_replace(&in, &shared));
    assert_false(ca_registry_take_owned(BASE, &out));
    assert_true(ca_registry_erase(BASE, &out));
    assert_int_equal(out.shared, CA_SHARED_OWNER);
    assert_true(ca_registry_find(BASE, &out)); /* the erase has only copied it */
    assert_true(ca_registry_take(BASE, &out));
    assert_false(ca_registry_find(BASE, &out));
}

/* What record_of tells, as a hit leaves it. */
static bool insert_again(ca_record_t *record, uint64_t bytes, const void *owner)
{
    ca_record_origin_t origin = ca_record_origin(200, 65000, 0x7ffffffe);
    ca_live_ready(ca_thread_counts, bytes);
    bool hit = ca_registry_insert_again(record, &origin, CA_KIND_PINNED, bytes, owner, 0xfffffffe,
                                        ca_thread_counts);
    ca_thread_counts_add(&ca_thread_counts->fast_allocs[CA_API_RUNTIME], hit);
    return hit;
}

/* A record that is held. */
static void erase_held(ca_record_t *record, uint64_t state)
{
    uint64_t bytes = ca_record_bytes(record);
    ca_registry_erase_held(record, state);
    ca_thread_counts_add(&ca_thread_counts->fast_frees[CA_API_RUNTIME], 1);
    ca_live_leave_credit(ca_thread_counts, ca_live_credit_with(ca_thread_counts, bytes));
}

static void a_hit_leaves_the_same_record(void **state)
{
    (void)state;
    ca_record_t record = record_at(BASE);
    ca_allocation_t in = record_of(BASE, 5), out;
    uint64_t seen = 0, other;
    ca_thread_counts_join();
    assert_false(insert_again(&record, 5, &fresh));
    assert_int_equal(ca_registry_total().count, 0); /* it must be inserted once before */
    in.stream = 0;
    assert_int_equal(ca_registry_insert_at(&record, &in), 0);
    assert_false(insert_again(&record, 5, &fresh));
    assert_true(ca_registry_erase(BASE, &out));

    assert_true(insert_again(&record, 5, &fresh));
    assert_true(ca_registry_find(BASE, &out));
    in.sequence = 2;
    assert_memory_equal(&in, &out, sizeof in);
    assert_int_equal(ca_registry_total().bytes, 5);
    assert_ptr_equal(hold(BASE, &seen), &record);
    assert_null(hold(BASE, &other)); /* one at a time */
    ca_registry_release_held(&record, seen);
    assert_ptr_equal(hold(BASE, &seen), &record);
    erase_held(&record, seen);
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
    assert_null(hold(BASE, &seen));
    assert_false(ca_registry_find(BASE, &out));

    ca_registry_end(&record);
    assert_false(insert_again(&record, 5, &fresh));
}

static void a_hit_leaves_alone_what_has_no_place_of_its_own(void **state)
{
    (void)state;
    ca_allocation_t in = record_of(BASE, 5), out;
    uint64_t seen;
    assert_int_equal(ca_registry_insert(&in), 0);
    assert_null(hold(BASE, &seen));
    assert_null(hold(BASE + 512, &seen));
    assert_true(ca_registry_erase(BASE, &out));
}

/* --- threads ---------------------------------------------------------------------------------- */

#define THREADS 4
#define PLACES 512
#define ROUNDS 20000

static ca_record_t places[THREADS][PLACES];
static _Atomic unsigned wrong;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du >> 16;
}

/* As a hit does, unless somebody looks just then; or in the general way. */
static bool take_out(ca_record_t *record, bool as_hit)
{
    ca_allocation_t out;
    uint64_t state;
    if (as_hit && hold(record->address, &state) == record) {
        bool right = ca_record_bytes(record) == record->address - BASE;
        erase_held(record, state);
        return right;
    }
    return ca_registry_take_owned(record->address, &out) && out.owner == record &&
           out.bytes == record->address - BASE;
}

/* Each thread has addresses and places of its own, and moves places from one address to the other;
 * it looks for everybody's. A record names its address in its size. */
static void *work(void *number)
{
    size_t self = (size_t)(uintptr_t)number;
    uint64_t random = self + 1;
    bool live[PLACES] = {false};
    ca_thread_counts_join();
    for (unsigned n = 0; n < ROUNDS; n++) {
        size_t i = next_random(&random) % PLACES;
        ca_record_t *record = &places[self][i];
        ca_allocation_t out;
        if (live[i]) {
            wrong += !take_out(record, next_random(&random) % 2);
            if (next_random(&random) % 4 == 0) {
                ca_registry_forget(record);
                ca_record_set_address(record, BASE + (self * PLACES + i) * 4096 +
                                                  next_random(&random) % 4 * 512);
            }
        } else {
            ca_allocation_t in = record_of(record->address, record->address - BASE);
            in.owner = record;
            if (next_random(&random) % 2 == 0 || !insert_again(record, in.bytes, record))
                wrong += ca_registry_insert_at(record, &in) != 0;
        }
        live[i] = !live[i];
        uint64_t any = BASE + next_random(&random) % (THREADS * PLACES) * 4096;
        if (ca_registry_find(any, &out))
            wrong += out.address != any || out.bytes != any - BASE;
    }
    for (size_t i = 0; i < PLACES; i++)
        if (live[i])
            wrong += !ca_registry_erase(places[self][i].address, &(ca_allocation_t){0});
    return NULL;
}

static void threads_find_what_lives_and_nothing_else(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (size_t t = 0; t < THREADS; t++)
        for (size_t i = 0; i < PLACES; i++)
            places[t][i] = record_at(BASE + (t * PLACES + i) * 4096);
    for (uintptr_t t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, work, (void *)t);
    for (unsigned i = 0; i < 50; i++) {
        ca_allocation_t *records;
        size_t count;
        unsigned busy;
        assert_int_equal(ca_registry_snapshot(&records, &count, &busy), 0);
        for (size_t k = 0; k < count; k++)
            wrong += records[k].bytes != records[k].address - BASE;
        ca_registry_snapshot_free(records, count);
    }
    for (size_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(wrong, 0);
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
}

/* A context ends, and the driver gives its addresses away while calls on it are under way: threads
 * fill places that others are just putting out of the index, and places that end. */
static _Atomic bool over;

static void *fill_and_end(void *own)
{
    ca_record_t *record = own;
    ca_allocation_t in = record_of(BASE, 512), out;
    in.owner = record;
    ca_thread_counts_join();
    while (!atomic_load(&over)) {
        /* A record that nobody finds any more ends with its place. */
        for (unsigned i = 0; i < 4 && !(ca_record_state(record) & CA_RECORD_LIVE); i++) {
            if (!insert_again(record, in.bytes, record))
                (void)ca_registry_insert_at(record, &in);
            (void)ca_registry_take_owned(BASE, &out);
        }
        ca_registry_end(record);
        ca_record_init(record);
    }
    ca_registry_end(record);
    return NULL;
}

static void *fill_elsewhere(void *unused)
{
    ca_allocation_t in = record_of(BASE, 4096), out;
    in.owner = NULL;
    while (!atomic_load(&over)) {
        (void)ca_registry_insert(&in);
        (void)ca_registry_take(BASE, &out);
    }
    return unused;
}

static void nothing_is_counted_for_ever_where_an_address_is_given_away(void **state)
{
    (void)state;
    pthread_t threads[3];
    ca_record_t records[2] = {record_at(BASE), record_at(BASE)};
    ca_allocation_t out;
    atomic_store(&over, false);
    pthread_create(&threads[0], NULL, fill_and_end, &records[0]);
    pthread_create(&threads[1], NULL, fill_and_end, &records[1]);
    pthread_create(&threads[2], NULL, fill_elsewhere, NULL);
    usleep(500000);
    atomic_store(&over, true);
    for (size_t t = 0; t < 3; t++)
        pthread_join(threads[t], NULL);
    while (ca_registry_take(BASE, &out))
        ;
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_record_comes_back_as_it_was_put_in, fresh),
        cmocka_unit_test_setup(a_place_that_is_known_is_filled_again, fresh),
        cmocka_unit_test_setup(a_place_that_was_forgotten_is_found_at_its_new_address_alone, fresh),
        cmocka_unit_test_setup(the_latest_at_an_address_is_what_lives_there, fresh),
        cmocka_unit_test_setup(what_ends_is_gone_and_takes_nothing_more, fresh),
        cmocka_unit_test_setup(what_comes_too_late_replaces_nothing, fresh),
        cmocka_unit_test_setup(a_record_is_taken_out_as_one_of_its_context, fresh),
        cmocka_unit_test_setup(a_dropped_context_takes_its_records_out_of_their_places, fresh),
        cmocka_unit_test_setup(a_shared_record_stays_in_its_place, fresh),
        cmocka_unit_test_setup(a_hit_leaves_the_same_record, fresh),
        cmocka_unit_test_setup(a_hit_leaves_alone_what_has_no_place_of_its_own, fresh),
        cmocka_unit_test_setup(threads_find_what_lives_and_nothing_else, fresh),
        cmocka_unit_test_setup(nothing_is_counted_for_ever_where_an_address_is_given_away, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
