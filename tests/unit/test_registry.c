/* The table of live allocations, against a model that is too simple to be wrong, and under
 * threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#include "base/counters.h"
#include "base/mem.h"
#include "registry/table/lost.h"
#include "registry/table/registry.h"
#include "one_thread.h"

#define MODEL 4096 /* addresses the model test plays with */
#define BASE 0x7f0000000000u

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t address_of(size_t index)
{
    return BASE + index * 512;
}

static ca_allocation_t record_of(uint64_t address, uint64_t bytes)
{
    ca_allocation_t record = {.address = address, .bytes = bytes};
    record.kind = CA_KIND_ASYNC;
    record.device = 3;
    record.context = (uint16_t)(address / 512 % 5);
    record.stream = address + 1;
    record.stack = (uint32_t)(bytes * 7);
    record.thread = 42;
    return record;
}

static bool with_tally; /* as the threads of a program that hits its caches have */

static int fresh(void **state)
{
    (void)state;
    ca_thread_counts_reset_after_fork();
    ca_registry_reset_after_fork();
    if (with_tally)
        ca_thread_counts_join();
    assert_int_equal(ca_thread_counts != NULL, with_tally);
    return 0;
}

static void a_record_comes_back_as_it_was_put_in(void **state)
{
    (void)state;
    ca_allocation_t in = record_of(BASE, ((uint64_t)1 << 48) - 1), out, found;
    int owner;
    in.owner = &owner;
    assert_int_equal(ca_registry_insert(&in), 0);
    assert_true(ca_registry_find(BASE, &found));
    assert_true(ca_registry_erase(BASE, &out));
    assert_int_equal(out.sequence, 1);
    in.sequence = 1;
    assert_memory_equal(&in, &out, sizeof in);
    assert_memory_equal(&in, &found, sizeof in);
    assert_false(ca_registry_erase(BASE, &out));
    assert_false(ca_registry_find(BASE, &out));
}

static void unknown_and_zero_addresses_are_not_live(void **state)
{
    (void)state;
    ca_allocation_t record = record_of(0, 1);
    assert_false(ca_registry_erase(0, &record));
    assert_false(ca_registry_find(BASE + 8, &record));
    assert_int_not_equal(ca_registry_insert(&record), 0);
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
}

static void a_live_address_given_out_again_replaces_its_record(void **state)
{
    (void)state;
    ca_allocation_t first = record_of(BASE, 100), second = record_of(BASE, 30), out;
    assert_int_equal(ca_registry_insert(&first), 0);
    assert_int_equal(ca_registry_insert(&second), -EEXIST);
    assert_int_equal(ca_registry_total().count, 1);
    assert_int_equal(ca_registry_total().bytes, 30);
    assert_int_equal(ca_registry_peak_bytes(), 100);
    assert_true(ca_registry_erase(BASE, &out));
    assert_int_equal(out.bytes, 30);
    assert_int_equal(out.sequence, 2);
    assert_int_equal(ca_registry_total().bytes, 0);
    first.bytes = 101; /* one more than ever before */
    assert_int_equal(ca_registry_insert(&first), 0);
    assert_int_equal(ca_registry_peak_bytes(), 101);
}

typedef struct model {
    uint64_t bytes[MODEL]; /* 0: not live */
    uint64_t count, total, peak;
} model_t;

static void model_set(model_t *model, size_t index, uint64_t bytes)
{
    model->count += (bytes != 0) - (uint64_t)(model->bytes[index] != 0);
    model->total += bytes - model->bytes[index];
    model->bytes[index] = bytes;
    if (model->total > model->peak)
        model->peak = model->total;
}

static void assert_equals_model(const model_t *model)
{
    ca_allocation_t record, *records;
    size_t count;
    unsigned busy;
    assert_int_equal(ca_registry_total().count, model->count);
    assert_int_equal(ca_registry_total().bytes, model->total);
    assert_int_equal(ca_registry_peak_bytes(), model->peak);
    for (size_t i = 0; i < MODEL; i++) {
        assert_int_equal(ca_registry_find(address_of(i), &record), model->bytes[i] != 0);
        if (model->bytes[i] != 0)
            assert_int_equal(record.bytes, model->bytes[i]);
    }
    assert_int_equal(ca_registry_snapshot(&records, &count, &busy), 0);
    assert_int_equal(busy, 0);
    assert_int_equal(count, model->count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(records[i].bytes, model->bytes[(records[i].address - BASE) / 512]);
    ca_registry_snapshot_free(records, count);
}

static void model_step(model_t *model, unsigned frees_in_16)
{
    uint64_t random = next_random(&random_state);
    size_t index = random % MODEL;
    ca_allocation_t out;
    if ((random >> 32) % 16 < frees_in_16) {
        bool was_live = ca_registry_erase(address_of(index), &out);
        assert_int_equal(was_live, model->bytes[index] != 0);
        if (was_live)
            assert_int_equal(out.bytes, model->bytes[index]);
        model_set(model, index, 0);
    } else {
        ca_allocation_t in = record_of(address_of(index), 1 + (random >> 40) % 1000);
        int expected = model->bytes[index] != 0 ? -EEXIST : 0;
        assert_int_equal(ca_registry_insert(&in), expected);
        model_set(model, index, in.bytes);
    }
}

static void random_operations_agree_with_the_model(void **state)
{
    (void)state;
    static const unsigned frees_in_16[] = {4, 8, 14, 3, 15, 8};
    static model_t model;
    model = (model_t){0};
    for (size_t phase = 0; phase < sizeof frees_in_16 / sizeof *frees_in_16; phase++) {
        for (unsigned step = 0; step < 20000; step++)
            model_step(&model, frees_in_16[phase]);
        assert_equals_model(&model);
    }
    ca_registry_total_t gone = {0, 0};
    for (size_t i = 0; i < MODEL; i++) {
        if (model.bytes[i] != 0 && address_of(i) / 512 % 5 == 0) {
            gone.count++;
            gone.bytes += model.bytes[i];
            model_set(&model, i, 0);
        }
    }
    ca_registry_total_t dropped = ca_registry_drop_context(0);
    assert_int_equal(dropped.count, gone.count);
    assert_int_equal(dropped.bytes, gone.bytes);
    assert_equals_model(&model);
}

static void assert_lost(uint64_t count, uint64_t bytes, size_t groups)
{
    ca_groups_t lost;
    ca_registry_total_t sum = {0, 0};
    assert_int_equal(ca_registry_lost().count, count);
    assert_int_equal(ca_registry_lost().bytes, bytes);
    assert_int_equal(ca_lost_copy(&lost), 0);
    ca_groups_pack(&lost);
    assert_int_equal(lost.count, groups);
    assert_int_equal(lost.total.count, count);
    assert_int_equal(lost.total.bytes, bytes);
    for (size_t i = 0; i < lost.count; i++) {
        sum.count += lost.entries[i].count;
        sum.bytes += lost.entries[i].bytes;
    }
    assert_int_equal(sum.count, count);
    assert_int_equal(sum.bytes, bytes);
    ca_groups_free(&lost);
}

static void what_was_alive_in_a_dropped_context_is_kept_by_group(void **state)
{
    (void)state;
    enum { MANY = 50000, STACKS = 700 };
    ca_registry_total_t first = {0, 0}, all = {0, 0};
    assert_lost(0, 0, 0);
    for (size_t i = 0; i < MANY; i++) {
        ca_allocation_t in = record_of(address_of(i), i);
        in.context = (uint16_t)(1 + i % 2);
        in.stack = (uint32_t)(i / 2 % STACKS);
        assert_int_equal(ca_registry_insert(&in), 0);
        first.count += in.context == 1;
        first.bytes += in.context == 1 ? in.bytes : 0;
        all.count++;
        all.bytes += in.bytes;
    }
    assert_lost(0, 0, 0);
    ca_registry_drop_context(1);
    assert_lost(first.count, first.bytes, STACKS);
    ca_registry_drop_context(1);
    assert_lost(first.count, first.bytes, STACKS);
    ca_registry_drop_context(2); /* of the same groups */
    assert_lost(all.count, all.bytes, STACKS);
    ca_registry_reset_after_fork();
    assert_lost(0, 0, 0);
}

static void the_memory_of_dropped_records_goes_back(void **state)
{
    ONE_THREAD();
    (void)state;
    size_t before = 0;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < 20000; i++) {
            ca_allocation_t in = record_of(address_of(i), i);
            in.context = 1;
            in.stack = (uint32_t)(i % 100);
            assert_int_equal(ca_registry_insert(&in), 0);
        }
        ca_registry_drop_context(1);
        if (round == 0)
            before = ca_mem_mapped();
    }
    assert_int_equal(ca_mem_mapped(), before);
}

static void a_grown_table_still_finds_everything(void **state)
{
    ONE_THREAD();
    (void)state;
    enum { MANY = 200000 };
    ca_allocation_t out;
    for (size_t i = 0; i < MANY; i++) {
        ca_allocation_t in = record_of(address_of(i * 4096), i + 1);
        assert_int_equal(ca_registry_insert(&in), 0);
    }
    assert_int_equal(ca_registry_total().count, MANY);
    uint64_t gone = 0;
    for (uint16_t context = 0; context < 5; context++)
        gone += ca_registry_drop_context(context).count == MANY / 5;
    assert_int_equal(gone, 5);
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
    assert_int_equal(ca_registry_peak_bytes(), (uint64_t)MANY * (MANY + 1) / 2);
    for (size_t i = 0; i < MANY; i += 97)
        assert_false(ca_registry_find(address_of(i * 4096), &out));
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void records_of_one_context_are_dropped_in_one_walk_over_all(void **state)
{
    ONE_THREAD();
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    enum { MANY = 100000 };
#else
    enum { MANY = 1000000 };
#endif
    double begin = cpu_seconds();
    for (size_t i = 0; i < MANY; i++) {
        ca_allocation_t in = record_of(address_of(i), i + 1);
        in.context = (uint16_t)(i < MANY / 2);
        in.stack = 1;
        assert_int_equal(ca_registry_insert(&in), 0);
    }
    double filled = cpu_seconds();
    assert_int_equal(ca_registry_drop_context(1).count, MANY / 2);
    double spent = cpu_seconds() - filled;
    printf("filled in %.3f s, dropped in %.3f s\n", filled - begin, spent);
    assert_true(spent < 2 * (filled - begin));
    assert_int_equal(ca_registry_drop_context(0).count, MANY - MANY / 2);
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 40000, OWN = 512 };

static atomic_bool stop;
static atomic_uint faults;

/* Keeps a set of its own addresses, interleaved with the other threads', and leaves every fourth
 * live. cmocka's asserts are for the main thread only. */
static void *worker(void *arg)
{
    size_t self = (size_t)(uintptr_t)arg;
    uint64_t seed = 0x1234567 + self;
    uint64_t bytes[OWN] = {0};
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t slot = next_random(&seed) % OWN;
        uint64_t address = address_of(slot * THREADS + self);
        ca_allocation_t record = record_of(address, 1 + seed % 100);
        if (bytes[slot] == 0) {
            faults += ca_registry_insert(&record) != 0;
            bytes[slot] = record.bytes;
        } else {
            faults += !ca_registry_erase(address, &record) || record.bytes != bytes[slot];
            bytes[slot] = 0;
        }
    }
    for (size_t slot = 0; slot < OWN; slot++) {
        uint64_t address = address_of(slot * THREADS + self);
        ca_allocation_t record = record_of(address, 10);
        if (slot % 4 == 0)
            faults += ca_registry_insert(&record) != (bytes[slot] ? -EEXIST : 0);
        else
            faults += ca_registry_erase(address, &record) != (bytes[slot] != 0);
    }
    return NULL;
}

static void *observer(void *arg)
{
    (void)arg;
    while (!stop) {
        ca_allocation_t *records;
        size_t count;
        unsigned busy;
        ca_registry_total_t total = ca_registry_total();
        faults += total.count > THREADS * OWN || total.bytes > THREADS * OWN * 100;
        faults += ca_registry_peak_bytes() > THREADS * OWN * 100;
        if (ca_registry_snapshot(&records, &count, &busy) != 0)
            continue;
        for (size_t i = 0; i < count; i++)
            faults += records[i].stream != records[i].address + 1 ||
                      records[i].stack != records[i].bytes * 7;
        ca_registry_snapshot_free(records, count);
    }
    return NULL;
}

static void threads_and_snapshots_do_not_disturb_each_other(void **state)
{
    (void)state;
    pthread_t threads[THREADS], watcher;
    stop = false;
    faults = 0;
    assert_int_equal(pthread_create(&watcher, NULL, observer, NULL), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, worker, (void *)i), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    stop = true;
    pthread_join(watcher, NULL);
    assert_int_equal(faults, 0);
    assert_int_equal(ca_registry_total().count, THREADS * OWN / 4);
    assert_int_equal(ca_registry_total().bytes, THREADS * OWN / 4 * 10);
}

static void the_child_of_a_fork_starts_empty_and_leaves_the_parent_alone(void **state)
{
    (void)state;
    ca_allocation_t record = record_of(BASE, 5);
    assert_int_equal(ca_registry_insert(&record), 0);
    pid_t child = fork();
    if (child == 0) {
        ca_thread_counts_reset_after_fork();
        ca_registry_reset_after_fork();
        ca_allocation_t own = record_of(BASE + 512, 7);
        bool right = ca_registry_total().count == 0 && !ca_registry_find(BASE, &record) &&
                     ca_registry_insert(&own) == 0 && ca_registry_total().bytes == 7 &&
                     ca_registry_peak_bytes() == 7;
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(ca_registry_total().bytes, 5);
}

/* In a child without any further memory: what fits is kept right, what does not is refused. */
static bool survives_without_memory(void)
{
    enum { MANY = 100000 };
    static bool kept[MANY];
    struct rlimit none = {1, 1};
    ca_allocation_t record;
    size_t refused = 0;
    for (size_t i = 0; i < 1000; i++) {
        record = record_of(address_of(i), 1);
        kept[i] = ca_registry_insert(&record) == 0;
    }
    setrlimit(RLIMIT_AS, &none);
    for (size_t i = 1000; i < MANY; i++) {
        record = record_of(address_of(i), 1);
        int result = ca_registry_insert(&record);
        kept[i] = result == 0;
        refused += result == -ENOMEM;
    }
    if (refused < MANY / 2 || ca_registry_total().count != MANY - refused)
        return false;
    for (size_t i = 500; i < MANY; i++)
        if (ca_registry_erase(address_of(i), &record) != kept[i])
            return false;
    for (uint16_t context = 0; context < 5; context++) /* counted, even if not by group */
        ca_registry_drop_context(context);
    return ca_registry_lost().count == 500 && ca_registry_total().count == 0 &&
           ca_registry_total().bytes == 0;
}

static void without_memory_nothing_known_is_lost(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizers need memory themselves */
#endif
    pid_t child = fork();
    if (child == 0)
        _exit(survives_without_memory() ? 0 : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void errno_survives(void **state)
{
    (void)state;
    errno = 77;
    for (size_t i = 0; i < 10000; i++) {
        ca_allocation_t record = record_of(address_of(i), 1);
        ca_registry_insert(&record);
        ca_registry_erase(address_of(i / 2), &record);
    }
    assert_int_equal(errno, 77);
}

static void a_shared_record_stays_until_it_is_taken(void **state)
{
    (void)state;
    ca_allocation_t in = record_of(BASE, 100), out;
    in.shared = CA_SHARED_HANDLED;
    assert_int_equal(ca_registry_insert(&in), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(ca_registry_erase(BASE, &out));
        assert_int_equal(out.shared, CA_SHARED_HANDLED);
        assert_int_equal(ca_registry_total().count, 1);
    }
    assert_true(ca_registry_take(BASE, &out));
    assert_int_equal(out.bytes, 100);
    assert_false(ca_registry_take(BASE, &out));
    assert_int_equal(ca_registry_total().count, 0);
    assert_int_equal(ca_registry_total().bytes, 0);
}

static void aliases_are_found_but_not_counted(void **state)
{
    (void)state;
    ca_allocation_t memory = record_of(BASE, 100), alias = record_of(BASE + 512, 0), out, *records;
    size_t count;
    unsigned busy;
    alias.kind = CA_KIND_ALIAS;
    memory.context = alias.context = 7;
    assert_int_equal(ca_registry_insert(&memory), 0);
    assert_int_equal(ca_registry_insert(&alias), 0);
    assert_true(ca_registry_find(BASE + 512, &out));
    assert_int_equal(ca_registry_total().count, 1);
    assert_int_equal(ca_registry_snapshot(&records, &count, &busy), 0);
    assert_int_equal(count, 1);
    assert_int_equal(records[0].address, BASE);
    ca_registry_snapshot_free(records, count);
    /* An address that is given out again is an alias no more. */
    ca_allocation_t again = record_of(BASE + 512, 30);
    again.context = 7;
    assert_int_equal(ca_registry_insert(&again), -EEXIST);
    assert_int_equal(ca_registry_total().count, 2);
    assert_true(ca_registry_take(BASE + 512, &out));
    assert_int_equal(ca_registry_insert(&alias), 0);
    ca_registry_total_t lost = ca_registry_drop_context(7);
    assert_int_equal(lost.count, 1);
    assert_int_equal(lost.bytes, 100);
    assert_lost(1, 100, 1);
    assert_false(ca_registry_find(BASE + 512, &out));
    assert_int_equal(ca_registry_total().count, 0);
}

static void a_live_record_gives_way_to_none_but_its_replacement(void **state)
{
    (void)state;
    ca_allocation_t first = record_of(BASE, 100), second = record_of(BASE, 30), old, out;
    assert_int_equal(ca_registry_insert_new(&first), 0);
    assert_int_equal(ca_registry_insert_new(&second), -EEXIST);
    assert_true(ca_registry_find(BASE, &old));
    assert_int_equal(old.bytes, 100);
    assert_int_equal(ca_registry_total().bytes, 100);

    second = old;
    second.bytes = 40;
    second.stream = 9;
    assert_true(ca_registry_replace(&old, &second));
    assert_true(ca_registry_find(BASE, &out));
    assert_memory_equal(&out, &second, sizeof out);
    assert_int_equal(ca_registry_total().bytes, 40);
    assert_int_equal(ca_registry_total().count, 1);

    /* Freed and allocated anew: another one. Put back as it was: the same. */
    assert_true(ca_registry_erase(BASE, &out));
    assert_false(ca_registry_replace(&second, &old));
    assert_int_equal(ca_registry_insert(&first), 0);
    assert_false(ca_registry_replace(&second, &old));
    assert_true(ca_registry_erase(BASE, &first));
    assert_int_equal(first.sequence, ca_registry_sequence());
    assert_int_equal(ca_registry_insert(&first), 0);
    assert_true(ca_registry_find(BASE, &out));
    assert_int_equal(out.sequence, first.sequence);
    assert_int_equal(ca_registry_sequence(), first.sequence);
    assert_true(ca_registry_replace(&first, &second));
}

static void keys_of_equal_handles_are_apart_and_no_addresses(void **state)
{
    (void)state;
    uint64_t handles[] = {0, 1, 2, address_of(7)};
    uint64_t keys[CA_KIND_COUNT * 4];
    size_t count = 0;
    for (unsigned kind = 0; kind < CA_KIND_COUNT; kind++)
        for (size_t i = 0; i < 4; i++)
            keys[count++] = ca_registry_key((ca_kind_t)kind, handles[i]);
    for (size_t i = 0; i < count; i++) {
        assert_int_not_equal(keys[i] >> 56, 0);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(keys[i], keys[j]);
    }
}

static void a_counted_record_goes_with_its_last_reference(void **state)
{
    (void)state;
    uint64_t key = ca_registry_key(CA_KIND_VMM, 99);
    ca_allocation_t record = record_of(key, 4096), out = {0};
    record.references = 0;
    assert_false(ca_registry_retain(key));
    assert_int_equal(ca_registry_release(key, &out), -1);
    assert_int_equal(ca_registry_insert(&record), 0);
    assert_true(ca_registry_retain(key));
    assert_true(ca_registry_retain(key));
    assert_int_equal(ca_registry_release(key, &out), 2);
    assert_int_equal(ca_registry_release(key, &out), 1);
    assert_int_equal(ca_registry_total().bytes, 4096);
    assert_int_equal(ca_registry_release(key, &out), 0);
    assert_int_equal(out.bytes, 4096);
    assert_int_equal(ca_registry_total().bytes, 0);
    assert_int_equal(ca_registry_release(key, &out), -1);
}

static void every_kind_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(ca_kind_name(CA_KIND_DEVICE), "device");
    assert_string_equal(ca_kind_name(CA_KIND_PINNED), "pinned");
    assert_string_equal(ca_kind_name(CA_KIND_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_record_comes_back_as_it_was_put_in, fresh),
        cmocka_unit_test_setup(unknown_and_zero_addresses_are_not_live, fresh),
        cmocka_unit_test_setup(a_live_address_given_out_again_replaces_its_record, fresh),
        cmocka_unit_test_setup(random_operations_agree_with_the_model, fresh),
        cmocka_unit_test_setup(what_was_alive_in_a_dropped_context_is_kept_by_group, fresh),
        cmocka_unit_test_setup(the_memory_of_dropped_records_goes_back, fresh),
        cmocka_unit_test_setup(records_of_one_context_are_dropped_in_one_walk_over_all, fresh),
        cmocka_unit_test_setup(a_grown_table_still_finds_everything, fresh),
        cmocka_unit_test_setup(threads_and_snapshots_do_not_disturb_each_other, fresh),
        cmocka_unit_test_setup(the_child_of_a_fork_starts_empty_and_leaves_the_parent_alone, fresh),
        cmocka_unit_test_setup(without_memory_nothing_known_is_lost, fresh),
        cmocka_unit_test_setup(errno_survives, fresh),
        cmocka_unit_test_setup(a_shared_record_stays_until_it_is_taken, fresh),
        cmocka_unit_test_setup(aliases_are_found_but_not_counted, fresh),
        cmocka_unit_test_setup(a_live_record_gives_way_to_none_but_its_replacement, fresh),
        cmocka_unit_test(keys_of_equal_handles_are_apart_and_no_addresses),
        cmocka_unit_test_setup(a_counted_record_goes_with_its_last_reference, fresh),
        cmocka_unit_test(every_kind_has_a_name),
    };
    int failed = cmocka_run_group_tests_name("without a tally", tests, NULL, NULL);
    with_tally = true;
    return failed + cmocka_run_group_tests_name("with a tally", tests, NULL, NULL);
}
