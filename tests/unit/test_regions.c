/* Which stripe of the table of live allocations has what: regions of addresses, and the threads
 * that came there first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/counters.h"
#include "registry/table/fast_path.h"
#include "registry/table/table.h"

#define REGION ((uint64_t)1 << REGION_SHIFT)
#define BASE ((uint64_t)0x7f00000000)
#define THREADS 4
#define RACED 2000 /* regions */

/* Regions stay whose they are: each test has others. */
static uint64_t next_region = BASE;

static uint64_t fresh_regions(unsigned count)
{
    uint64_t first = next_region;
    next_region += count * REGION;
    assert_true((next_region - BASE) / REGION < REGIONS);
    return first;
}

static int fresh(void **state)
{
    (void)state;
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    return 0;
}

static void enter(uint64_t address)
{
    ca_allocation_t record = {.address = address, .bytes = 512, .kind = CA_KIND_DEVICE};
    assert_int_equal(ca_registry_insert(&record), 0);
}

static bool lives(uint64_t address)
{
    ca_allocation_t record;
    return ca_registry_find(address, &record);
}

static void *enter_there(void *address)
{
    enter((uint64_t)(uintptr_t)address);
    return NULL;
}

static void enter_in_another_thread(uint64_t address)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, enter_there, (void *)(uintptr_t)address), 0);
    pthread_join(thread, NULL);
}

static unsigned group_of(uint64_t address)
{
    const ca_stripe_t *stripe = ca_stripe_of(address);
    assert_ptr_not_equal(stripe, ca_table.stripes);
    return (unsigned)(stripe - ca_table.stripes - 1) / OWN_STRIPES;
}

static void a_region_is_nobodys_until_something_is_entered(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1);
    ca_allocation_t record;
    assert_ptr_equal(ca_stripe_of(region), ca_table.stripes);
    assert_false(lives(region));
    assert_false(ca_registry_erase(region, &record));
    assert_ptr_equal(ca_stripe_of(region), ca_table.stripes);
    enter(region);
    assert_ptr_not_equal(ca_stripe_of(region), ca_table.stripes);
    assert_true(lives(region));
    assert_false(lives(region + 512));
    assert_int_equal(ca_table.stripes[0].index.count, 0);
}

static void threads_enter_what_is_theirs_in_shards_of_their_own(void **state)
{
    (void)state;
    uint64_t regions = fresh_regions(20);
    for (unsigned i = 0; i < 10; i++)
        enter(regions + i * REGION);
    for (unsigned i = 10; i < 20; i++)
        enter_in_another_thread(regions + i * REGION);
    for (unsigned i = 1; i < 10; i++)
        assert_int_equal(group_of(regions + i * REGION), group_of(regions));
    for (unsigned i = 10; i < 20; i++)
        assert_true(lives(regions + i * REGION));
    assert_int_not_equal(group_of(regions + 10 * REGION), group_of(regions + 11 * REGION));
    assert_ptr_not_equal(ca_stripe_of(regions), ca_stripe_of(regions + REGION));
}

static void a_region_stays_where_it_is(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1);
    ca_allocation_t record;
    enter(region);
    const ca_stripe_t *stripe = ca_stripe_of(region);
    assert_true(ca_registry_erase(region, &record));
    enter_in_another_thread(region + 1024);
    assert_ptr_equal(ca_stripe_of(region + 1024), stripe);
    assert_true(lives(region + 1024));
    ca_registry_reset_after_fork();
    assert_false(lives(region + 1024));
    enter_in_another_thread(region);
    assert_ptr_equal(ca_stripe_of(region), stripe);
    assert_true(lives(region));
}

static pthread_barrier_t barrier;

typedef struct racer {
    uint64_t first;
    unsigned number;
} racer_t;

static void *race(void *argument)
{
    const racer_t *racer = argument;
    ca_allocation_t record;
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < RACED; i++) {
        uint64_t address = racer->first + i * REGION + racer->number * 4096;
        enter(address);
        assert_true(lives(address));
        if (i % 2)
            assert_true(ca_registry_erase(address, &record));
    }
    return NULL;
}

static void of_threads_that_come_at_once_one_is_the_first(void **state)
{
    (void)state;
    uint64_t first = fresh_regions(RACED);
    pthread_t threads[THREADS];
    racer_t racers[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (unsigned t = 0; t < THREADS; t++) {
        racers[t] = (racer_t){.first = first, .number = t};
        assert_int_equal(pthread_create(&threads[t], NULL, race, &racers[t]), 0);
    }
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    for (unsigned i = 0; i < RACED; i++)
        for (unsigned t = 0; t < THREADS; t++)
            assert_int_equal(lives(first + i * REGION + t * 4096), i % 2 == 0);
    assert_int_equal(ca_table.stripes[0].index.count, 0);
}

/* --- tables ----------------------------------------------------------------------------------- */

static void few_have_much_room_and_many_have_enough(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1);
    const ca_index_t *index = &ca_stripe_of((enter(region), region))->index;
    for (unsigned i = 1; i < 2000; i++) {
        enter(region + i * 512);
        assert_true(ca_index_size(index) * 5 > index->count * 4);
        if (i < 1000)
            assert_true(ca_index_size(index) >= index->count * 4 - 4);
    }
}

/* The addresses of a region whose search begins at the last place of its table. */
static unsigned at_the_end(uint64_t region, uint64_t *addresses, unsigned most)
{
    size_t size = ca_index_size(&ca_stripe_of(region)->index);
    unsigned count = 0;
    for (uint64_t address = region; count < most && address < region + REGION; address += 8)
        if (ca_index_home(size, ca_index_tag(ca_index_hash(address))) == size - 1)
            addresses[count++] = address;
    return count;
}

static void a_glance_ends_where_the_table_does(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1), addresses[3] = {0}, word;
    ca_record_t slots[2];
    enter(region + 512);
    assert_int_equal(at_the_end(region, addresses, 3), 3);
    for (unsigned i = 0; i < 2; i++) {
        ca_allocation_t record = {.address = addresses[i], .bytes = 8, .kind = CA_KIND_DEVICE};
        slots[i] = (ca_record_t){.address = addresses[i]};
        ca_record_init(&slots[i]);
        assert_int_equal(ca_registry_insert_at(&slots[i], &record), 0);
    }
    assert_ptr_equal(ca_registry_find_unlocked(addresses[0], &word), &slots[0]);
    assert_null(
        ca_registry_find_unlocked(addresses[1], &word)); /* at the start: for a real search */
    assert_true(lives(addresses[1]));
    assert_null(ca_registry_find_unlocked(addresses[2], &word));
    assert_false(lives(addresses[2]));
    for (unsigned i = 0; i < 2; i++)
        ca_registry_end(&slots[i]);
}

/* --- snapshots -------------------------------------------------------------------------------- */

static size_t records_in_a_snapshot(unsigned *busy)
{
    ca_allocation_t *records;
    size_t count;
    assert_int_equal(ca_registry_snapshot(&records, &count, busy), 0);
    ca_registry_snapshot_free(records, count);
    return count;
}

/* As where a signal interrupts a thread that has just moved an entry. */
static void what_is_being_moved_counts_once(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1);
    unsigned busy, moved = 0;
    for (unsigned i = 0; i < 50; i++)
        enter(region + i * 512);
    ca_stripe_t *stripe = ca_stripe_of(region);
    ca_index_table_t *table = atomic_load(&stripe->index.table);
    assert_int_equal(records_in_a_snapshot(&busy), 50);
    assert_int_equal(busy, 0);
    ca_lock_take(&stripe->lock);
    for (size_t at = 0; at < table->size && moved == 0; at++) {
        size_t next = (at + 1) % table->size;
        if (!table->entries[at] || table->entries[next])
            continue;
        table->entries[next] = table->entries[at];
        assert_int_equal(records_in_a_snapshot(&busy), 50);
        assert_int_equal(busy, 1);
        table->entries[next] = 0;
        moved++;
    }
    ca_lock_drop(&stripe->lock);
    assert_int_equal(moved, 1);
}

static ca_record_t added[RACED];
static _Atomic bool in_use, is_read;

/* Keeps a stripe to itself for as long as it is read all the same. */
static void *add_until_read(void *arg)
{
    uint64_t region = *(uint64_t *)arg;
    ca_index_t *index = &ca_stripe_of(region)->index;
    ca_lock_take(&ca_stripe_of(region)->lock);
    atomic_store(&in_use, true);
    unsigned count = 0;
    for (; !atomic_load(&is_read); ca_sleep(20000)) {
        uint64_t address = region + 512 * (count + 1);
        if (count == RACED)
            continue;
        added[count] = (ca_record_t){.address = address};
        ca_record_init(&added[count]);
        assert_int_equal(ca_index_add(index, ca_index_hash(address), &added[count++]), 0);
    }
    while (count-- > 0)
        ca_index_remove(index, ca_index_hash(added[count].address), &added[count]);
    ca_lock_drop(&ca_stripe_of(region)->lock);
    return NULL;
}

/* ThreadSanitizer tells what the reader may not look at. */
static void a_shard_in_use_is_read_beside_who_changes_it(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1);
    pthread_t thread;
    unsigned busy;
    enter(region);
    atomic_store(&in_use, false);
    atomic_store(&is_read, false);
    assert_int_equal(pthread_create(&thread, NULL, add_until_read, &region), 0);
    while (!atomic_load(&in_use))
        ca_sleep(20000);
    size_t records = records_in_a_snapshot(&busy);
    atomic_store(&is_read, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(records, 1);
    assert_int_equal(busy, 1);
    assert_int_equal(records_in_a_snapshot(&busy), 1);
    assert_int_equal(busy, 0);
}

/* A report may come from a signal handler, in the thread that has the record. A yield takes as long
 * as the others of a busy machine want. */
static atomic_uint yields;
static atomic_bool others_run;

int sched_yield(void)
{
    if (atomic_load(&others_run)) {
        atomic_fetch_add(&yields, 1);
        ca_sleep(5000000);
    }
    return (int)syscall(SYS_sched_yield);
}

static void a_record_in_use_is_waited_for_by_time(void **state)
{
    (void)state;
    uint64_t region = fresh_regions(1), was;
    unsigned busy;
    enter(region);
    ca_record_t *record =
        ca_index_find(&ca_stripe_of(region)->index, region, ca_index_hash(region), &was);
    assert_non_null(record);
    assert_int_equal(ca_record_lock_live(record, &was), 0);
    atomic_store(&yields, 0);
    atomic_store(&others_run, true);

    size_t records = records_in_a_snapshot(&busy);

    atomic_store(&others_run, false);
    assert_int_equal(records, 0);
    assert_int_equal(busy, 1);
    assert_in_range(atomic_load(&yields), 1, 100); /* 20 waits of 10 ms; one alone made 100 */
    ca_record_set_state(record, was);
    assert_int_equal(records_in_a_snapshot(&busy), 1);
    assert_int_equal(busy, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_region_is_nobodys_until_something_is_entered, fresh),
        cmocka_unit_test_setup(threads_enter_what_is_theirs_in_shards_of_their_own, fresh),
        cmocka_unit_test_setup(a_region_stays_where_it_is, fresh),
        cmocka_unit_test_setup(of_threads_that_come_at_once_one_is_the_first, fresh),
        cmocka_unit_test_setup(few_have_much_room_and_many_have_enough, fresh),
        cmocka_unit_test_setup(a_glance_ends_where_the_table_does, fresh),
        cmocka_unit_test_setup(what_is_being_moved_counts_once, fresh),
        cmocka_unit_test_setup(a_shard_in_use_is_read_beside_who_changes_it, fresh),
        cmocka_unit_test_setup(a_record_in_use_is_waited_for_by_time, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
