/* libdw through pointers.
 *
 * The few types below are elfutils' public, stable ABI, so no header of theirs is needed. The
 * library is asked for one module at a time and gets call-backs that can only open local files:
 * its standard ones may ask debuginfod servers over the network. */
#include "registry/dwarf.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"

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

enum { TAG_INLINED = 0x1d, TAG_SUBPROGRAM = 0x2e };
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
} dw;

struct ca_dwarf {
    Dwfl *session;
    Dwfl_Module *module;
};

/* Stays open until the process ends: its users come at exit. */
static bool load_libdw(void)
{
    static enum { UNTRIED, LOADED, MISSING } state;
    if (state != UNTRIED)
        return state == LOADED;
    state = MISSING;
    void *library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        ca_info("libdw.so.1 (elfutils) was not found: reports name no source lines");
        return false;
    }
#define CA_DW(result, name, parameters)                                                            \
    dw.name = (result(*) parameters)dlsym(library, #name);                                         \
    if (!dw.name)                                                                                  \
        return false;
    CA_DW_FUNCTIONS(CA_DW)
#undef CA_DW
    state = LOADED;
    return true;
}

/* The module's own file is given to dwfl_report_elf: there is nothing left to find. */
static int find_no_elf(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base,
                       char **file_name, Elf **elf)
{
    (void)module, (void)data, (void)name, (void)base, (void)file_name, (void)elf;
    return -1;
}

static Dwfl_Callbacks callbacks = {.find_elf = find_no_elf};

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
    /* Looks under /usr/lib/debug/.build-id; dwfl_standard_find_debuginfo would ask debuginfod. */
    callbacks.find_debuginfo = dw.dwfl_build_id_find_debuginfo;
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

void ca_dwarf_demangle(const char *name, char *text, size_t bytes)
{
    typedef char *demangle_t(const char *, char *, size_t *, int *);
    char *plain = NULL;
    int status = 0;
    if (name[0] == '_' && name[1] == 'Z') {
        demangle_t *demangle = (demangle_t *)dlsym(RTLD_DEFAULT, "__cxa_demangle");
        if (demangle)
            plain = demangle(name, NULL, NULL, &status);
    }
    snprintf(text, bytes, "%s", plain ? plain : name);
    free(plain);
}

/* --- names ------------------------------------------------------------------------------------ */

typedef struct ca_place {
    const char *file; /* NULL when not known */
    uint64_t line;
} ca_place_t;

/* A line of text that is filled from the left and cut where it is full. */
typedef struct ca_line {
    char *text;
    size_t bytes;
    size_t used;
} ca_line_t;

static void append(ca_line_t *line, const char *text)
{
    int wrote = snprintf(line->text + line->used, line->bytes - line->used, "%s", text);
    line->used += (size_t)wrote;
    if (line->used >= line->bytes)
        line->used = line->bytes - 1;
}

static void append_place(ca_line_t *line, ca_place_t place)
{
    const char *slash = strrchr(place.file, '/');
    char number[32];
    snprintf(number, sizeof number, ":%llu", (unsigned long long)place.line);
    append(line, " at ");
    append(line, slash ? slash + 1 : place.file);
    append(line, number);
}

static void append_function(ca_line_t *line, const char *name)
{
    static char plain[1024]; /* one user at a time */
    ca_dwarf_demangle(name ? name : "??", plain, sizeof plain);
    append(line, plain);
}

/* The name with namespaces and parameters where there is one: a C++ linkage name. */
static const char *function_name(Dwarf_Die *function)
{
    Dwarf_Attribute attribute;
    const char *name = NULL;
    if (dw.dwarf_attr_integrate(function, AT_LINKAGE_NAME, &attribute))
        name = dw.dwarf_formstring(&attribute);
    return name ? name : dw.dwarf_diename(function);
}

/* Where the inlined function `function` was called. */
static ca_place_t call_place(Dwarf_Die *function, Dwarf_Die *unit)
{
    ca_place_t place = {NULL, 0};
    Dwarf_Attribute attribute;
    Dwarf_Files *files;
    size_t count;
    uint64_t file;
    if (dw.dwarf_formudata(dw.dwarf_attr(function, AT_CALL_FILE, &attribute), &file) == 0 &&
        dw.dwarf_formudata(dw.dwarf_attr(function, AT_CALL_LINE, &attribute), &place.line) == 0 &&
        dw.dwarf_getsrcfiles(unit, &files, &count) == 0 && file < count)
        place.file = dw.dwarf_filesrc(files, file, NULL, NULL);
    return place;
}

static ca_place_t place_of(Dwfl_Module *module, uintptr_t pc)
{
    ca_place_t place = {NULL, 0};
    int number = 0;
    Dwfl_Line *line = dw.dwfl_module_getsrc(module, pc);
    if (line)
        place.file = dw.dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL);
    place.line = (uint64_t)number;
    return place;
}

/* The scopes around `pc`, innermost first, for the caller to free. dwarf_getscopes alone leaves an
 * inlined function for the place where it was written, so it is asked for the innermost only. */
static int scopes_of(Dwarf_Die *unit, uintptr_t pc, Dwarf_Die **scopes)
{
    Dwarf_Die *innermost = NULL;
    int count = dw.dwarf_getscopes(unit, pc, &innermost);
    if (count > 0)
        count = dw.dwarf_getscopes_die(&innermost[0], scopes);
    free(innermost);
    return count;
}

/* Appends the functions around `pc`, the innermost first. False when DWARF knows none. */
static bool append_scopes(ca_line_t *line, Dwfl_Module *module, uintptr_t pc, ca_place_t place)
{
    Dwarf_Addr bias = 0;
    Dwarf_Die *unit = dw.dwfl_module_addrdie(module, pc, &bias);
    Dwarf_Die *scopes = NULL;
    int count = unit ? scopes_of(unit, pc - bias, &scopes) : 0;
    bool any = false;
    for (int i = 0; i < count; i++) {
        int tag = dw.dwarf_tag(&scopes[i]);
        if (tag != TAG_INLINED && tag != TAG_SUBPROGRAM)
            continue;
        if (any)
            append(line, " < ");
        any = true;
        append_function(line, function_name(&scopes[i]));
        if (place.file)
            append_place(line, place);
        if (tag == TAG_SUBPROGRAM)
            break;
        place = call_place(&scopes[i], unit);
    }
    free(scopes);
    return any;
}

bool ca_dwarf_name(ca_dwarf_t *dwarf, uintptr_t pc, char *text, size_t bytes)
{
    ca_line_t line = {text, bytes, 0};
    text[0] = '\0';
    ca_place_t place = place_of(dwarf->module, pc);
    if (append_scopes(&line, dwarf->module, pc, place))
        return place.file != NULL;
    const char *symbol = dw.dwfl_module_addrname(dwarf->module, pc);
    if (symbol) {
        append_function(&line, symbol);
        if (place.file)
            append_place(&line, place);
    }
    return symbol && place.file;
}
