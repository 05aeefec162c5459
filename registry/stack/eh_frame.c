/* Reading .eh_frame: an object's table of functions leads to a description of each, whose
 * instructions say how to unwind from where in it (cfi.c). */
#include "registry/stack/eh_frame.h"

#if defined(__x86_64__)

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#include "registry/stack/cfi.h"
#include "registry/stack/cfi_bytes.h"
#include "registry/stack/readable.h"

/* <dlfcn.h> of glibc 2.35, on which we do not depend to build. */
typedef struct found_object {
    unsigned long long flags;
    void *map_start, *map_end, *link_map;
    void *eh_frame; /* .eh_frame_hdr */
    unsigned long long reserved[7];
} found_object_t;

static int (*find_object)(void *pc, found_object_t *found);

/* At load: a look-up takes the loader's lock, and at the first allocation that may be held by a
 * thread that waits for this one. */
__attribute__((constructor)) static void look_up_at_load(void)
{
    find_object = (int (*)(void *, found_object_t *))dlsym(RTLD_DEFAULT, "_dl_find_object");
    if (!find_object)
        dlerror(); /* not the program's */
}

typedef struct search {
    uintptr_t address;
    ca_unwind_tables_t tables;
} search_t;

#define CHECKED_MOST ((uint64_t)1 << 16) /* bytes, page by page */

static bool has_unknown_part(const ca_unwind_tables_t *tables, uintptr_t from, uint64_t bytes)
{
    uint64_t checked = bytes < CHECKED_MOST ? bytes : CHECKED_MOST;
    return from >= tables->begin && from < tables->end && bytes <= tables->end - from &&
           ca_readable_end(from, checked) >= from + checked;
}

/* What strips a library of .eh_frame may leave the table, and the table may lead anywhere. */
static bool has(const ca_unwind_tables_t *tables, const uint8_t *at, uint64_t bytes)
{
    const ElfW(Phdr) *parts = tables->parts;
    for (size_t i = 0; i < tables->count; i++) {
        uintptr_t from = (uintptr_t)at - tables->base - parts[i].p_vaddr;
        if (parts[i].p_type == PT_LOAD && from < parts[i].p_memsz &&
            bytes <= parts[i].p_memsz - from)
            return true;
    }
    return tables->count == 0 && has_unknown_part(tables, (uintptr_t)at, bytes);
}

static int search_module(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    search_t *search = arg;
    search->tables = (ca_unwind_tables_t){
        .base = info->dlpi_addr,
        .parts = info->dlpi_phdr,
        .count = info->dlpi_phnum,
    };
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME)
            search->tables.header = (const uint8_t *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return info->dlpi_phnum > 0 && has(&search->tables, (const uint8_t *)search->address, 1);
}

/* What is at the beginning of an object tells its parts, as far as linkers are concerned: tools
 * that change an object move that to its end. */
static void find_parts(ca_unwind_tables_t *tables)
{
    ElfW(Ehdr) elf;
    memcpy(&elf, (const void *)tables->begin, sizeof elf);
    if (memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0 && elf.e_phentsize == sizeof(ElfW(Phdr)) &&
        elf.e_phoff <= 4096 && elf.e_phoff + elf.e_phnum * sizeof(ElfW(Phdr)) <= 4096) {
        tables->parts = (const void *)(tables->begin + elf.e_phoff);
        tables->count = elf.e_phnum;
    }
}

/* False where there is no object. */
static bool tables_of(uintptr_t address, ca_unwind_tables_t *tables)
{
    found_object_t found;
    if (!find_object) {
        search_t search = {.address = address};
        bool found_it = dl_iterate_phdr(search_module, &search) == 1;
        *tables = search.tables;
        return found_it;
    }
    if (find_object((void *)address, &found) != 0)
        return false;
    *tables = (ca_unwind_tables_t){
        .header = found.eh_frame,
        .base = ((const struct link_map *)found.link_map)->l_addr,
        .begin = (uintptr_t)found.map_start,
        .end = (uintptr_t)found.map_end,
    };
    find_parts(tables);
    return true;
}

static int32_t number_at(const uint8_t *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The table's entry of the last function that begins at or before the address: sorted numbers from
 * the header on, where the function begins and where its description (FDE) is. Refused where the
 * table is of another form than linkers make it, or leads where nothing is, as what strips an
 * object of .eh_frame may leave it. */
static ca_cfi_answer_t entry_of(const ca_unwind_tables_t *tables, uintptr_t address,
                                const uint8_t **found)
{
    enum { ENTRY = 2 * sizeof(int32_t), HEAD = 4 + 16 };
    const uint8_t *header = tables->header;
    if (!header)
        return CA_CFI_NONE;
    if (!has(tables, header, HEAD))
        return CA_CFI_REFUSED;
    ca_cfi_bytes_t bytes = {header + 4, header + HEAD};
    if (header[0] != 1 || header[2] != CA_ENC_UNSIGNED4 ||
        header[3] != (CA_ENC_TABLE_RELATIVE | CA_ENC_SIGNED4))
        return CA_CFI_REFUSED;
    ca_cfi_encoded(&bytes, header[1]); /* where .eh_frame begins */
    uint32_t low = 0, count = (uint32_t)ca_cfi_fixed(&bytes, 4);
    const uint8_t *table = bytes.at;
    if (!table || !has(tables, table, (uint64_t)count * ENTRY))
        return CA_CFI_REFUSED;
    int64_t offset = (int64_t)(address - (uintptr_t)header);
    while (count > 1) {
        uint32_t half = count / 2;
        const uint8_t *entry = table + (size_t)(low + half) * ENTRY;
        if (!has(tables, entry, ENTRY)) /* of a large one not all was asked for */
            return CA_CFI_REFUSED;
        if (number_at(entry) <= offset) {
            low += half;
            count -= half;
        } else {
            count = half;
        }
    }
    const uint8_t *entry = table + (size_t)low * ENTRY;
    if (count != 0 && !has(tables, entry, ENTRY))
        return CA_CFI_REFUSED;
    if (count == 0 || number_at(entry) > offset)
        return CA_CFI_NONE;
    *found = entry;
    return CA_CFI_FOUND;
}

/* A description, or the common part of some; the 64-bit form is refused, and what is longer than
 * any that a compiler writes. */
static bool entry_there(const ca_unwind_tables_t *tables, const uint8_t *entry)
{
    if (!entry || !has(tables, entry, 4))
        return false;
    uint32_t length = (uint32_t)number_at(entry);
    return length <= CHECKED_MOST && has(tables, entry + 4, length);
}

static ca_cfi_answer_t rule_by(const ca_unwind_tables_t *tables, const uint8_t *description,
                               uintptr_t address, ca_frame_rule_t *rule)
{
    if (!entry_there(tables, description) || (uint32_t)number_at(description) < 4)
        return CA_CFI_REFUSED;
    const uint8_t *common = description + 4 - (uint32_t)number_at(description + 4);
    return entry_there(tables, common) ? ca_cfi_rule(description, common, address, rule)
                                       : CA_CFI_REFUSED;
}

/* What returns to where a function begins was made to: the first function of a coroutine, which has
 * no caller. */
static bool begins_at(const ca_unwind_tables_t *tables, uintptr_t address)
{
    const uint8_t *entry = NULL;
    return entry_of(tables, address, &entry) == CA_CFI_FOUND &&
           (uintptr_t)tables->header + (uintptr_t)(intptr_t)number_at(entry) == address;
}

bool ca_frame_rule_of(const ca_unwind_tables_t *tables, uintptr_t address, ca_frame_rule_t *rule)
{
    const uint8_t *entry = NULL;
    ca_cfi_answer_t answer = entry_of(tables, address, &entry);
    if (answer == CA_CFI_FOUND)
        answer = rule_by(tables, tables->header + number_at(entry + 4), address, rule);
    if (answer == CA_CFI_REFUSED || (answer == CA_CFI_NONE && begins_at(tables, address + 1))) {
        *rule = (ca_frame_rule_t){.outermost = true};
        return true;
    }
    return answer == CA_CFI_FOUND;
}

bool ca_frame_rule(uintptr_t address, ca_frame_rule_t *rule)
{
    ca_unwind_tables_t tables;
    return tables_of(address, &tables) && ca_frame_rule_of(&tables, address, rule);
}

#else

bool ca_frame_rule_of(const ca_unwind_tables_t *tables, uintptr_t address, ca_frame_rule_t *rule)
{
    (void)tables;
    (void)address;
    (void)rule;
    return false;
}

bool ca_frame_rule(uintptr_t address, ca_frame_rule_t *rule)
{
    (void)address;
    (void)rule;
    return false;
}

#endif
