/* From a code address to what is known of it.
 *
 * The table of modules (modules.c), or where that lacks it the loader, says which module an address
 * lies in; libdw (dwarf.c) is then asked for functions and lines, one session for each module,
 * opened when the first address in it comes up. Where there is no libdw, or where it knows nothing,
 * the symbol tables of the file give the function (symbol_table.c), then the loader, for a module
 * whose file cannot be read. Where they have nothing (a stripped program) the module and the offset
 * in it remain, which is what addr2line takes. */
#include "registry/names/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include "registry/names/fp_state.h"
#include "base/mutation.h"
#include "base/text.h"
#include "registry/names/demangle.h"
#include "registry/names/dwarf.h"
#include "registry/python/python.h"
#include "registry/stack/modules.h"
#include "registry/names/frame_lines.h"
#include "registry/names/perf_map.h"
#include "registry/names/plain_names.h"
#include "registry/names/symbol_table.h"

#define PATH_BYTES 4096
#define TEXT_BYTES 2048
#define PLACES_MOST 64 /* functions at one address */
#define LISTS 8192
#define STACK_LEAST ((size_t)256 << 10)

/* A module that names were asked of. */
typedef struct opened {
    struct opened *next;
    const ca_module_t *module; /* NULL where the loader alone knows it */
    uintptr_t base;            /* of that */
    uintptr_t bias;
    const char *path;     /* for people */
    const char *build_id; /* in hexadecimal, or NULL */
    ca_dwarf_t *dwarf;    /* NULL when there is nothing to ask */
    const char *file;     /* that is opened, or NULL: the vdso has none */
    bool has_table;       /* `table` was opened, or tried to be */
    ca_symbol_file_t table;
} opened_t;

struct ca_symbols {
    ca_bump_t *memory;
    bool quick; /* by plain_names.c */
    size_t timed_out;
    ca_fp_state_t fp;    /* of the thread, while it has libdw at hand */
    const char *missing; /* why names are, or NULL */
    opened_t *modules;
    ca_named_t *lists[LISTS]; /* what was answered already, by address */
};

/* Where there is no memory to tell more. */
static ca_named_t nothing_known = {
    .frame = {.text = "(no memory for names)", .lines = "(no memory for names)"}};

/* --- modules ---------------------------------------------------------------------------------- */

/* The main program's name is "" for the loader. Its file may have been deleted since it started:
 * /proc/self/exe then still opens it. Without /proc there is the name it was started by. Returns
 * what is to be opened; `path` is what is to be shown. */
static const char *main_program(char *path)
{
    static const char deleted[] = " (deleted)";
    ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 1);
    if (length <= 0) {
        const char *name = (const char *)(uintptr_t)getauxval(AT_EXECFN);
        snprintf(path, PATH_BYTES, "%s", name ? name : program_invocation_name);
        return path;
    }
    path[length] = '\0';
    size_t suffix = sizeof deleted - 1;
    if ((size_t)length > suffix && strcmp(path + length - suffix, deleted) == 0) {
        path[(size_t)length - suffix] = '\0';
        return "/proc/self/exe";
    }
    return path;
}

static const char *hexadecimal(const ca_module_t *module, ca_bump_t *memory)
{
    size_t bytes = module ? module->build_id_bytes : 0;
    char *text = bytes ? ca_bump_take(memory, bytes * 2 + 1) : NULL;
    for (size_t i = 0; text && i < bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", module->build_id[i]);
    return text;
}

/* In English, and without the C library's tables, which a signal handler may not ask for. */
static void note_missing(ca_symbols_t *symbols, const char *path, int error)
{
    static char buffer[TEXT_BYTES];
    const char *reason = error == EMFILE || error == ENFILE  ? "no descriptor is left"
                         : error == EACCES || error == EPERM ? "no permission"
                         : error == ENOENT                   ? "no such file"
                                                             : NULL;
    ca_text_t text;
    if (symbols->missing)
        return;
    ca_text_init(&text, buffer, sizeof buffer);
    ca_text_escape(&text, path, strlen(path), TEXT_BYTES / 2);
    if (reason)
        ca_text_printf(&text, ": %s", reason);
    else
        ca_text_printf(&text, ": error %d", error);
    symbols->missing = ca_bump_text(symbols->memory, buffer, strlen(buffer));
}

static void note_unreadable(ca_symbols_t *symbols, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        note_missing(symbols, path, errno);
    else
        close(fd);
}

/* Opens the module that the loader calls `name`. Buffers are static: the report may run on the
 * small stack of the thread that calls exit, and there is one user at a time. */
static opened_t *open_module(ca_symbols_t *symbols, const ca_module_t *module, uintptr_t base,
                             uintptr_t bias, const char *name)
{
    static char path[PATH_BYTES];
    opened_t *opened = ca_bump_take(symbols->memory, sizeof *opened);
    if (!opened)
        return NULL;
    const char *file = path;
    if (name[0] == '\0')
        file = main_program(path);
    else
        snprintf(path, sizeof path, "%s", name);
    opened->module = module;
    opened->base = base;
    opened->bias = bias;
    opened->build_id = hexadecimal(module, symbols->memory);
    opened->path = ca_bump_text(symbols->memory, path, strlen(path));
    opened->table.fd = -1;
    if (strchr(path, '/')) { /* the vdso has no file */
        opened->file = ca_bump_text(symbols->memory, file, strlen(file));
        opened->dwarf = ca_dwarf_open(file, bias, opened->build_id ? module->build_id : NULL,
                                      module ? module->build_id_bytes : 0);
        if (!opened->dwarf)
            note_unreadable(symbols, file);
    }
    opened->next = symbols->modules;
    symbols->modules = opened;
    return opened->path ? opened : NULL;
}

/* The module that `pc` lies in, opened at most once. NULL where it lies in none. */
static opened_t *module_of(ca_symbols_t *symbols, uintptr_t pc, const ca_module_t *module)
{
    Dl_info info = {.dli_fbase = NULL};
    struct link_map *map = NULL;
    if (!module && (ca_modules_are_foreign() ||
                    !dladdr1((const void *)pc, &info, (void **)&map, RTLD_DL_LINKMAP) || !map))
        return NULL;
    for (opened_t *one = symbols->modules; one; one = one->next)
        if (one->module == module && one->base == (uintptr_t)info.dli_fbase)
            return one;
    return module ? open_module(symbols, module, 0, module->bias, module->path)
                  : open_module(symbols, NULL, (uintptr_t)info.dli_fbase, (uintptr_t)map->l_addr,
                                map->l_name);
}

/* --- texts ------------------------------------------------------------------------------------ */

static const char *last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void add_escaped(ca_text_t *text, const char *piece)
{
    ca_text_escape(text, piece, strlen(piece), TEXT_BYTES);
}

static void add_offset(ca_text_t *text, const ca_frame_t *frame)
{
    add_escaped(text, last_component(frame->module));
    ca_text_printf(text, "+0x%llx", (unsigned long long)frame->offset);
}

static void add_places(ca_text_t *text, const ca_frame_t *frame, bool in_lines)
{
    for (size_t i = 0; i < frame->place_count; i++) {
        const ca_place_t *place = &frame->places[i];
        const char *function = place->function ? place->function : "??";
        ca_text_printf(text, "%s", i == 0 ? "" : in_lines ? "\n" : " < ");
        if (in_lines)
            ca_frame_add_function(text, function);
        else
            add_escaped(text, function);
        if (place->file) {
            ca_text_printf(text, " at ");
            add_escaped(text, last_component(place->file));
            ca_text_printf(text, ":%u", place->line);
        }
    }
}

static const char *make_text(const ca_frame_t *frame, ca_bump_t *memory, bool in_lines)
{
    static char buffer[TEXT_BYTES];
    ca_text_t text;
    ca_text_init(&text, buffer, sizeof buffer);
    add_places(&text, frame, in_lines);
    if (frame->python) {
        ca_text_printf(&text, "%s", frame->place_count ? "" : "(a Python function)");
    } else if (!frame->module && frame->place_count != 0) {
        ca_text_printf(&text, " (JIT)");
    } else if (!frame->module) {
        ca_text_printf(&text, "0x%llx", (unsigned long long)frame->address);
    } else if (frame->place_count == 0) {
        add_offset(&text, frame);
    } else if (!frame->places[0].file) {
        ca_text_printf(&text, " (");
        add_offset(&text, frame);
        ca_text_printf(&text, ")");
    }
    ca_text_mark_cut(&text);
    const char *copy = ca_bump_text(memory, buffer, strlen(buffer));
    return copy ? copy : nothing_known.frame.text;
}

/* --- frames ----------------------------------------------------------------------------------- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u;
}

static bool has_name(const ca_frame_t *frame)
{
    return frame->place_count != 0 && frame->places[0].function;
}

/* Of what two runs of a program have in common: no address. */
static uint64_t hash_names(const ca_frame_t *frame)
{
    const char *in = frame->python && frame->place_count ? frame->places[0].file : frame->module;
    uint64_t hash = hash_text(0xcbf29ce484222325u, in ? in : "");
    for (size_t i = 0; i < frame->place_count; i++)
        hash = hash_text(hash, frame->places[i].function ? frame->places[i].function : "");
    return has_name(frame) ? hash : (hash ^ frame->offset) * 0x9e3779b97f4a7c15u;
}

/* Opened for the first name; not where it was replaced after it was loaded. */
static void open_table(opened_t *opened)
{
    opened->has_table = true;
    int fd = opened->file ? open(opened->file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
    if (!ca_symbol_file_open(&opened->table, fd))
        return;
    ca_symbol_file_index(&opened->table);
    if (opened->build_id && !ca_symbol_file_has_build_id(&opened->table, opened->module->build_id,
                                                         opened->module->build_id_bytes))
        ca_symbol_file_close(&opened->table);
}

/* The function's symbol, by the module's file or by the loader. */
static const char *find_symbol(ca_symbols_t *symbols, opened_t *opened, uintptr_t pc)
{
    Dl_info info;
    bool timed_out;
    if (!opened->has_table)
        open_table(opened);
    const char *symbol = ca_symbol_file_function(&opened->table, pc - opened->bias, &timed_out);
    symbols->timed_out += timed_out;
    if (symbol)
        return symbol;
    bool is_loaded =
        !opened->module || (atomic_load(&opened->module->until) == 0 && !ca_modules_are_foreign());
    return is_loaded && dladdr((const void *)pc, &info) ? info.dli_sname : NULL;
}

static size_t find_places(ca_symbols_t *symbols, opened_t *opened, uintptr_t pc, ca_place_t *places)
{
    size_t count = opened->dwarf
                       ? ca_dwarf_places(opened->dwarf, pc, places, PLACES_MOST, symbols->memory)
                       : 0;
    const char *symbol = count == 0 ? find_symbol(symbols, opened, pc) : NULL;
    if (symbol) {
        places[0] = (ca_place_t){ca_demangle(symbol, symbols->memory), NULL, 0};
        count = places[0].function != NULL;
    }
    return count;
}

/* Code in no module that a compiler in this process made, maybe. */
static void look_up_generated(ca_symbols_t *symbols, uintptr_t pc, ca_frame_t *frame)
{
    const char *name = ca_modules_are_foreign() ? NULL : ca_perf_map_find(pc);
    ca_place_t *place = name ? ca_bump_take(symbols->memory, sizeof *place) : NULL;
    if (!place)
        return;
    place->function = ca_bump_text(symbols->memory, name, strlen(name));
    frame->places = place;
    frame->place_count = place->function != NULL;
}

/* Fills the frame; `pc` is inside the call. */
static void look_up(ca_symbols_t *symbols, uintptr_t pc, const ca_module_t *module,
                    ca_frame_t *frame)
{
    static ca_place_t places[PLACES_MOST];
    opened_t *opened = module_of(symbols, pc, module);
    if (!opened) {
        if (!module)
            look_up_generated(symbols, pc, frame);
        return;
    }
    frame->module = opened->path;
    frame->build_id = opened->build_id;
    frame->offset = pc - opened->bias;
    size_t count = find_places(symbols, opened, pc, places);
    ca_place_t *copy = ca_bump_take(symbols->memory, count * sizeof *copy);
    if (copy) {
        memcpy(copy, places, count * sizeof *copy);
        frame->places = copy;
        frame->place_count = count;
    }
}

/* By what was noted of the module. */
static void look_up_noted(ca_symbols_t *symbols, uintptr_t pc, const ca_module_t *module,
                          ca_frame_t *frame)
{
    static char path[PATH_BYTES];
    frame->module = module->path;
    if (module->path[0] == '\0') {
        main_program(path);
        frame->module = ca_bump_text(symbols->memory, path, strlen(path));
    }
    frame->build_id = hexadecimal(module, symbols->memory);
    frame->offset = pc - module->bias;
}

/* By what is mapped there now, and where that is another module or cannot be read, by what was
 * noted. */
static void look_up_quickly(ca_symbols_t *symbols, uintptr_t pc, const ca_module_t *module,
                            bool closed, ca_frame_t *frame)
{
    if (closed) {
        look_up_noted(symbols, pc, module, frame);
        return;
    }
    ca_plain_name_t name = ca_plain_names_find(pc);
    const char *path;
    int error = ca_plain_names_error(&path);
    if (error)
        note_missing(symbols, path, error);
    symbols->timed_out += name.timed_out;
    if (!name.module) {
        if (module)
            look_up_noted(symbols, pc, module, frame);
        else
            look_up_generated(symbols, pc, frame);
        return;
    }
    frame->offset = name.offset;
    frame->module = ca_bump_text(symbols->memory, name.module, strlen(name.module));
    ca_place_t *place = name.function ? ca_bump_take(symbols->memory, sizeof *place) : NULL;
    if (!place)
        return;
    place->function = ca_demangle_quick(name.function, symbols->memory);
    frame->places = place;
    frame->place_count = 1;
}

/* What was copied when the frame was captured: the same for each way to names. */
static void look_up_python(ca_symbols_t *symbols, uintptr_t word, ca_frame_t *frame)
{
    ca_place_t *place = ca_bump_take(symbols->memory, sizeof *place);
    frame->python = true;
    if (!place || !ca_python_place(word, &place->function, &place->file, &place->line))
        return;
    frame->places = place;
    frame->place_count = 1;
}

ca_named_t *ca_symbols_frame(ca_symbols_t *symbols, uintptr_t address, uint32_t epoch)
{
    if (!symbols)
        return &nothing_known;
    bool python = ca_python_is_word(address);
    const ca_module_t *module =
        python ? NULL : ca_modules_find(address - 1, epoch ? epoch : ca_modules_epoch());
    const ca_module_t *closed = module && atomic_load(&module->until) != 0 ? module : NULL;
    ca_named_t **list = &symbols->lists[(address ^ address >> 13 ^ address >> 26) % LISTS];
    for (ca_named_t *named = *list; named; named = named->next)
        if (named->word == address && named->closed == closed)
            return named;
    ca_named_t *named = ca_bump_take(symbols->memory, sizeof *named);
    if (!named)
        return &nothing_known;
    named->word = address;
    named->frame.address = python ? 0 : address;
    named->closed = closed;
    if (python) {
        look_up_python(symbols, address, &named->frame);
    } else if (symbols->quick) {
        look_up_quickly(symbols, address - 1, module, closed != NULL, &named->frame);
    } else {
        look_up(symbols, CA_MUTATED(return_address_named) ? address : address - 1, module,
                &named->frame);
    }
    named->frame.text = make_text(&named->frame, symbols->memory, false);
    named->frame.lines = make_text(&named->frame, symbols->memory, true);
    named->names = hash_names(&named->frame);
    named->next = *list;
    *list = named;
    return named;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool ca_symbols_same(const ca_named_t *a, const ca_named_t *b)
{
    if (a == b)
        return true;
    const ca_frame_t *x = &a->frame, *y = &b->frame;
    if (a->names != b->names || x->place_count != y->place_count || !has_name(x) ||
        !same_text(x->module, y->module))
        return false;
    if (x->python != y->python || (x->python && !same_text(x->places[0].file, y->places[0].file)))
        return false;
    for (size_t i = 0; i < x->place_count; i++)
        if (!same_text(x->places[i].function, y->places[i].function))
            return false;
    return true;
}

/* The first thread's bounds come from /proc. Without it there is the limit, and what the kernel put
 * above the stack. */
static bool suffices_by_limit(uintptr_t here)
{
    enum { UNLIMITED_MEANS = 8 << 20 };
    uintptr_t high = getauxval(AT_EXECFN);
    struct rlimit limit;
    if (here >= high || getrlimit(RLIMIT_STACK, &limit) != 0)
        return false;
    size_t bytes = limit.rlim_cur == RLIM_INFINITY ? UNLIMITED_MEANS : limit.rlim_cur;
    return high - here < bytes && bytes - (high - here) >= STACK_LEAST;
}

/* Whether the calling thread's stack has room for libdw, which takes some 170 KiB of it: what ends
 * a program may be a thread with a small one, or come where the limit is low. */
static bool stack_suffices(void)
{
    pthread_attr_t attributes;
    void *low = NULL;
    size_t bytes = 0;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return suffices_by_limit(here);
    bool known = pthread_attr_getstack(&attributes, &low, &bytes) == 0;
    pthread_attr_destroy(&attributes);
    return known && here - (uintptr_t)low < bytes && here - (uintptr_t)low >= STACK_LEAST;
}

ca_symbols_t *ca_symbols_open(ca_bump_t *memory)
{
    if (!stack_suffices())
        return ca_symbols_open_quick(memory);
    ca_modules_note();
    ca_symbols_t *symbols = ca_bump_take(memory, sizeof *symbols);
    if (symbols) {
        symbols->memory = memory;
        ca_fp_hold(&symbols->fp);
        ca_symbol_files_begin();
        ca_perf_map_end(); /* of a report that a fork left in the child */
    }
    return symbols;
}

ca_symbols_t *ca_symbols_open_quick(ca_bump_t *memory)
{
    ca_symbols_t *symbols = ca_bump_take(memory, sizeof *symbols);
    if (symbols) {
        symbols->memory = memory;
        symbols->quick = true;
        ca_plain_names_begin();
        ca_perf_map_end();
    }
    return symbols;
}

const char *ca_symbols_missing(const ca_symbols_t *symbols)
{
    return symbols ? symbols->missing : NULL;
}

bool ca_symbols_lack_lines(const ca_symbols_t *symbols)
{
    return symbols && !symbols->quick && ca_dwarf_is_missing();
}

size_t ca_symbols_from_loader(const ca_symbols_t *symbols)
{
    return symbols ? symbols->timed_out : 0;
}

void ca_symbols_close(ca_symbols_t *symbols)
{
    ca_perf_map_end();
    if (symbols && symbols->quick)
        ca_plain_names_end();
    for (opened_t *one = symbols ? symbols->modules : NULL; one; one = one->next) {
        ca_dwarf_close(one->dwarf);
        one->dwarf = NULL;
        ca_symbol_file_close(&one->table);
    }
    if (symbols && !symbols->quick)
        ca_fp_resume(&symbols->fp);
}
