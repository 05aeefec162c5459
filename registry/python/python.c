/* What is known of the interpreter, and what each thread remembers.
 *
 * An interpreter that ends sets a flag before it frees other threads' states: the flag is looked at
 * before and after each capture, and before each frame outside of the process's first thread. */
#include "registry/python/python.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/mutation.h"
#include "registry/python/codes.h"
#include "registry/python/find.h"
#include "registry/python/known.h"
#include "registry/python/cache.h"
#include "registry/stack/stack_cache.h"

#define INTERPRETERS 4u   /* of a process, one after another */
#define GUARDED_STACKS 64 /* the first ones of an interpreter */
#define REFUSALS_MOST 16u /* of stacks that were odd after those */
#define PATH_BYTES 4096

typedef uintptr_t this_state_t(void);

typedef struct ca_python_interpreter {
    ca_py_symbols_t symbols;
    ca_py_layout_t layout;
    ca_py_code_range_t range; /* of its module; of its own, where that has other code too: empty */
    uintptr_t low;            /* of its module, in any case */
    bool is_program;          /* the module has no name for the loader */
    char name[64];            /* of the module: the begin of it */
} interpreter_t;

struct ca_python_thread {
    bool busy;
    bool walked;    /* `walk` is of what was merged just now */
    bool first;     /* the process's first thread, whose state no other one ends */
    pthread_t self; /* of which `first` was found */
    uint64_t epoch;
    uint64_t interpreter; /* of `known` and `cache`: its number */
    uintptr_t state;
    ca_py_reader_t reader;
    ca_py_walk_t walk;
    uint32_t sites[CA_PY_DEPTH_MOST];
    uintptr_t words[CA_PYTHON_NATIVE_MOST + CA_PY_DEPTH_MOST];
    ca_py_known_t known;
    ca_py_cache_t cache;
};

_Atomic int ca_python_on;
#define PAUSED (1 << 20) /* is taken from it */

static ca_python_choice_t choice = CA_PYTHON_OFF;
static unsigned depth;

static interpreter_t interpreters[INTERPRETERS];
static _Atomic unsigned met, judged; /* how many of them */
static const interpreter_t *_Atomic current;
static _Atomic uint64_t epoch = 1; /* of what threads remember */
static _Atomic int guarded_left = GUARDED_STACKS;
static _Atomic unsigned refusals;

void ca_python_start(ca_python_choice_t chosen, unsigned most)
{
    choice = most ? chosen : CA_PYTHON_OFF;
    depth = most < CA_PY_DEPTH_MOST ? most : CA_PY_DEPTH_MOST;
}

/* --- the interpreter -------------------------------------------------------------------------- */

void ca_python_meet(const struct dl_phdr_info *object)
{
    unsigned known = atomic_load_explicit(&met, memory_order_relaxed);
    if (choice == CA_PYTHON_OFF || known == INTERPRETERS ||
        known != atomic_load_explicit(&judged, memory_order_relaxed) ||
        atomic_load_explicit(&current, memory_order_relaxed))
        return;
    interpreter_t *found = &interpreters[known];
    if (!ca_py_find(object, &found->symbols))
        return;
    const char *path = object->dlpi_name ? object->dlpi_name : "", *slash = strrchr(path, '/');
    found->is_program = path[0] == '\0';
    strncpy(found->name, slash ? slash + 1 : path, sizeof found->name - 1);
    found->range = (ca_py_code_range_t){UINTPTR_MAX, 0};
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t low = (uintptr_t)(object->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_LOAD && low < found->range.low)
            found->range.low = low;
        if (part->p_type == PT_LOAD && low + part->p_memsz > found->range.high)
            found->range.high = low + part->p_memsz;
    }
    found->low = found->range.low;
    atomic_store_explicit(&met, known + 1, memory_order_release);
}

/* One may be given up while the next is judged: the later of the two sees what both did. */
static void set_cache_aside(void)
{
    const interpreter_t *its;
    do {
        its = atomic_load(&current);
        ca_stack_cache_set_aside(its != NULL);
    } while (atomic_load(&current) != its);
}

/* Whether it was used until now. */
static bool give_up(const interpreter_t *its)
{
    bool was = atomic_compare_exchange_strong(&current, &its, NULL);
    if (was) {
        atomic_fetch_sub(&ca_python_on, 1);
        set_cache_aside();
    }
    return was;
}

void ca_python_closed(uintptr_t low)
{
    const interpreter_t *its = atomic_load(&current);
    if (its && its->low == low)
        give_up(its);
}

bool ca_python_pause(void)
{
    typedef int is_initialized_t(void);
    const interpreter_t *its = atomic_load(&current);
    bool pause = its && !((is_initialized_t *)its->symbols.initialized)();
    if (pause)
        atomic_fetch_sub(&ca_python_on, PAUSED);
    return pause;
}

void ca_python_resume(void)
{
    atomic_fetch_add(&ca_python_on, PAUSED);
}

static const char *program_name(char *path)
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 1);
    const char *started = (const char *)getauxval(AT_EXECFN);
    path[length > 0 ? length : 0] = '\0';
    const char *name = length <= 0 && started ? started : path, *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* A program that is linked with the interpreter has functions of its own in that module. */
static bool is_all_interpreter(const interpreter_t *its)
{
    static char path[PATH_BYTES]; /* one thread comes here */
    const char *name = its->is_program ? program_name(path) : its->name;
    return strncmp(name, "python", strlen("python")) == 0 ||
           strncmp(name, "libpython", strlen("libpython")) == 0;
}

static void say_off(const char *why)
{
    ca_info("python: call stacks have native frames alone, for of this interpreter %s", why);
}

void ca_python_judge(void)
{
    unsigned known = atomic_load_explicit(&judged, memory_order_relaxed);
    if (atomic_load_explicit(&met, memory_order_acquire) == known ||
        !atomic_compare_exchange_strong(&judged, &known, known + 1))
        return;
    interpreter_t *its = &interpreters[known];
    const char *wrong = ca_py_layout_make(&its->symbols, &its->layout);
    if (wrong) {
        say_off(wrong);
        return;
    }
    if (!is_all_interpreter(its))
        its->range = (ca_py_code_range_t){0, 0};
    atomic_store(&guarded_left, GUARDED_STACKS);
    atomic_store(&current, its);
    atomic_fetch_add(&epoch, 1);
    atomic_fetch_add(&ca_python_on, 1);
    set_cache_aside();
}

/* Odd stacks: the layout is not the interpreter's, as far as can be seen. */
static void refuse(const interpreter_t *its)
{
    bool early = atomic_load(&guarded_left) > 0;
    if (!early && atomic_fetch_add(&refusals, 1) < REFUSALS_MOST)
        return;
    if (give_up(its))
        say_off("frames are not as those of its version");
}

static int is_finalizing(const interpreter_t *its)
{
    typedef int is_finalizing_t(void);
    return ((is_finalizing_t *)its->symbols.finalizing)() && !CA_MUTATED(python_end_unseen);
}

static uintptr_t this_state(const interpreter_t *its)
{
    return ((this_state_t *)its->symbols.this_state)();
}

/* --- threads ---------------------------------------------------------------------------------- */

ca_python_thread_t *ca_python_thread_new(void)
{
    return ca_mem_map(sizeof(ca_python_thread_t));
}

static uint64_t epoch_now(void)
{
    return atomic_load_explicit(&epoch, memory_order_relaxed) << 2 | ca_py_versions_epoch();
}

/* Versions of codes are each interpreter's own, and come again in the next one, at the addresses of
 * the one before: what is remembered is of one at a time. */
static uint64_t interpreter_number(const ca_py_layout_t *layout, uintptr_t state)
{
    if (!layout->number || CA_MUTATED(python_interpreters_mixed))
        return 0;
    return ca_py_word(ca_py_interpreter(layout, state) + layout->number);
}

static __attribute__((noinline)) void begin_epoch(ca_python_thread_t *thread, uint64_t now,
                                                  uint64_t interpreter)
{
    if (thread->epoch != 0)
        memset(&thread->known, 0, sizeof thread->known);
    ca_py_cache_forget(&thread->cache);
    thread->epoch = now;
    thread->interpreter = interpreter;
    thread->self = pthread_self();
    thread->first = syscall(SYS_gettid) == getpid();
}

/* What is asked before each frame of a thread whose state another one may end. */
static int (*stop_of(const interpreter_t *its, const ca_python_thread_t *thread))(void)
{
    return thread->first ? NULL : (int (*)(void))its->symbols.finalizing;
}

ca_python_at_t ca_python_here(void)
{
    const interpreter_t *its = atomic_load_explicit(&current, memory_order_acquire);
    uintptr_t state = its ? this_state(its) : 0;
    if (state == 0 || is_finalizing(its) || !ca_py_is_state_own(&its->layout, state))
        return (ca_python_at_t){NULL, 0, 0};
    return (ca_python_at_t){its, state, ca_py_first_frame(&its->layout, state)};
}

unsigned ca_python_depth(void)
{
    return depth;
}

uint32_t ca_python_find(ca_python_thread_t *thread, const ca_python_at_t *at, uint32_t native)
{
    if (thread->busy || at->frame == 0)
        return native;
    const interpreter_t *its = at->interpreter;
    uint64_t now = epoch_now(), interpreter = interpreter_number(&its->layout, at->state);
    if (thread->epoch != now || thread->interpreter != interpreter ||
        thread->self != pthread_self())
        begin_epoch(thread, now, interpreter);
    bool stopped = false;
    uint32_t id = ca_py_cache_find(&thread->cache, &its->layout, at->state, at->frame, native,
                                   stop_of(its, thread), &stopped);
    return stopped ? native : id;
}

/* --- merging ---------------------------------------------------------------------------------- */

static bool find_sites(const ca_py_layout_t *layout, ca_python_thread_t *thread)
{
    unsigned count = 0;
    for (unsigned i = 0; i < thread->walk.link_count; i++) {
        const ca_py_link_t *link = &thread->walk.links[i];
        if (link->is_entry)
            continue;
        if (ca_py_is_interpreters(link->copy)) {
            thread->sites[count++] = 0;
            continue;
        }
        thread->sites[count] = ca_py_site(layout, &thread->reader, &thread->known, link);
        if (thread->sites[count++] == 0)
            return false;
    }
    return true;
}

static bool walk(const interpreter_t *its, ca_python_thread_t *thread)
{
    const ca_py_layout_t *layout = &its->layout;
    thread->reader = (ca_py_reader_t){
        .guarded = atomic_load(&guarded_left) > 0,
        .stop = stop_of(its, thread),
    };
    thread->state = this_state(its);
    if (thread->state == 0 || is_finalizing(its) || !ca_py_is_state_own(layout, thread->state))
        return false;
    bool right = ca_py_walk(layout, &thread->reader, thread->state, depth, &thread->walk) &&
                 ca_py_number(layout, &thread->reader, &thread->known, &thread->walk) &&
                 find_sites(layout, thread);
    if (is_finalizing(its))
        return false;
    if (!right)
        refuse(its);
    else if (thread->reader.guarded && thread->walk.frame_count != 0)
        atomic_fetch_sub(&guarded_left, 1);
    return right;
}

const uintptr_t *ca_python_merge(ca_python_thread_t *thread, const ca_native_part_t *native,
                                 size_t *count)
{
    const interpreter_t *its = atomic_load_explicit(&current, memory_order_acquire);
    int saved = errno;
    thread->walked = false;
    thread->busy = true;
    atomic_signal_fence(memory_order_seq_cst);
    if (its && native->count <= CA_PYTHON_NATIVE_MOST)
        thread->walked = walk(its, thread);
    errno = saved;
    if (!thread->walked || thread->walk.frame_count == 0)
        return NULL;
    *count = ca_py_merge(choice == CA_PYTHON_ONLY ? NULL : native, &thread->walk, thread->sites,
                         its->range, thread->words);
    return thread->words;
}

void ca_python_keep(ca_python_thread_t *thread, uint32_t native, uint32_t id)
{
    const interpreter_t *its = atomic_load_explicit(&current, memory_order_relaxed);
    if (its && thread->walked && id != 0)
        ca_py_cache_keep(&thread->cache, &its->layout, thread->state, native, &thread->walk, id);
    thread->walked = false;
    atomic_signal_fence(memory_order_seq_cst);
    thread->busy = false;
}

bool ca_python_place(uintptr_t word, const char **function, const char **file, unsigned *line)
{
    const ca_py_site_t *site =
        ca_python_is_word(word) ? ca_py_site_of(ca_python_site_in(word)) : NULL;
    if (!site)
        return false;
    const ca_py_code_t *code = ca_py_code_of(site->code);
    *function = code->function;
    *file = code->path;
    *line = site->line;
    return true;
}

void ca_python_reset_after_fork(void)
{
    ca_py_codes_reset_after_fork();
    ca_py_known_reset_after_fork();
    /* The thread that was closing a library is not here. */
    atomic_store(&ca_python_on, atomic_load(&current) != NULL);
    atomic_fetch_add(&epoch, 1);
}
