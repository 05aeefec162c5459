/* See bindings.h. A module's references are looked at where the loader keeps what they are bound
 * to. What is bound at the first call has an address in the module itself until then: it has done
 * nothing yet. */
#include "shim/cuda/bindings.h"
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/driver_table.h"

#define LATER_MOST 2048 /* of more references that are not bound yet the rest is not looked at */

#if defined(__x86_64__)
#define R_ENTRY R_X86_64_JUMP_SLOT
#define R_DATA R_X86_64_GLOB_DAT
#else
#define R_ENTRY R_AARCH64_JUMP_SLOT
#define R_DATA R_AARCH64_GLOB_DAT
#endif

/* Not bound yet. */
typedef struct later {
    void *const *entry;
    uintptr_t low, high; /* its module */
} later_t;

static later_t later[LATER_MOST];
static size_t later_count;

/* What the loader had counted the last time, where that is `known`. */
static bool known;
static unsigned long long opened, closed;

typedef struct module {
    uintptr_t base, low, high;
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * calls, *data;
    size_t call_count, data_count;
} module_t;

/* The loader has made addresses of them, but where it could not write. */
static uintptr_t address_of(uintptr_t base, uintptr_t value)
{
    return value < base ? base + value : value;
}

static bool read_module(const struct dl_phdr_info *info, module_t *module)
{
    const ElfW(Dyn) *dynamic = NULL;
    *module = (module_t){.base = info->dlpi_addr, .low = UINTPTR_MAX};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = (uintptr_t)(info->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)start;
        if (part->p_type != PT_LOAD)
            continue;
        if (start < module->low)
            module->low = start;
        if (start + part->p_memsz > module->high)
            module->high = start + part->p_memsz;
    }
    size_t relative = 0;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t address = address_of(module->base, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            module->symbols = (const ElfW(Sym) *)address;
            break;
        case DT_STRTAB:
            module->names = (const char *)address;
            break;
        case DT_JMPREL:
            module->calls = (const ElfW(Rela) *)address;
            break;
        case DT_PLTRELSZ:
            module->call_count = dynamic->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_RELA:
            module->data = (const ElfW(Rela) *)address;
            break;
        case DT_RELASZ:
            module->data_count = dynamic->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_RELACOUNT:
            relative = dynamic->d_un.d_val; /* they come first, and name nothing */
            break;
        default:
            break;
        }
    }
    if (module->data && relative <= module->data_count) {
        module->data += relative;
        module->data_count -= relative;
    }
    return module->symbols && module->names;
}

/* The C library's dlsym, or a function of the driver's that we wrap. */
static bool is_past_us(void *address)
{
    return address == ca_dlsym_of_c_library() || ca_driver_swap(address) != address;
}

/* Whether what a module is bound to is past us; kept for later where nothing is bound yet. */
static bool bound_past_us(later_t one)
{
    uintptr_t value = (uintptr_t)*one.entry;
    if (value >= one.low && value < one.high) {
        if (later_count < LATER_MOST)
            later[later_count++] = one;
        return false;
    }
    return is_past_us((void *)value);
}

static bool list_past_us(const module_t *module, const ElfW(Rela) * list, size_t count)
{
    for (size_t i = 0; list && i < count; i++) {
        unsigned type = ELF64_R_TYPE(list[i].r_info);
        const ElfW(Sym) *symbol = &module->symbols[ELF64_R_SYM(list[i].r_info)];
        const char *name = module->names + symbol->st_name;
        if ((type != R_ENTRY && type != R_DATA) || symbol->st_shndx != SHN_UNDEF)
            continue;
        bool asked = name[0] == 'c' ? name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z' &&
                                          ca_driver_wraps(name)
                                    : strcmp(name, "dlsym") == 0;
        void *const *entry = (void *const *)(module->base + list[i].r_offset);
        if (asked && bound_past_us((later_t){entry, module->low, module->high}))
            return true;
    }
    return false;
}

static bool later_past_us(void)
{
    size_t count = later_count;
    later_count = 0; /* those that are still not bound stay */
    for (size_t i = 0; i < count; i++)
        if (bound_past_us(later[i]))
            return true;
    return false;
}

typedef struct scan {
    bool begun, changed, found;
} scan_t;

/* The loader keeps every module where it is while it calls this. It counts what it has opened and
 * closed. No driver call here, and nothing that takes another lock of the loader's. */
static int scan_module(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    scan_t *scan = arg;
    module_t module;
    uintptr_t ours = (uintptr_t)scan_module;
    bool counts = bytes >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs;
    if (!scan->begun) {
        scan->begun = true;
        scan->changed = !counts || !known || info->dlpi_adds != opened || info->dlpi_subs != closed;
        if (!scan->changed) {
            scan->found = later_past_us();
            return 1;
        }
        known = counts;
        opened = counts ? info->dlpi_adds : 0;
        closed = counts ? info->dlpi_subs : 0;
        later_count = 0;
    }
    if (!scan->found && read_module(info, &module) && (ours < module.low || ours >= module.high))
        scan->found = list_past_us(&module, module.calls, module.call_count) ||
                      list_past_us(&module, module.data, module.data_count);
    return scan->found;
}

bool ca_bindings_past_us(bool *changed)
{
    scan_t scan = {0};
    (void)ca_driver(); /* both are looked up now, if ever */
    (void)ca_dlsym_of_c_library();
    dl_iterate_phdr(scan_module, &scan);
    *changed = scan.changed;
    return scan.found;
}
