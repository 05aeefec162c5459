/* Symbols by the GNU hash table (the format is in glibc's and binutils' documentation): most
 * objects answer with one bit of its filter that they have no interpreter. No address of an object
 * is believed that does not lie in what the loader mapped of it. */
#include "registry/python/find.h"

#include <stddef.h>
#include <string.h>

typedef struct object {
    const struct dl_phdr_info *info;
    uintptr_t hash, symbols, names; /* 0 where there is none */
    size_t name_bytes;
} object_t;

typedef struct hash_head {
    uint32_t buckets, first_symbol, filter_words, filter_shift;
} hash_head_t;

#define FILTER_BITS 64u

static bool is_mapped(const object_t *object, uintptr_t address, size_t bytes)
{
    const struct dl_phdr_info *info = object->info;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = (uintptr_t)(info->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_LOAD && (part->p_flags & PF_R) && address >= start &&
            address - start <= part->p_memsz && bytes <= part->p_memsz - (address - start))
            return true;
    }
    return false;
}

static bool read(const object_t *object, uintptr_t address, void *to, size_t bytes)
{
    if (!is_mapped(object, address, bytes))
        return false;
    memcpy(to, (const void *)address, bytes);
    return true;
}

/* The loader makes addresses of most such words, but not of all objects'. */
static uintptr_t address_of(const object_t *object, uintptr_t word)
{
    return is_mapped(object, word, 1) ? word : word + (uintptr_t)object->info->dlpi_addr;
}

static bool find_tables(object_t *object)
{
    const struct dl_phdr_info *info = object->info;
    uintptr_t at = 0, bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            at = (uintptr_t)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
            bytes = info->dlpi_phdr[i].p_memsz;
        }
    ElfW(Dyn) entry;
    for (; bytes >= sizeof entry; at += sizeof entry, bytes -= sizeof entry) {
        if (!read(object, at, &entry, sizeof entry) || entry.d_tag == DT_NULL)
            break;
        uintptr_t word = (uintptr_t)entry.d_un.d_ptr;
        if (entry.d_tag == DT_GNU_HASH)
            object->hash = address_of(object, word);
        else if (entry.d_tag == DT_SYMTAB)
            object->symbols = address_of(object, word);
        else if (entry.d_tag == DT_STRTAB)
            object->names = address_of(object, word);
        else if (entry.d_tag == DT_STRSZ)
            object->name_bytes = entry.d_un.d_val;
    }
    return object->hash && object->symbols && is_mapped(object, object->names, object->name_bytes);
}

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The address of symbol number `index`, where it has that name and is defined. */
static uintptr_t symbol_at(const object_t *object, uint32_t index, const char *name)
{
    ElfW(Sym) symbol;
    size_t bytes = strlen(name) + 1;
    if (!read(object, object->symbols + index * sizeof symbol, &symbol, sizeof symbol) ||
        symbol.st_shndx == SHN_UNDEF || symbol.st_name >= object->name_bytes ||
        bytes > object->name_bytes - symbol.st_name ||
        memcmp((const char *)object->names + symbol.st_name, name, bytes) != 0)
        return 0;
    uintptr_t address = (uintptr_t)(object->info->dlpi_addr + symbol.st_value);
    return is_mapped(object, address, 1) ? address : 0;
}

static uintptr_t look_up(const object_t *object, const char *name)
{
    hash_head_t head;
    uint64_t filter;
    uint32_t hash = hash_of(name), index, link;
    if (!read(object, object->hash, &head, sizeof head) || head.buckets == 0 ||
        head.filter_words == 0)
        return 0;
    uintptr_t words = object->hash + sizeof head;
    uintptr_t buckets = words + (uintptr_t)head.filter_words * sizeof filter;
    uintptr_t chains = buckets + (uintptr_t)head.buckets * sizeof index;
    if (!read(object, words + hash / FILTER_BITS % head.filter_words * sizeof filter, &filter,
              sizeof filter) ||
        !(filter >> hash % FILTER_BITS & filter >> (hash >> head.filter_shift % 32) % FILTER_BITS &
          1))
        return 0;
    if (!read(object, buckets + hash % head.buckets * sizeof index, &index, sizeof index) ||
        index < head.first_symbol)
        return 0;
    for (;; index++) {
        uintptr_t place = chains + (uintptr_t)(index - head.first_symbol) * sizeof link;
        if (!read(object, place, &link, sizeof link))
            return 0;
        uintptr_t found = (link | 1) == (hash | 1) ? symbol_at(object, index, name) : 0;
        if (found || (link & 1))
            return found;
    }
}

bool ca_py_find(const struct dl_phdr_info *info, ca_py_symbols_t *symbols)
{
    object_t object = {.info = info};
    if (!find_tables(&object))
        return false;
    const ca_py_symbols_t found = {
        .this_state = look_up(&object, "PyGILState_GetThisThreadState"),
    };
    if (!found.this_state)
        return false;
    *symbols = found;
    symbols->initialized = look_up(&object, "Py_IsInitialized");
    symbols->finalizing = look_up(&object, "Py_IsFinalizing");
    if (!symbols->finalizing)
        symbols->finalizing = look_up(&object, "_Py_IsFinalizing");
    symbols->runtime = look_up(&object, "_PyRuntime");
    symbols->version = look_up(&object, "Py_Version");
    symbols->get_version = look_up(&object, "Py_GetVersion");
    symbols->code_type = look_up(&object, "PyCode_Type");
    symbols->str_type = look_up(&object, "PyUnicode_Type");
    symbols->bytes_type = look_up(&object, "PyBytes_Type");
    symbols->frame_type = look_up(&object, "PyFrame_Type");
    return symbols->initialized && symbols->finalizing && symbols->code_type && symbols->str_type &&
           symbols->bytes_type;
}
