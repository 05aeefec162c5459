#include "registry/python/merge.h"

#include <stdatomic.h>
#include <string.h>

#include "registry/stack/modules.h"

typedef struct merge {
    const ca_py_walk_t *walk;
    const uint32_t *sites;
    uintptr_t *words;
    size_t count;
    unsigned run, frame; /* that come next */
} merge_t;

static void add_run(merge_t *merge)
{
    for (unsigned end = merge->walk->runs[merge->run++].end; merge->frame < end; merge->frame++)
        if (merge->sites[merge->frame] != 0)
            merge->words[merge->count++] = CA_PYTHON_WORD | merge->sites[merge->frame];
}

static void add_rest(merge_t *merge)
{
    while (merge->run < merge->walk->run_count)
        add_run(merge);
}

static bool are_places_known(const ca_native_part_t *native, const ca_py_walk_t *walk)
{
    return walk->run_count > 0 && walk->runs[0].place != 0 && native->sp_count > 0 &&
           native->sps[0] != 0;
}

/* The runs whose place is in the function's part of the stack. Whether there was one. */
static bool add_runs_of(merge_t *merge, const ca_native_part_t *native, size_t index)
{
    bool any = false;
    if (index + 1 >= native->sp_count)
        return false;
    while (merge->run < merge->walk->run_count) {
        uintptr_t place = merge->walk->runs[merge->run].place;
        if (place < native->sps[index] || place >= native->sps[index + 1])
            break;
        add_run(merge);
        any = true;
    }
    return any;
}

/* The module that was asked for last of those that are the C library, and of the others: there may
 * be hundreds, which are searched one by one. */
static const ca_module_t *_Atomic asked[2];

static bool is_still_in(const ca_module_t *module, uintptr_t address)
{
    return module && address - module->low < module->high - module->low &&
           atomic_load_explicit(&module->until, memory_order_relaxed) == 0;
}

/* What starts a program and its threads. */
static bool is_c_library(uintptr_t address)
{
    for (int is = 0; is < 2; is++)
        if (is_still_in(atomic_load_explicit(&asked[is], memory_order_acquire), address))
            return is;
    const ca_module_t *module = ca_modules_find(address, ca_modules_epoch());
    const char *slash = module ? strrchr(module->path, '/') : NULL;
    bool is = slash && (strncmp(slash, "/libc.so", 8) == 0 || strncmp(slash, "/libc-", 6) == 0 ||
                        strncmp(slash, "/libpthread", 11) == 0);
    if (module)
        atomic_store_explicit(&asked[is], module, memory_order_release);
    return is;
}

/* Beyond the outermost Python frame nothing is the program's where the interpreter is the program,
 * and how much is left there changes with how the interpreter calls. */
static bool is_start(const merge_t *merge, ca_py_code_range_t interpreter, uintptr_t address)
{
    return merge->frame == merge->walk->frame_count && merge->walk->whole &&
           interpreter.high != 0 && is_c_library(address);
}

size_t ca_py_merge(const ca_native_part_t *native, const ca_py_walk_t *walk, const uint32_t *sites,
                   ca_py_code_range_t interpreter, uintptr_t *words)
{
    merge_t merge = {.walk = walk, .sites = sites, .words = words};
    bool placed = native && are_places_known(native, walk);
    for (size_t i = 0; native && i < native->count; i++) {
        bool is_interpreters =
            native->frames[i] - interpreter.low < interpreter.high - interpreter.low;
        bool runs = placed && add_runs_of(&merge, native, i);
        if (!placed && is_interpreters)
            add_rest(&merge); /* the order of each is right, and the innermost run's place */
        if (!runs && !is_interpreters && !is_start(&merge, interpreter, native->frames[i]))
            words[merge.count++] = native->frames[i];
    }
    add_rest(&merge);
    return merge.count;
}
