/* callgraphs SEED CAPTURES THREADS DEPTH MODULE MODULE: random call graphs, and at each capture in
 * them whether ca_stack_capture says what a full unwinding says, step by step and with nothing
 * remembered of libraries that came or went. Prints what there was as JSON; the exit status is 1
 * where a stack was wrong. */
#include "tests/callgraphs/callgraphs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "registry/stack/stack_cache.h"
#include "registry/stack/stack.h"

#define MOST_DEPTH 40
#define MOST_LEVELS 12
#define SKIPPED 77
#define ROUNDS 60 /* of all ways, before there are others */

__thread volatile unsigned sink;

static const char *const count_names[COUNTS] = {
    "coroutines", "coroutines_same_place", "libraries", "libraries_same_place", "signals", "thrown",
    "jumps"};
static atomic_ulong counts[COUNTS];
static atomic_ulong wrong, captures, hits, kept;
static __thread unsigned long captures_here;
static __thread bool libraries_come;
static unsigned long wanted, seed, most_frames;

void count(int what)
{
    atomic_fetch_add_explicit(&counts[what], 1, memory_order_relaxed);
}

void fail(const char *what)
{
    fprintf(stderr, "callgraphs: %s\n", what);
    exit(2);
}

/* --- the full unwinding ----------------------------------------------------------------------- */

static struct {
    int (*context)(void *context);
    int (*init)(void *cursor, void *context);
    int (*step)(void *cursor);
    int (*get)(void *cursor, int, uintptr_t *);
    void (*flush)(void *space, uintptr_t low, uintptr_t high);
    void **space;
} unw;

static bool open_unwinder(void)
{
    void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    unw.context = (int (*)(void *))dlsym(library, "_Ux86_64_getcontext");
    unw.init = (int (*)(void *, void *))dlsym(library, "_ULx86_64_init_local");
    unw.step = (int (*)(void *))dlsym(library, "_ULx86_64_step");
    unw.get = (int (*)(void *, int, uintptr_t *))dlsym(library, "_ULx86_64_get_reg");
    unw.flush = (void (*)(void *, uintptr_t, uintptr_t))dlsym(library, "_Ux86_64_flush_cache");
    unw.space = dlsym(library, "_ULx86_64_local_addr_space");
    return unw.context && unw.init && unw.step && unw.get && unw.flush && unw.space;
}

void full_unwind_forget(void)
{
    unw.flush(*unw.space, 0, 0);
}

/* From the caller of this function's caller outwards. */
static NOINLINE size_t full_unwind(uintptr_t *frames, size_t most)
{
    static const int instruction = 16;
    uintptr_t context[256], cursor[256], address;
    size_t found = 0;
    if (unw.context(context) != 0 || unw.init(cursor, context) < 0 || unw.step(cursor) <= 0)
        return 0;
    while (found < most && unw.step(cursor) > 0 && unw.get(cursor, instruction, &address) == 0 &&
           address != 0)
        frames[found++] = address;
    return found;
}

static void show(const char *whose, const uintptr_t *frames, size_t found)
{
    fprintf(stderr, "  %s:", whose);
    for (size_t i = 0; i < found; i++) {
        Dl_info info;
        bool known = dladdr((void *)(frames[i] - 1), &info) != 0;
        fprintf(stderr, " %#zx(%s)", (size_t)frames[i],
                known && info.dli_sname ? info.dli_sname : "?");
    }
    fprintf(stderr, "\n");
}

NOINLINE void check(void)
{
    uintptr_t found[CA_STACK_MAX] = {0}, expected[MOST_DEPTH];
    uint32_t id = ca_stack_capture();
    size_t depth = ca_stack_frames(id, found, CA_STACK_MAX);
    size_t known = full_unwind(expected, most_frames - 1);
    captures_here++;
    if (depth != known + 1 || memcmp(found + 1, expected, known * sizeof *expected) != 0)
        if (atomic_fetch_add(&wrong, 1) < 5) {
            fprintf(stderr, "stack %u of %zu frames:\n", id, depth);
            show("found", found + 1, depth - 1);
            show("is", expected, known);
        }
    sink++;
}

/* --- walks ------------------------------------------------------------------------------------ */

form_t *form_of(uint64_t way)
{
    unsigned kind = (unsigned)(way % 64), which = (unsigned)(way >> 6 & 0xffff);
    if (kind < 16)
        return forms_plain[which % FORMS];
    if (kind < 32)
        return forms_framed[which % FORMS];
    if (kind < 50)
        return forms_small[which % FORMS];
    if (kind < 55)
        return forms_throws[which % THROWS];
    if (kind < 58)
        return on_signal;
    if (kind < 59)
        return on_alternate_stack;
    if (kind < 61)
        return in_coroutine;
    return libraries_come ? in_library : forms_plain[0];
}

/* The same walk from a few places on the stack. */
static NOINLINE void from_place(uint64_t way, unsigned levels)
{
    volatile char *room = __builtin_alloca(16 + way % 4 * 16);
    room[0] = 1;
    form_of(way)(mix(way), levels);
    sink += (unsigned)room[0];
}

static bool enough(void)
{
    return atomic_load_explicit(&captures, memory_order_relaxed) + captures_here >= wanted;
}

static void *walk(void *arg)
{
    uint64_t random = mix(seed * 1000003 + (uintptr_t)arg);
    if (signals_start() != 0)
        fail("no signals");
    while (!enough()) {
        /* From a few ways, which are remembered, to many, which push each other out. */
        uint64_t ways = UINT64_C(2) << mix(random) % 6;
        uint64_t set = mix(random + 1);
        /* Where libraries go, all is forgotten. */
        libraries_come = mix(random + 2) % 10 == 0;
        for (uint64_t i = 0; i < ways * ROUNDS && !enough(); i++) {
            uint64_t way = mix(set + mix(random + i) % ways);
            from_place(way, (unsigned)(way >> 40) % MOST_LEVELS);
        }
        random = mix(random + 3);
        atomic_fetch_add(&captures, captures_here);
        captures_here = 0;
    }
    atomic_fetch_add(&hits, ca_stack_cache_hits());
    atomic_fetch_add(&kept, ca_stack_cache_kept());
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[16];
    if (argc != 7)
        fail("usage: callgraphs SEED CAPTURES THREADS DEPTH MODULE MODULE");
    seed = strtoul(argv[1], NULL, 0);
    wanted = strtoul(argv[2], NULL, 0);
    unsigned long number = strtoul(argv[3], NULL, 0);
    most_frames = strtoul(argv[4], NULL, 0);
    libraries_start((const char *const *)argv + 5);
    if (most_frames < 1 || most_frames > MOST_DEPTH)
        fail("depths are 1 to 40");
    if (!open_unwinder() || number > 16) {
        printf("no libunwind for this architecture\n");
        return SKIPPED;
    }
    ca_stack_start((unsigned)most_frames);
    ca_stack_cache_set_thrift(false);
    for (uintptr_t i = 1; i < number; i++)
        if (pthread_create(&threads[i], NULL, walk, (void *)i) != 0)
            fail("no thread");
    walk(NULL);
    for (uintptr_t i = 1; i < number; i++)
        pthread_join(threads[i], NULL);
    printf("{\"captures\": %lu, \"wrong\": %lu, \"hits\": %lu, \"kept\": %lu, \"stacks\": %zu",
           atomic_load(&captures), atomic_load(&wrong), atomic_load(&hits), atomic_load(&kept),
           ca_stack_count());
    for (int i = 0; i < COUNTS; i++)
        printf(", \"%s\": %lu", count_names[i], atomic_load(&counts[i]));
    printf("}\n");
    return atomic_load(&wrong) != 0;
}
