/* What checks.py asks by ctypes: captures, what they say, and what a layout that is wrong says. */
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/log.h"
#include "base/mutation.h"
#include "base/text.h"
#include "registry/python/codes.h"
#include "registry/python/find.h"
#include "registry/python/known.h"
#include "registry/python/layout.h"
#include "registry/python/python.h"
#include "registry/python/walk.h"
#include "registry/stack/modules.h"
#include "registry/stack/stack.h"
#include "registry/stack/unload.h"

#define EXPORTED __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline))

typedef uintptr_t this_state_t(void);

static ca_py_symbols_t symbols;

static int find(struct dl_phdr_info *object, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    return ca_py_find(object, &symbols);
}

EXPORTED void frames_start(unsigned choice, unsigned depth, unsigned native)
{
    ca_mutation_read();
    ca_log_set_level(CA_LOG_INFO);
    ca_python_start((ca_python_choice_t)choice, depth);
    ca_stack_start(native);
    dl_iterate_phdr(find, NULL);
}

EXPORTED NOINLINE uint32_t frames_capture(void)
{
    volatile uint32_t id = ca_stack_capture();
    return id;
}

/* A function of Python's that is called from here: its frames and ours are in turns. */
EXPORTED NOINLINE uint32_t frames_call(uint32_t (*function)(void))
{
    volatile uint32_t id = function();
    return id;
}

/* From one place, so many times: their ids are one, which is given. */
EXPORTED NOINLINE uint32_t frames_repeat(unsigned times)
{
    uint32_t id = 0;
    for (volatile unsigned i = 0; i < times; i = i + 1)
        id = ca_stack_capture();
    return id;
}

/* Nanoseconds of one of them, the best of some rounds. */
EXPORTED NOINLINE double frames_time(unsigned times)
{
    double best = 1e9;
    for (int round = 0; round < 9; round++) {
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        frames_repeat(times);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        double ns = (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
        if (ns / times < best)
            best = ns / times;
    }
    return best;
}

/* Nanoseconds of one capture. */
EXPORTED NOINLINE double frames_once(void)
{
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    frames_capture();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
}

static void add_frame(ca_text_t *text, uintptr_t word)
{
    const char *function, *file;
    unsigned line;
    if (!ca_python_is_word(word)) {
        const ca_module_t *module = ca_modules_find(word - 1, ca_modules_epoch());
        const char *slash = module ? strrchr(module->path, '/') : NULL;
        ca_text_printf(text, "@%s\n", slash ? slash + 1 : module ? "" : "?");
    } else if (ca_python_place(word, &function, &file, &line)) {
        ca_text_printf(text, "%s\t%s\t%u\n", function, file, line);
    } else {
        ca_text_printf(text, "??\n");
    }
}

static int close_it(void *handle)
{
    return dlclose(handle);
}

/* As a program's dlclose, which the library sees. */
EXPORTED int frames_close(void *handle)
{
    return ca_unload(close_it, handle);
}

/* A line for each frame: function, file and line of a Python one, @ and a module else. */
EXPORTED void frames_text(uint32_t id, char *buffer, size_t bytes)
{
    uintptr_t words[CA_STACK_MAX];
    ca_text_t text;
    ca_text_init(&text, buffer, bytes);
    size_t count = ca_stack_frames(id, words, CA_STACK_MAX);
    for (size_t i = 0; i < count; i++)
        add_frame(&text, words[i]);
}

EXPORTED unsigned frames_stacks(void)
{
    return (unsigned)ca_stack_count();
}

/* --- wrong layouts ---------------------------------------------------------------------------- */

static ca_py_walk_t walk;
static ca_py_known_t known;

/* What the Python frames are by that layout; false where it was found out. */
static bool write_walk(const ca_py_layout_t *layout, ca_text_t *text)
{
    ca_py_reader_t reader = {.guarded = true};
    uintptr_t state = ((this_state_t *)symbols.this_state)();
    memset(&known, 0, sizeof known);
    if (!ca_py_is_state_own(layout, state) ||
        !ca_py_walk(layout, &reader, state, CA_PY_DEPTH_MOST, &walk) ||
        !ca_py_number(layout, &reader, &known, &walk))
        return false;
    for (unsigned i = 0; i < walk.link_count; i++) {
        uint32_t site =
            walk.links[i].is_entry ? 0 : ca_py_site(layout, &reader, &known, &walk.links[i]);
        if (site != 0)
            add_frame(text, CA_PYTHON_WORD | site);
        else if (!walk.links[i].is_entry)
            return false;
    }
    return true;
}

/* One of the fields by so many bytes, and that in whole: not where types speak against it. */
EXPORTED int frames_shifted(unsigned field, int by, char *buffer, size_t bytes)
{
    ca_py_layout_t layout;
    ca_text_t text;
    ca_text_init(&text, buffer, bytes);
    uint32_t *fields = (uint32_t *)(void *)&layout.state; /* to the end of the layout */
    if (!symbols.this_state || ca_py_layout_make(&symbols, &layout))
        return -1;
    fields[field] += (uint32_t)by;
    if (!ca_py_layout_is_proven(&symbols, &layout))
        return 0;
    return write_walk(&layout, &text);
}

/* Another version's. */
EXPORTED int frames_of_version(unsigned minor, char *buffer, size_t bytes)
{
    static uint32_t version;
    ca_py_symbols_t others = symbols;
    ca_py_layout_t layout;
    ca_text_t text;
    ca_text_init(&text, buffer, bytes);
    version = 3u << 24 | minor << 16 | 0xf0;
    others.version = (uintptr_t)&version;
    if (ca_py_layout_make(&others, &layout))
        return 0;
    return write_walk(&layout, &text);
}

/* A code object that is none any more, or never was: 0 where it is found out. */
EXPORTED int frames_of_code(uintptr_t code)
{
    ca_py_layout_t layout;
    ca_py_reader_t reader = {.guarded = true};
    if (!symbols.this_state || ca_py_layout_make(&symbols, &layout))
        return -1;
    memset(&known, 0, sizeof known);
    walk = (ca_py_walk_t){.link_count = 1, .frame_count = 1, .links = {{.code = code}}};
    return ca_py_number(&layout, &reader, &known, &walk);
}

/* The last bytes before memory that is not there. */
EXPORTED uintptr_t frames_edge(unsigned bytes)
{
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    return (uintptr_t)pages + 4096 - bytes;
}
