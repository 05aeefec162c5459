/* .symtab has all functions, where it was not stripped; .dynsym those that others may call. */
#include "registry/names/symbol_table.h"

#include <elf.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "registry/names/sort.h"

#define HEADERS_MAX 64 /* program headers that are looked at */
#define BLOCK_SYMBOLS 1024
#define NAME_BYTES 4096
#define NOTE_BYTES 4096
#define INDEXED_MOST (UINT64_C(16) << 20) /* symbols of a table */
#define COVERING_MOST 64 /* symbols that are looked through for one that covers an address */
#define NAMES_NS UINT64_C(2000000000) /* for all symbol tables, from a begin on */

/* A function of an index. */
typedef struct ca_symbol {
    uint64_t address;
    uint32_t bytes; /* at least 1 */
    uint32_t name;  /* where that is in the table of strings */
} ca_symbol_t;

static uint64_t left_ns;  /* of NAMES_NS */
static uint64_t deadline; /* of this name */

void ca_symbol_files_begin(void)
{
    left_ns = ca_bound(NAMES_NS);
}

static bool read_at(const ca_symbol_file_t *file, void *to, size_t bytes, uint64_t offset)
{
    return file->fd >= 0 && pread(file->fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

bool ca_symbol_file_open(ca_symbol_file_t *file, int fd)
{
    struct stat found;
    const unsigned char class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    *file = (ca_symbol_file_t){.fd = fd};
    if (fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) &&
        read_at(file, &file->header, sizeof file->header, 0) &&
        memcmp(file->header.e_ident, ELFMAG, SELFMAG) == 0 &&
        file->header.e_ident[EI_CLASS] == class && file->header.e_shentsize == sizeof(ElfW(Shdr)) &&
        file->header.e_phentsize == sizeof(ElfW(Phdr))) {
        file->bytes = (uint64_t)found.st_size;
        return true;
    }
    ca_symbol_file_close(file);
    return false;
}

void ca_symbol_file_close(ca_symbol_file_t *file)
{
    for (size_t i = 0; i < sizeof file->indexes / sizeof file->indexes[0]; i++) {
        if (file->indexes[i].symbols)
            ca_mem_unmap(file->indexes[i].symbols, file->indexes[i].mapped_bytes);
        file->indexes[i] = (ca_symbol_index_t){.symbols = NULL};
    }
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

void ca_symbol_file_index(ca_symbol_file_t *file)
{
    file->has_indexes = true;
}

/* --- program headers -------------------------------------------------------------------------- */

static bool read_part(const ca_symbol_file_t *file, unsigned i, ElfW(Phdr) * part)
{
    return i < file->header.e_phnum && i < HEADERS_MAX &&
           read_at(file, part, sizeof *part,
                   file->header.e_phoff + (uint64_t)i * file->header.e_phentsize);
}

bool ca_symbol_file_address(const ca_symbol_file_t *file, uint64_t offset, uint64_t *address)
{
    ElfW(Phdr) part;
    for (unsigned i = 0; read_part(file, i, &part); i++)
        if (part.p_type == PT_LOAD && offset - part.p_offset < part.p_filesz) {
            *address = offset - part.p_offset + part.p_vaddr;
            return true;
        }
    return false;
}

/* Whether one of the notes, `bytes` of them, is that build id. */
static bool is_noted(const char *notes, size_t bytes, size_t align, const void *build_id,
                     size_t id_bytes)
{
    ElfW(Nhdr) head;
    for (size_t at = 0; at + sizeof head <= bytes;) {
        memcpy(&head, notes + at, sizeof head);
        size_t name = at + sizeof head;
        size_t desc = name + (((size_t)head.n_namesz + align - 1) & ~(align - 1));
        if (desc > bytes || head.n_descsz > bytes - desc)
            return false;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
            memcmp(notes + name, "GNU", 4) == 0)
            return head.n_descsz == id_bytes && memcmp(notes + desc, build_id, id_bytes) == 0;
        at = desc + (((size_t)head.n_descsz + align - 1) & ~(align - 1));
    }
    return false;
}

bool ca_symbol_file_has_build_id(const ca_symbol_file_t *file, const void *build_id, size_t bytes)
{
    static char notes[NOTE_BYTES];
    ElfW(Phdr) part;
    for (unsigned i = 0; read_part(file, i, &part); i++) {
        size_t some = part.p_filesz < sizeof notes ? (size_t)part.p_filesz : sizeof notes;
        if (part.p_type == PT_NOTE && read_at(file, notes, some, part.p_offset) &&
            is_noted(notes, some, part.p_align == 8 ? 8 : 4, build_id, bytes))
            return true;
    }
    return false;
}

/* --- symbols ---------------------------------------------------------------------------------- */

static bool is_function(const ElfW(Sym) * symbol)
{
    unsigned type = symbol->st_info & 0xf;
    return (type == STT_FUNC || type == STT_GNU_IFUNC) && symbol->st_shndx != SHN_UNDEF;
}

/* Those of assembly may have no size. */
static uint64_t size_of(const ElfW(Sym) * symbol)
{
    return symbol->st_size ? symbol->st_size : 1;
}

/* Reads the next symbols, from the one at `done` on. 0 at the end, or where that is not possible.
 */
static size_t read_symbols(const ca_symbol_file_t *file, const ElfW(Shdr) * section, uint64_t done,
                           ElfW(Sym) * symbols)
{
    uint64_t count = section->sh_size / sizeof *symbols;
    size_t some = count - done < BLOCK_SYMBOLS ? (size_t)(count - done) : BLOCK_SYMBOLS;
    bool is_read =
        some != 0 && ca_clock_ns() < deadline &&
        read_at(file, symbols, some * sizeof *symbols, section->sh_offset + done * sizeof *symbols);
    return is_read ? some : 0;
}

static bool scan(const ca_symbol_file_t *file, const ElfW(Shdr) * section, uint64_t address,
                 uint64_t *name)
{
    static ElfW(Sym) symbols[BLOCK_SYMBOLS];
    uint64_t done = 0;
    for (size_t some; (some = read_symbols(file, section, done, symbols)) != 0; done += some)
        for (size_t i = 0; i < some; i++)
            if (is_function(&symbols[i]) && address - symbols[i].st_value < size_of(&symbols[i])) {
                *name = symbols[i].st_name;
                return true;
            }
    return false;
}

static bool is_before(const void *a, const void *b)
{
    return ((const ca_symbol_t *)a)->address < ((const ca_symbol_t *)b)->address;
}

/* A table that says that it has more than the file is none. */
static void fill(const ca_symbol_file_t *file, const ElfW(Shdr) * section, ca_symbol_index_t *index)
{
    static ElfW(Sym) symbols[BLOCK_SYMBOLS];
    uint64_t count = section->sh_size / sizeof symbols[0], done = 0;
    index->tried = true;
    if (section->sh_size > file->bytes || count > INDEXED_MOST || count == 0)
        return;
    index->mapped_bytes = (size_t)count * sizeof *index->symbols;
    index->symbols = ca_mem_map(index->mapped_bytes);
    if (!index->symbols)
        return;
    for (size_t some; (some = read_symbols(file, section, done, symbols)) != 0; done += some)
        for (size_t i = 0; i < some; i++)
            if (is_function(&symbols[i]))
                index->symbols[index->count++] = (ca_symbol_t){
                    symbols[i].st_value,
                    size_of(&symbols[i]) < UINT32_MAX ? (uint32_t)size_of(&symbols[i]) : UINT32_MAX,
                    symbols[i].st_name};
    ca_sort(index->symbols, index->count, sizeof *index->symbols, is_before);
}

static bool find_in_order(const ca_symbol_index_t *index, uint64_t address, uint64_t *name)
{
    size_t low = 0, high = index->count; /* the first that begins behind `address` */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (index->symbols[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i-- > 0 && low - i <= COVERING_MOST;)
        if (address - index->symbols[i].address < index->symbols[i].bytes) {
            *name = index->symbols[i].name;
            return true;
        }
    return false;
}

/* Reads the header of the first section of that type, there is one at most, and of its strings. */
static bool find_table(const ca_symbol_file_t *file, unsigned type, ElfW(Shdr) * table,
                       ElfW(Shdr) * strings)
{
    const ElfW(Ehdr) *header = &file->header;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (!read_at(file, table, sizeof *table,
                     header->e_shoff + (uint64_t)i * header->e_shentsize))
            return false;
        if (table->sh_type == type)
            return read_at(file, strings, sizeof *strings,
                           header->e_shoff + (uint64_t)table->sh_link * header->e_shentsize);
    }
    return false;
}

/* In the table of that type; `*name` is where its name is in the file. */
static bool find(ca_symbol_file_t *file, unsigned type, uint64_t address, uint64_t *name)
{
    ca_symbol_index_t *index = &file->indexes[type == SHT_DYNSYM];
    ElfW(Shdr) table, strings;
    if (!find_table(file, type, &table, &strings))
        return false;
    if (file->has_indexes && !index->tried)
        fill(file, &table, index);
    if (index->symbols ? !find_in_order(index, address, name) : !scan(file, &table, address, name))
        return false;
    *name += strings.sh_offset;
    return true;
}

/* Copies a string of the file; empty where it cannot be read. */
static void read_name(const ca_symbol_file_t *file, uint64_t at, char *name, size_t bytes)
{
    ssize_t got = pread(file->fd, name, bytes - 1, (off_t)at);
    name[got > 0 ? got : 0] = '\0';
}

const char *ca_symbol_file_function(ca_symbol_file_t *file, uint64_t address, bool *timed_out)
{
    static char function[NAME_BYTES];
    uint64_t name, begin = ca_clock_ns();
    deadline = begin + left_ns;
    function[0] = '\0';
    *timed_out = false;
    if (file->fd < 0)
        return NULL;
    if (left_ns != 0 &&
        (find(file, SHT_SYMTAB, address, &name) || find(file, SHT_DYNSYM, address, &name)))
        read_name(file, name, function, sizeof function);
    uint64_t took = ca_clock_ns() - begin;
    left_ns -= took < left_ns ? took : left_ns;
    *timed_out = function[0] == '\0' && left_ns == 0;
    return function[0] != '\0' ? function : NULL;
}
