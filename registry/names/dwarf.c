/* libdw through pointers.
 *
 * The few types below are elfutils' public, stable ABI, so no header of theirs is needed. The
 * library is asked for one module at a time and gets call-backs that can only open local files:
 * its standard ones may ask debuginfod servers over the network. */
#include "registry/names/dwarf.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/names/demangle.h"

typedef struct Dwfl Dwfl;
typedef struct Dwfl_Module Dwfl_Module;
typedef struct Dwfl_Line Dwfl_Line;
typedef struct Dwarf_Files Dwarf_Files;
typedef struct Elf Elf;
typedef uint64_t Dwarf_Addr;

typedef struct {
    void *addr;
    void *cu;
    void *abbrev;
    long padding;
} Dwarf_Die;

typedef struct {
    unsigned code;
    unsigned form;
    unsigned char *value;
    void *cu;
} Dwarf_Attribute;

typedef struct {
    int (*find_elf)(Dwfl_Module *, void **, const char *, Dwarf_Addr, char **, Elf **);
    int (*find_debuginfo)(Dwfl_Module *, void **, const char *, Dwarf_Addr, const char *,
                          const char *, unsigned, char **);
    int (*section_address)(Dwfl_Module *, void **, const char *, Dwarf_Addr, const char *, unsigned,
                           const void *, Dwarf_Addr *);
    char **debuginfo_path;
} Dwfl_Callbacks;

enum { TAG_INLINED = 0x1d, TAG_MODULE = 0x1e, TAG_SUBPROGRAM = 0x2e, TAG_NAMESPACE = 0x39 };

#define SCOPES_MOST 64 /* scopes in each other that are looked into */
enum { AT_CALL_FILE = 0x58, AT_CALL_LINE = 0x59, AT_LINKAGE_NAME = 0x6e };

/* CA_DW(result, name, parameters) */
#define CA_DW_FUNCTIONS(X)                                                                         \
    X(Dwfl *, dwfl_begin, (const Dwfl_Callbacks *))                                                \
    X(void, dwfl_end, (Dwfl *))                                                                    \
    X(void, dwfl_report_begin, (Dwfl *))                                                           \
    X(int, dwfl_report_end,                                                                        \
      (Dwfl *, int (*)(Dwfl_Module *, void *, const char *, Dwarf_Addr, void *), void *))          \
    X(Dwfl_Module *, dwfl_report_elf, (Dwfl *, const char *, const char *, int, Dwarf_Addr, bool)) \
    X(int, dwfl_module_build_id, (Dwfl_Module *, const unsigned char **, Dwarf_Addr *))            \
    X(int, dwfl_build_id_find_debuginfo,                                                           \
      (Dwfl_Module *, void **, const char *, Dwarf_Addr, const char *, const char *, unsigned,     \
       char **))                                                                                   \
    X(const char *, dwfl_module_addrname, (Dwfl_Module *, Dwarf_Addr))                             \
    X(Dwfl_Line *, dwfl_module_getsrc, (Dwfl_Module *, Dwarf_Addr))                                \
    X(const char *, dwfl_lineinfo,                                                                 \
      (Dwfl_Line *, Dwarf_Addr *, int *, int *, Dwarf_Addr *, uint64_t *))                         \
    X(Dwarf_Die *, dwfl_module_addrdie, (Dwfl_Module *, Dwarf_Addr, Dwarf_Addr *))                 \
    X(int, dwarf_getscopes, (Dwarf_Die *, Dwarf_Addr, Dwarf_Die **))                               \
    X(int, dwarf_getscopes_die, (Dwarf_Die *, Dwarf_Die **))                                       \
    X(int, dwarf_child, (Dwarf_Die *, Dwarf_Die *))                                                \
    X(int, dwarf_siblingof, (Dwarf_Die *, Dwarf_Die *))                                            \
    X(int, dwarf_haspc, (Dwarf_Die *, Dwarf_Addr))                                                 \
    X(int, dwarf_tag, (Dwarf_Die *))                                                               \
    X(const char *, dwarf_diename, (Dwarf_Die *))                                                  \
    X(Dwarf_Attribute *, dwarf_attr, (Dwarf_Die *, unsigned, Dwarf_Attribute *))                   \
    X(Dwarf_Attribute *, dwarf_attr_integrate, (Dwarf_Die *, unsigned, Dwarf_Attribute *))         \
    X(const char *, dwarf_formstring, (Dwarf_Attribute *))                                         \
    X(int, dwarf_formudata, (Dwarf_Attribute *, uint64_t *))                                       \
    X(int, dwarf_getsrcfiles, (Dwarf_Die *, Dwarf_Files **, size_t *))                             \
    X(const char *, dwarf_filesrc, (Dwarf_Files *, size_t, uint64_t *, uint64_t *))

static struct {
#define CA_DW(result, name, parameters) result(*name) parameters;
    CA_DW_FUNCTIONS(CA_DW)
#undef CA_DW
    /* Not in libdw before 0.171: may be NULL. */
    int (*dwarf_cu_info)(void *, uint16_t *, uint8_t *, Dwarf_Die *, Dwarf_Die *, uint64_t *,
                         uint8_t *, uint8_t *);
} dw;

struct ca_dwarf {
    Dwfl *session;
    Dwfl_Module *module;
};

static enum { UNTRIED, LOADED, MISSING } state; /* of libdw */

/* Stays open until the process ends: its users come at exit. */
static bool load_libdw(void)
{
    if (state != UNTRIED)
        return state == LOADED;
    state = MISSING;
    void *library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
#define CA_DW(result, name, parameters)                                                            \
    dw.name = (result(*) parameters)dlsym(library, #name);                                         \
    if (!dw.name)                                                                                  \
        return false;
    CA_DW_FUNCTIONS(CA_DW)
#undef CA_DW
    *(void **)&dw.dwarf_cu_info = dlsym(library, "dwarf_cu_info");
    state = LOADED;
    return true;
}

bool ca_dwarf_is_missing(void)
{
    return state == MISSING;
}

/* The module's own file is given to dwfl_report_elf: there is nothing left to find. */
static int find_no_elf(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base,
                       char **file_name, Elf **elf)
{
    (void)module, (void)data, (void)name, (void)base, (void)file_name, (void)elf;
    return -1;
}

static int find_debug_file(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base,
                           const char *file_name, const char *link, unsigned crc, char **found);

static Dwfl_Callbacks callbacks = {.find_elf = find_no_elf, .find_debuginfo = find_debug_file};

static bool same_build_id(Dwfl_Module *module, const void *build_id, size_t bytes)
{
    const unsigned char *bits;
    Dwarf_Addr where;
    int count = dw.dwfl_module_build_id(module, &bits, &where);
    return count > 0 && (size_t)count == bytes && memcmp(bits, build_id, bytes) == 0;
}

/* A descriptor of `path` when it is a plain file: a device could block. */
static int open_plain(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

ca_dwarf_t *ca_dwarf_open(const char *path, uintptr_t bias, const void *build_id,
                          size_t build_id_bytes)
{
    int fd = -1;
    if (!load_libdw() || (fd = open_plain(path)) < 0)
        return NULL;
    ca_dwarf_t *dwarf = calloc(1, sizeof *dwarf);
    if (!dwarf || !(dwarf->session = dw.dwfl_begin(&callbacks)))
        goto failed;
    dw.dwfl_report_begin(dwarf->session);
    dwarf->module = dw.dwfl_report_elf(dwarf->session, path, path, fd, bias, true);
    if (!dwarf->module)
        goto failed;
    /* libdw owns the descriptor from here on */
    fd = -1;
    if (dw.dwfl_report_end(dwarf->session, NULL, NULL) != 0)
        goto failed;
    if (build_id && !same_build_id(dwarf->module, build_id, build_id_bytes))
        goto failed;
    return dwarf;

failed:
    if (fd >= 0)
        close(fd);
    ca_dwarf_close(dwarf);
    return NULL;
}

void ca_dwarf_close(ca_dwarf_t *dwarf)
{
    if (dwarf && dwarf->session)
        dw.dwfl_end(dwarf->session);
    free(dwarf);
}

/* A descriptor of `path` where that is the debug file of `module`. */
static int open_debug_file(Dwfl_Module *module, const char *path)
{
    const unsigned char *build_id;
    Dwarf_Addr where;
    int bytes = dw.dwfl_module_build_id(module, &build_id, &where);
    ca_dwarf_t *candidate = bytes > 0 ? ca_dwarf_open(path, 0, build_id, (size_t)bytes) : NULL;
    if (!candidate)
        return -1;
    ca_dwarf_close(candidate);
    return open_plain(path);
}

/* libc.so.6, or libc-2.31.so before glibc 2.34. */
static bool is_libc(const char *file_name)
{
    const char *slash = strrchr(file_name, '/');
    const char *base = slash ? slash + 1 : file_name;
    return strncmp(base, "libc.so.", 8) == 0 || strncmp(base, "libc-2.", 7) == 0;
}

/* Looks under /usr/lib/debug/.build-id, then for the file that the module's .gnu_debuglink names,
 * beside the module as debuggers do. dwfl_standard_find_debuginfo would ask debuginfod.
 *
 * That of libc is not read: nearly every stack ends there, below main, where it tells nothing of
 * the program, and to expand it takes 60 ms of each report (its symbol table is read all the same).
 */
static int find_debug_file(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base,
                           const char *file_name, const char *link, unsigned crc, char **found)
{
    static const char *const folders[] = {"", ".debug/"};
    static char path[4096];
    if (file_name && is_libc(file_name))
        return -1;
    int fd = dw.dwfl_build_id_find_debuginfo(module, data, name, base, file_name, link, crc, found);
    const char *slash = file_name ? strrchr(file_name, '/') : NULL;
    if (fd >= 0 || !slash || !link || strchr(link, '/'))
        return fd;
    for (size_t i = 0; fd < 0 && i < sizeof folders / sizeof folders[0]; i++) {
        int length = snprintf(path, sizeof path, "%.*s/%s%s", (int)(slash - file_name), file_name,
                              folders[i], link);
        if (length > 0 && (size_t)length < sizeof path)
            fd = open_debug_file(module, path);
    }
    if (fd >= 0)
        *found = strdup(path); /* libdw frees it */
    return fd;
}

/* --- names ------------------------------------------------------------------------------------ */

/* The name with namespaces and parameters where there is one: a C++ linkage name. */
static const char *function_name(Dwarf_Die *function)
{
    Dwarf_Attribute attribute;
    const char *name = NULL;
    if (dw.dwarf_attr_integrate(function, AT_LINKAGE_NAME, &attribute))
        name = dw.dwarf_formstring(&attribute);
    return name ? name : dw.dwarf_diename(function);
}

/* That of the function with the code at `pc`. Compilers note no linkage name for what other files
 * do not see: static C++ functions, those in anonymous namespaces, templates of local types. The
 * symbol table has it. */
static const char *outer_name(Dwfl_Module *module, uintptr_t pc, Dwarf_Die *function)
{
    const char *name = function_name(function);
    const char *symbol = dw.dwfl_module_addrname(module, pc);
    bool is_mangled = symbol && ca_demangle_is_needed(symbol);
    return is_mangled && !(name && ca_demangle_is_needed(name)) ? symbol : name;
}

/* Where the inlined function `function` was called. */
static ca_place_t call_place(Dwarf_Die *function, Dwarf_Die *unit)
{
    ca_place_t place = {NULL, NULL, 0};
    Dwarf_Attribute attribute;
    Dwarf_Files *files;
    size_t count;
    uint64_t file, line;
    if (dw.dwarf_formudata(dw.dwarf_attr(function, AT_CALL_FILE, &attribute), &file) == 0 &&
        dw.dwarf_formudata(dw.dwarf_attr(function, AT_CALL_LINE, &attribute), &line) == 0 &&
        dw.dwarf_getsrcfiles(unit, &files, &count) == 0 && file < count) {
        place.file = dw.dwarf_filesrc(files, file, NULL, NULL);
        place.line = (unsigned)line;
    }
    return place;
}

static ca_place_t place_of(Dwfl_Module *module, uintptr_t pc)
{
    ca_place_t place = {NULL, NULL, 0};
    int number = 0;
    Dwfl_Line *line = dw.dwfl_module_getsrc(module, pc);
    if (line)
        place.file = dw.dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL);
    place.line = (unsigned)number;
    return place;
}

/* The innermost scope below `die` with the code at `pc`. */
static bool find_scope(Dwarf_Die *die, uintptr_t pc, Dwarf_Die *found, int depth)
{
    Dwarf_Die child;
    if (depth == SCOPES_MOST || dw.dwarf_child(die, &child) != 0)
        return false;
    do {
        int tag = dw.dwarf_tag(&child);
        bool is_there = dw.dwarf_haspc(&child, pc) > 0;
        bool may_hold = is_there || tag == TAG_NAMESPACE || tag == TAG_MODULE;
        if (may_hold && find_scope(&child, pc, found, depth + 1))
            return true;
        if (is_there) {
            *found = child;
            return true;
        }
    } while (dw.dwarf_siblingof(&child, &child) == 0);
    return false;
}

/* The scopes around `pc`, innermost first, for the caller to free. dwarf_getscopes alone leaves an
 * inlined function for the place where it was written, so it is asked for the innermost only. It
 * finds nothing where that place is in another unit, as after link-time optimisation. */
static int scopes_of(Dwarf_Die *unit, uintptr_t pc, Dwarf_Die **scopes)
{
    Dwarf_Die *innermost = NULL;
    int count = dw.dwarf_getscopes(unit, pc, &innermost);
    Dwarf_Die found;
    if (count > 0)
        count = dw.dwarf_getscopes_die(&innermost[0], scopes);
    else if (find_scope(unit, pc, &found, 0))
        count = dw.dwarf_getscopes_die(&found, scopes);
    free(innermost);
    return count;
}

/* `place` with the name of its function, in memory of ours. */
static ca_place_t kept(ca_place_t place, const char *function, ca_bump_t *memory)
{
    if (function)
        place.function = ca_demangle(function, memory);
    if (place.file)
        place.file = ca_bump_text(memory, place.file, strlen(place.file));
    if (!place.file)
        place.line = 0;
    return place;
}

/* With -gsplit-dwarf the module has a skeleton of the unit; the functions are in a .dwo file. */
static Dwarf_Die *whole_unit(Dwarf_Die *unit, Dwarf_Die *split)
{
    bool is_split = dw.dwarf_cu_info &&
                    dw.dwarf_cu_info(unit->cu, NULL, NULL, NULL, split, NULL, NULL, NULL) == 0 &&
                    split->addr;
    return is_split ? split : unit;
}

/* The functions around `pc`, as DWARF knows them. */
static size_t places_in_scopes(Dwfl_Module *module, uintptr_t pc, ca_place_t place,
                               ca_place_t *places, size_t max, ca_bump_t *memory)
{
    Dwarf_Addr bias = 0;
    Dwarf_Die *unit = dw.dwfl_module_addrdie(module, pc, &bias);
    Dwarf_Die *scopes = NULL, split;
    if (unit)
        unit = whole_unit(unit, &split);
    int count = unit ? scopes_of(unit, pc - bias, &scopes) : 0;
    size_t found = 0;
    for (int i = 0; i < count && found < max; i++) {
        int tag = dw.dwarf_tag(&scopes[i]);
        if (tag != TAG_INLINED && tag != TAG_SUBPROGRAM)
            continue;
        bool is_outer = tag == TAG_SUBPROGRAM;
        const char *name =
            is_outer ? outer_name(module, pc, &scopes[i]) : function_name(&scopes[i]);
        places[found++] = kept(place, name, memory);
        if (is_outer)
            break;
        place = call_place(&scopes[i], unit);
    }
    free(scopes);
    return found;
}

size_t ca_dwarf_places(ca_dwarf_t *dwarf, uintptr_t pc, ca_place_t *places, size_t max,
                       ca_bump_t *memory)
{
    ca_place_t place = place_of(dwarf->module, pc);
    size_t found = places_in_scopes(dwarf->module, pc, place, places, max, memory);
    if (found != 0)
        return found;
    const char *symbol = dw.dwfl_module_addrname(dwarf->module, pc);
    if (!symbol)
        return 0;
    places[0] = kept(place, symbol, memory);
    return 1;
}
