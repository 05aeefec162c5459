/* Stacks that were captured before are found again, and never another one: every capture here is
 * held against what the unwinder says at the same place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

#include "base/mem.h"
#include "registry/stack/stack_cache.h"
#include "registry/stack/stack_cache_tables.h"
#include "registry/stack/stack.h"
#include "registry/stack/unwind.h"
#include "registry/stack/unwind_words.h"
#include "one_thread.h"

#define DEPTH 40
#define NOINLINE __attribute__((noinline, noclone))

static atomic_int sink; /* written after calls, so that none becomes a jump */
static atomic_uint faults;
static atomic_bool in_handler;

#define OURS 6 /* most frames of the unwinder's and of ours */

/* What the unwinder says, from the caller of this function's caller outwards. */
static NOINLINE size_t unwind_here(void **frames)
{
    void *all[DEPTH + OURS];
    ca_unwound_t unwound = {.sps = NULL};
    size_t count = ca_unwind(all, DEPTH + OURS, &unwound), ours = 0;
    while (ours < count && all[ours++] != __builtin_return_address(0)) {
    }
    memcpy(frames, all + ours, (count - ours) * sizeof *frames);
    return count - ours;
}

static NOINLINE uint32_t check(void)
{
    uint32_t id = ca_stack_capture();
    uintptr_t found[CA_STACK_MAX];
    void *expected[DEPTH + OURS];
    size_t count = ca_stack_frames(id, found, CA_STACK_MAX);
    size_t known = unwind_here(expected);
    if (known > DEPTH - 1)
        known = DEPTH - 1;
    if (in_handler && (id == 0 || known == 0)) /* it came while we were in the unwinder */
        return id;
    faults += count != known + 1 || memcmp(found + 1, expected, known * sizeof *expected) != 0;
    sink++;
    return id;
}

/* --- frames of all forms ---------------------------------------------------------------------- */

static NOINLINE uint32_t descend(uint64_t way, unsigned levels);

#define THEN descend(way >> 3, levels - 1)

static NOINLINE uint32_t plain(uint64_t way, unsigned levels)
{
    uint32_t id = THEN;
    sink++;
    return id;
}

static NOINLINE uint32_t wide(uint64_t way, unsigned levels)
{
    volatile char room[200];
    room[levels % sizeof room] = 1;
    uint32_t id = THEN;
    sink += room[levels % sizeof room];
    return id;
}

__attribute__((optimize("no-omit-frame-pointer"))) static NOINLINE uint32_t framed(uint64_t way,
                                                                                   unsigned levels)
{
    uint32_t id = THEN;
    sink++;
    return id;
}

static NOINLINE uint32_t variable(uint64_t way, unsigned levels)
{
    volatile char *room = __builtin_alloca(16 + way % 5 * 16);
    room[0] = 1;
    uint32_t id = THEN;
    sink += room[0];
    return id;
}

static NOINLINE uint32_t array(uint64_t way, unsigned levels)
{
    volatile uint64_t room[1 + way % 7];
    room[0] = way;
    uint32_t id = THEN;
    sink += room[0] != way;
    return id;
}

static NOINLINE uint32_t realigned(uint64_t way, unsigned levels)
{
    _Alignas(64) volatile char room[64];
    room[levels % 64] = 1;
    uint32_t id = THEN;
    sink += room[levels % 64];
    return id;
}

static NOINLINE uint32_t realigned_variable(uint64_t way, unsigned levels)
{
    _Alignas(128) volatile char room[128];
    volatile char *more = __builtin_alloca(16 + way % 3 * 48);
    room[levels % 64] = more[0] = 1;
    uint32_t id = THEN;
    sink += room[levels % 64] + more[0];
    return id;
}

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
static NOINLINE uint32_t
forced(uint64_t way, unsigned levels)
{
    uint32_t id = THEN;
    sink++;
    return id;
}

static NOINLINE uint32_t descend(uint64_t way, unsigned levels)
{
    static uint32_t (*const forms[8])(uint64_t, unsigned) = {
        plain, wide, framed, variable, array, realigned, realigned_variable, forced,
    };
    uint32_t id = levels == 0 ? check() : forms[way & 7](way, levels);
    sink++;
    return id;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Ways of up to 20 levels out of `ways`, in an order that does not repeat itself. */
static void wander(uint64_t seed, unsigned ways, unsigned captures)
{
    for (unsigned i = 0; i < captures; i++) {
        uint64_t way = mix(mix(seed * 1000003 + i) % ways);
        descend(way, (unsigned)(mix(way) % 20));
    }
}

static int start(void **state)
{
    (void)state;
    ca_stack_start(DEPTH);
    for (volatile int i = 0; i < 20; i++) /* a thread's first stacks are not kept */
        check();
    faults = 0;
    return 0;
}

static bool remembers(void)
{
    return ca_words_usable();
}

static void a_stack_is_found_again(void **state)
{
    (void)state;
    if (!remembers())
        skip();
    size_t kept = ca_stack_cache_kept(), hits = ca_stack_cache_hits();
    uint32_t ids[10];
    for (volatile int i = 0; i < 10; i++)
        ids[i] = descend(0, 10);
    assert_int_equal(faults, 0);
    for (int i = 1; i < 10; i++)
        assert_int_equal(ids[i], ids[0]);
    assert_int_equal(ca_stack_cache_kept() - kept, 1);
    assert_int_equal(ca_stack_cache_hits() - hits, 9);
}

static void frames_of_every_form_are_remembered(void **state)
{
    (void)state;
    if (!remembers())
        skip();
    for (unsigned form = 0; form < 8; form++) {
        size_t hits = ca_stack_cache_hits();
        for (volatile int i = 0; i < 3; i++)
            descend(form | form << 3 | form << 6, 3);
        assert_int_equal(ca_stack_cache_hits() - hits, 2);
    }
    assert_int_equal(faults, 0);
}

static void no_stack_is_taken_for_another(void **state)
{
    ONE_THREAD();
    (void)state;
    wander(1, 60, 30000);
    wander(2, 5000, 30000);
    assert_int_equal(faults, 0);
    if (remembers())
        assert_true(ca_stack_cache_hits() > 2000);
}

static void recursion_is_told_by_its_depth(void **state)
{
    ONE_THREAD();
    (void)state;
    for (volatile unsigned i = 0; i < 20000; i++)
        descend(0, (unsigned)(mix(i) % 60));
    assert_int_equal(faults, 0);
}

/* --- stacks that start alike ------------------------------------------------------------------ */

static NOINLINE uint32_t wrapper(void)
{
    uint32_t id = check();
    sink++;
    return id;
}

#define CALLER(n)                                                                                  \
    static NOINLINE uint32_t caller_##n(void)                                                      \
    {                                                                                              \
        uint32_t id = wrapper();                                                                   \
        sink += n;                                                                                 \
        return id;                                                                                 \
    }
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define ALL(X) EIGHT(X, 1) EIGHT(X, 2) EIGHT(X, 3) EIGHT(X, 4)
ALL(CALLER)

#define NAME(n) caller_##n,
static uint32_t (*const callers[])(void) = {ALL(NAME)};
#define CALLERS (sizeof callers / sizeof callers[0])

static void callers_of_one_wrapper_all_are_remembered(void **state)
{
    (void)state;
    if (!remembers())
        skip();
    size_t kept = ca_stack_cache_kept(), hits = ca_stack_cache_hits();
    for (volatile unsigned i = 0; i < 100 * CALLERS; i++)
        callers[mix(i) % CALLERS]();
    assert_int_equal(faults, 0);
    /* A few are kept twice: those before what tells them apart was learned. */
    assert_in_range(ca_stack_cache_kept() - kept, CALLERS, CALLERS + 8);
    assert_in_range(ca_stack_cache_hits() - hits, 99 * CALLERS - 8, 99 * CALLERS);
}

/* A frame of variable size whose callee starts at one place, with what looks like the return
 * address of a deeper call left in it. */
static uintptr_t *slot;
static uintptr_t left_there;

static NOINLINE uint32_t inner(unsigned room)
{
    volatile char *rest = __builtin_alloca(room);
    rest[0] = 1;
    uintptr_t *own_slot = (uintptr_t *)__builtin_frame_address(0) + 1;
    if (slot == NULL) {
        slot = own_slot;
        left_there = *own_slot;
    }
    uint32_t id = check();
    sink += rest[0];
    return id;
}

static NOINLINE uint32_t outer(unsigned room, bool other)
{
    char *rest = __builtin_alloca(room);
    memset(rest, 0, room);
    if (slot && (char *)slot >= rest && (char *)slot < rest + room)
        *slot = left_there;
    uint32_t id;
    if (other) {
        id = inner(1024 - room);
        sink += rest[0] + 2;
    } else {
        id = inner(1024 - room);
        sink += rest[0] + 1;
    }
    return id;
}

static void old_return_addresses_mean_nothing(void **state)
{
    (void)state;
    uint32_t ids[12];
    slot = NULL;
    for (volatile int i = 0; i < 12; i++)
        ids[i] = i / 4 % 2 ? outer(512, true) : outer(64, false);
    assert_int_equal(faults, 0);
    for (int i = 1; i < 12; i++)
        assert_true((ids[i] == ids[0]) == (i / 4 % 2 == 0));
}

/* --- what changes ----------------------------------------------------------------------------- */

static void another_depth_gives_other_stacks(void **state)
{
    (void)state;
    uintptr_t frames[CA_STACK_MAX];
    uint32_t ids[4];
    for (volatile int i = 0; i < 4; i++) {
        if (i == 2)
            ca_stack_start(3);
        ids[i] = descend(0, 5);
    }
    ca_stack_start(DEPTH);
    assert_int_equal(ids[0], ids[1]);
    assert_int_equal(ids[2], ids[3]);
    assert_int_equal(ca_stack_frames(ids[2], frames, CA_STACK_MAX), 3);
    assert_true(ca_stack_frames(ids[0], frames, CA_STACK_MAX) > 3);
}

static NOINLINE uint32_t site(bool inside_caller, uintptr_t *frames)
{
    uint32_t id = ca_stack_capture();
    size_t count = ca_stack_frames(id, frames, CA_STACK_MAX);
    sink += (int)count + inside_caller;
    return id;
}

static void our_own_frames_are_left_out_by_the_memo_too(void **state)
{
    (void)state;
    uintptr_t all[CA_STACK_MAX], cut[CA_STACK_MAX];
    for (volatile int i = 0; i < 4; i++) {
        if (i == 2)
            ca_stack_set_own_range(all[0] - 1, all[0] + 1);
        site(i == 0, i < 2 ? all : cut);
        if (i >= 2)
            assert_memory_equal(cut, all + 1, 2 * sizeof *cut);
    }
    ca_stack_set_own_range(0, 0);
}

static atomic_uint iterations;

/* What the memo asks the loader by, which takes a lock. */
int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *arg)
{
    static __typeof__(dl_iterate_phdr) *next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    iterations++;
    return next(visit, arg);
}

static void of_a_start_that_was_given_up_the_loader_is_not_asked(void **state)
{
    (void)state;
    if (!remembers())
        skip();
    void *frames[2] = {(void *)&iterations, (void *)(&iterations + 1)}; /* no code: never unwound */
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    ca_stack_cache_set_thrift(false);
    for (int i = 0; i < 10; i++)
        ca_stack_cache_keep((uintptr_t)frames[0], here, frames, 2, true, 1);
    unsigned before = iterations;
    for (int i = 0; i < 1000; i++)
        ca_stack_cache_keep((uintptr_t)frames[0], here, frames, 2, true, 1);
    ca_stack_cache_set_thrift(true);
    assert_true(before != 0);
    assert_int_equal(iterations - before, 0);
}

/* --- threads and signals ---------------------------------------------------------------------- */

static atomic_size_t least_hits; /* of any thread */

static void *wander_in_thread(void *arg)
{
    wander((uintptr_t)arg, 200, 5000);
    size_t hits = ca_stack_cache_hits(), least = atomic_load(&least_hits);
    while (hits < least && !atomic_compare_exchange_weak(&least_hits, &least, hits))
        ;
    return NULL;
}

static void threads_remember_for_themselves(void **state)
{
    (void)state;
    pthread_t threads[8];
    least_hits = SIZE_MAX;
    for (uintptr_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wander_in_thread, (void *)i), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(faults, 0);
    if (remembers())
        assert_in_range(least_hits, 50, 5000); /* how many depends on where the stacks lie */
}

static void *capture_in_thread(void *arg)
{
    for (volatile int i = 0; i < 20; i++)
        descend(0, 3);
    if (remembers())
        faults += ca_stack_cache_hits() == 0;
    return arg;
}

static void one_thread_after_another_takes_no_more_memory(void **state)
{
    (void)state;
    size_t mapped = 0;
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, capture_in_thread, NULL), 0);
        pthread_join(thread, NULL);
        if (i == 0)
            mapped = ca_mem_mapped();
    }
    assert_int_equal(ca_mem_mapped(), mapped);
    assert_int_equal(faults, 0);
}

static atomic_uint handled, wanted; /* signals */

/* The next one is due some time after this one was handled: where a handler takes as long as an
 * interval, a timer that goes on lets the thread do nothing else. */
static void capture_in_handler(int number)
{
    const struct itimerval soon = {{0, 0}, {0, 100}};
    (void)number;
    in_handler = true;
    descend(handled % 3, 4);
    in_handler = false;
    if (++handled < wanted)
        setitimer(ITIMER_REAL, &soon, NULL);
}

static void with_handler(int flags)
{
    static char room[1 << 16];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction action = {.sa_handler = capture_in_handler, .sa_flags = flags | SA_RESTART};
    assert_int_equal(sigaltstack(&stack, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
}

static void on_another_stack_nothing_is_remembered(void **state)
{
    (void)state;
    with_handler(SA_ONSTACK);
    size_t hits = ca_stack_cache_hits(), kept = ca_stack_cache_kept();
    for (volatile int i = 0; i < 10; i++)
        raise(SIGALRM);
    assert_int_equal(faults, 0);
    assert_int_equal(ca_stack_cache_hits(), hits);
    assert_int_equal(ca_stack_cache_kept(), kept);
}

/* Handlers come in between everywhere, and capture too; only not where a new stack is interned,
 * which takes a lock. */
static void a_handler_may_come_at_any_point(void **state)
{
    (void)state;
    handled = 0;
    wanted = 500;
    with_handler(0);
    for (uint64_t round = 0; handled < wanted; round++) {
        if (round == 1) /* all of them are known now */
            raise(SIGALRM);
        if (round % 8 == 0)
            ca_stack_cache_forget();
        wander(round, 50, 2000);
    }
    wanted = 0;
    signal(SIGALRM, SIG_IGN);
    assert_int_equal(faults, 0);
}

/* It may lie where another one lay that was closed behind our back. */
static void what_was_known_of_frames_goes_when_a_library_comes(void **state)
{
    (void)state;
    ca_stack_cache_set_thrift(false);
    wander(1, 50, 200);
    struct ca_known_rule(*set)[CA_RULE_WAYS] = ca_stack_cache_of_thread->rules.known;
    while ((*set)->returns)
        set++;
    struct ca_known_rule *known = *set;
    known->returns = 1; /* nothing does */
    wander(2, 50, 200);
    assert_int_equal(known->returns, 1);
    /* One of them it had not loaded. */
    void *libraries[] = {dlopen("libm.so.6", RTLD_NOW), dlopen("libresolv.so.2", RTLD_NOW)};
    assert_true(libraries[0] && libraries[1]);
    assert_true(ca_words_loads() != ca_stack_cache_of_thread->loads);
    wander(3, 50, 200);
    ca_stack_cache_set_thrift(true);
    assert_int_not_equal(known->returns, 1);
    assert_int_equal(faults, 0);
}

static void the_child_of_a_fork_finds_nothing(void **state)
{
    (void)state;
    for (volatile int i = 0; i < 3; i++)
        descend(0, 3);
    pid_t child = fork();
    if (child == 0) {
        ca_stack_reset_after_fork();
        _exit(ca_stack_capture() == 0 && ca_stack_capture() == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_stack_is_found_again, start),
        cmocka_unit_test_setup(frames_of_every_form_are_remembered, start),
        cmocka_unit_test_setup(callers_of_one_wrapper_all_are_remembered, start),
        cmocka_unit_test_setup(no_stack_is_taken_for_another, start),
        cmocka_unit_test_setup(recursion_is_told_by_its_depth, start),
        cmocka_unit_test_setup(old_return_addresses_mean_nothing, start),
        cmocka_unit_test_setup(another_depth_gives_other_stacks, start),
        cmocka_unit_test_setup(our_own_frames_are_left_out_by_the_memo_too, start),
        cmocka_unit_test_setup(of_a_start_that_was_given_up_the_loader_is_not_asked, start),
        cmocka_unit_test_setup(threads_remember_for_themselves, start),
        cmocka_unit_test_setup(one_thread_after_another_takes_no_more_memory, start),
        cmocka_unit_test_setup(on_another_stack_nothing_is_remembered, start),
        cmocka_unit_test_setup(a_handler_may_come_at_any_point, start),
        cmocka_unit_test_setup(what_was_known_of_frames_goes_when_a_library_comes, start),
        cmocka_unit_test_setup(the_child_of_a_fork_finds_nothing, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
