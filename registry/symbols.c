/* From a code address to a readable name.
 *
 * dladdr1 says which module an address lies in; libdw (dwarf.c) is then asked for function and
 * line, one session for each module, opened when the first address in it comes up. Where that
 * knows nothing the dynamic symbol table gives the function, and where that has nothing (a
 * stripped program) the module and the offset in it remain, which is what addr2line takes. */
#include "registry/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "config/mutation.h"
#include "registry/dwarf.h"

#define PATH_BYTES 4096
#define NAME_BYTES 1024

typedef struct ca_module {
    struct ca_module *next;
    const void *base;
    ca_dwarf_t *dwarf; /* NULL when there is nothing to ask */
} ca_module_t;

typedef struct ca_name {
    struct ca_name *next;
    uintptr_t address;
    char text[];
} ca_name_t;

#define NAME_LISTS 1024

struct ca_symbols {
    ca_module_t *modules;
    ca_name_t *names[NAME_LISTS]; /* what was answered already, by address */
};

/* What the loader knows about the module around an address. */
typedef struct ca_place_in {
    Dl_info info;
    uintptr_t bias;
    char *path;         /* PATH_BYTES */
    const char *file;   /* what is opened: the path, or something that works better */
    const char *module; /* the last component of the path, for people */
} ca_place_in_t;

typedef struct ca_build_id {
    uintptr_t address; /* in: of the module */
    const void *bits;
    size_t bytes;
} ca_build_id_t;

/* The main program's name is "" for the loader. Its file may have been deleted since it started:
 * /proc/self/exe then still opens it. Without /proc there is the name it was started by. */
static void main_program(ca_place_in_t *place)
{
    static const char deleted[] = " (deleted)";
    ssize_t length = readlink("/proc/self/exe", place->path, PATH_BYTES - 1);
    if (length <= 0) {
        const char *name = (const char *)(uintptr_t)getauxval(AT_EXECFN);
        snprintf(place->path, PATH_BYTES, "%s", name ? name : program_invocation_name);
        return;
    }
    place->path[length] = '\0';
    size_t suffix = sizeof deleted - 1;
    if ((size_t)length > suffix && strcmp(place->path + length - suffix, deleted) == 0) {
        place->path[(size_t)length - suffix] = '\0';
        place->file = "/proc/self/exe";
    }
}

/* Buffers here are static: the report may run on the small stack of whoever calls exit, and there
 * is one user at a time. */
static bool locate(uintptr_t pc, ca_place_in_t *place)
{
    static char path[PATH_BYTES];
    struct link_map *map = NULL;
    if (!dladdr1((const void *)pc, &place->info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return false;
    place->bias = (uintptr_t)map->l_addr;
    place->path = path;
    place->file = path;
    if (map->l_name[0] == '\0')
        main_program(place);
    else
        snprintf(path, sizeof path, "%s", map->l_name);
    const char *slash = strrchr(path, '/');
    place->module = slash ? slash + 1 : path;
    return true;
}

static void read_notes(const char *notes, size_t bytes, size_t align, ca_build_id_t *id)
{
    size_t at = 0;
    while (at + sizeof(ElfW(Nhdr)) <= bytes) {
        ElfW(Nhdr) head;
        memcpy(&head, notes + at, sizeof head);
        size_t name = at + sizeof head;
        size_t desc = name + ((head.n_namesz + align - 1) & ~(align - 1));
        size_t next = desc + ((head.n_descsz + align - 1) & ~(align - 1));
        if (next <= at || desc + head.n_descsz > bytes)
            return;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
            memcmp(notes + name, "GNU", 4) == 0) {
            id->bits = notes + desc;
            id->bytes = head.n_descsz;
            return;
        }
        at = next;
    }
}

static int find_build_id(struct dl_phdr_info *module, size_t bytes, void *arg)
{
    (void)bytes;
    ca_build_id_t *id = arg;
    bool here = false;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &module->dlpi_phdr[i];
        uintptr_t start = (uintptr_t)(module->dlpi_addr + segment->p_vaddr);
        if (segment->p_type == PT_LOAD && id->address - start < segment->p_memsz)
            here = true;
    }
    for (int i = 0; here && !id->bits && i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &module->dlpi_phdr[i];
        if (segment->p_type == PT_NOTE)
            read_notes((const char *)(uintptr_t)(module->dlpi_addr + segment->p_vaddr),
                       segment->p_memsz, segment->p_align == 8 ? 8 : 4, id);
    }
    return here;
}

/* The module's libdw session, opened at most once. */
static ca_dwarf_t *dwarf_of(ca_symbols_t *symbols, uintptr_t pc, const ca_place_in_t *place)
{
    for (const ca_module_t *module = symbols->modules; module; module = module->next)
        if (module->base == place->info.dli_fbase)
            return module->dwarf;
    ca_module_t *module = calloc(1, sizeof *module);
    if (!module)
        return NULL;
    module->base = place->info.dli_fbase;
    module->next = symbols->modules;
    symbols->modules = module;
    if (strchr(place->path, '/')) { /* the vdso has no file */
        ca_build_id_t id = {.address = pc};
        dl_iterate_phdr(find_build_id, &id);
        module->dwarf = ca_dwarf_open(place->file, place->bias, id.bits, id.bytes);
    }
    return module->dwarf;
}

/* The name that is looked up, without the cache. `pc` is inside the call. */
static void make_name(ca_symbols_t *symbols, uintptr_t pc, char *text, size_t bytes)
{
    static char function[NAME_BYTES];
    ca_place_in_t place;
    function[0] = '\0';
    if (!locate(pc, &place)) {
        snprintf(text, bytes, "0x%llx", (unsigned long long)pc + 1);
        return;
    }
    ca_dwarf_t *dwarf = symbols ? dwarf_of(symbols, pc, &place) : NULL;
    if (dwarf && ca_dwarf_name(dwarf, pc, function, sizeof function)) {
        snprintf(text, bytes, "%s", function);
        return;
    }
    if (function[0] == '\0' && place.info.dli_sname)
        ca_dwarf_demangle(place.info.dli_sname, function, sizeof function);
    unsigned long long offset = pc - place.bias;
    if (function[0] != '\0')
        snprintf(text, bytes, "%s (%s+0x%llx)", function, place.module, offset);
    else
        snprintf(text, bytes, "%s+0x%llx", place.module, offset);
}

ca_symbols_t *ca_symbols_open(void)
{
    return calloc(1, sizeof(ca_symbols_t));
}

void ca_symbols_close(ca_symbols_t *symbols)
{
    if (!symbols)
        return;
    for (size_t i = 0; i < NAME_LISTS; i++) {
        while (symbols->names[i]) {
            ca_name_t *name = symbols->names[i];
            symbols->names[i] = name->next;
            free(name);
        }
    }
    while (symbols->modules) {
        ca_module_t *module = symbols->modules;
        symbols->modules = module->next;
        ca_dwarf_close(module->dwarf);
        free(module);
    }
    free(symbols);
}

void ca_symbols_name(ca_symbols_t *symbols, uintptr_t address, char *text, size_t bytes)
{
    static char made[NAME_BYTES];
    if (!symbols) {
        make_name(NULL, address - 1, text, bytes);
        return;
    }
    ca_name_t **list = &symbols->names[(address ^ address >> 10 ^ address >> 20) % NAME_LISTS];
    for (const ca_name_t *name = *list; name; name = name->next) {
        if (name->address == address) {
            snprintf(text, bytes, "%s", name->text);
            return;
        }
    }
    make_name(symbols, CA_MUTATED(return_address_named) ? address : address - 1, made, sizeof made);
    snprintf(text, bytes, "%s", made);
    size_t length = strlen(made) + 1;
    ca_name_t *name = malloc(sizeof *name + length);
    if (!name)
        return;
    name->address = address;
    memcpy(name->text, made, length);
    name->next = *list;
    *list = name;
}
