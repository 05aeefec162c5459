#include "registry/names/plain_names.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#define FILES_MAX 1024
#define PATHS_BYTES (128u << 10)
#define LINE_BYTES 4352 /* a path and the numbers before it */
#define HEADERS_MAX 64  /* program headers that are looked at */
#define BLOCK_SYMBOLS 1024
#define NAME_BYTES 512
#define NAMES_NS UINT64_C(2000000000) /* for all symbol tables, from a begin on */

/* Code of a file, as it is mapped. */
typedef struct ca_mapping {
    uintptr_t start, end;
    uintptr_t base; /* where the file's first byte is mapped, or would be */
    uint64_t offset;
    uint64_t inode;
    const char *path;
} ca_mapping_t;

/* Buffers are static: the caller's stack may be that of a signal handler. */
static ca_mapping_t mappings[FILES_MAX];
static size_t mapping_count;
static char paths[PATHS_BYTES];
static size_t paths_used;

static const ca_mapping_t *opened_for; /* whose file `file` is; -1 where it cannot be used */
static int file = -1;

static int error; /* the first, and of which file */
static const char *error_path;

static uint64_t left_ns;  /* of NAMES_NS */
static uint64_t deadline; /* of this name */

static int open_to_read(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && error == 0) {
        error = errno;
        error_path = path;
    }
    return fd;
}

int ca_plain_names_error(const char **path)
{
    *path = error_path;
    return error;
}

/* --- which files are mapped ------------------------------------------------------------------- */

/* A hexadecimal number (decimal for a base of 10) and what follows it. */
static const char *number(const char *at, unsigned base, uint64_t *value)
{
    *value = 0;
    for (;; at++) {
        unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
                         : *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a') + 10
                                                    : base;
        if (digit >= base)
            return at;
        *value = *value * base + digit;
    }
}

/* Without what the kernel says behind the name of a file that is not there any more. */
static const char *keep_path(const char *path)
{
    static const char *last, deleted[] = " (deleted)";
    size_t length = strlen(path), suffix = sizeof deleted - 1;
    if (length > suffix && strcmp(path + length - suffix, deleted) == 0)
        length -= suffix;
    /* The mappings of a file follow each other. */
    if (paths_used != 0 && last && strncmp(last, path, length) == 0 && last[length] == '\0')
        return last;
    if (length >= sizeof paths - paths_used)
        return NULL;
    last = memcpy(paths + paths_used, path, length);
    paths[paths_used + length] = '\0';
    paths_used += length + 1;
    return last;
}

/* `start-end rwxp offset major:minor inode   path` */
static void add_line(const char *line)
{
    static uintptr_t base;
    uint64_t start, end, offset, inode, unused;
    const char *at = number(line, 16, &start);
    at = number(at + (*at == '-'), 16, &end);
    if (*at != ' ' || strlen(at) < 8)
        return;
    bool executable = at[3] == 'x';
    at = number(at + 6, 16, &offset);
    at = number(at + (*at == ' '), 16, &unused);
    at = number(at + (*at == ':'), 16, &unused);
    at = number(at + (*at == ' '), 10, &inode);
    at += strspn(at, " ");
    if (offset == 0)
        base = (uintptr_t)start;
    if (!executable || *at != '/' || mapping_count == FILES_MAX)
        return;
    ca_mapping_t *mapping = &mappings[mapping_count];
    *mapping = (ca_mapping_t){(uintptr_t)start, (uintptr_t)end, base, offset, inode, keep_path(at)};
    if (mapping->path)
        mapping_count++;
}

/* Into `space` bytes behind what is there already; 0 at the end, or where it cannot be read. */
static size_t read_more(int fd, char *to, size_t space)
{
    ssize_t got;
    do
        got = read(fd, to, space);
    while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

void ca_plain_names_begin(void)
{
    static char text[LINE_BYTES];
    size_t used = 0, got;
    mapping_count = paths_used = 0;
    left_ns = ca_bound(NAMES_NS);
    ca_plain_names_end();
    error = 0;
    int fd = open_to_read("/proc/self/maps");
    if (fd < 0)
        return;
    while ((got = read_more(fd, text + used, sizeof text - 1 - used)) != 0) {
        char *line = text, *newline;
        used += got;
        text[used] = '\0';
        while ((newline = strchr(line, '\n')) != NULL) {
            *newline = '\0';
            add_line(line);
            line = newline + 1;
        }
        used -= (size_t)(line - text);
        if (used == sizeof text - 1) /* a line that is longer than any path */
            used = 0;
        memmove(text, line, used);
    }
    close(fd);
}

void ca_plain_names_end(void)
{
    if (file >= 0)
        close(file);
    file = -1;
    opened_for = NULL;
}

static const ca_mapping_t *mapping_of(uintptr_t pc)
{
    for (size_t i = 0; i < mapping_count; i++)
        if (pc - mappings[i].start < mappings[i].end - mappings[i].start)
            return &mappings[i];
    return NULL;
}

/* --- what a file says ------------------------------------------------------------------------- */

static bool read_at(void *to, size_t bytes, uint64_t offset)
{
    return file >= 0 && pread(file, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Opens the mapping's file and reads its header. False where it is another file by now. */
static bool open_file(const ca_mapping_t *mapping, ElfW(Ehdr) * header)
{
    struct stat found;
    if (opened_for != mapping) {
        ca_plain_names_end();
        opened_for = mapping;
        file = open_to_read(mapping->path);
        if (file >= 0 && (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) ||
                          (uint64_t)found.st_ino != mapping->inode)) {
            close(file);
            file = -1;
        }
    }
    return read_at(header, sizeof *header, 0) && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32);
}

/* The address that the linker gave to the code at `offset` of the file. */
static bool linked_address(const ElfW(Ehdr) * header, uint64_t offset, uint64_t *address)
{
    for (unsigned i = 0; i < header->e_phnum && i < HEADERS_MAX; i++) {
        ElfW(Phdr) part;
        if (!read_at(&part, sizeof part, header->e_phoff + (uint64_t)i * header->e_phentsize))
            return false;
        if (part.p_type == PT_LOAD && offset - part.p_offset < part.p_filesz) {
            *address = offset - part.p_offset + part.p_vaddr;
            return true;
        }
    }
    return false;
}

static bool is_at(const ElfW(Sym) * symbol, uint64_t address)
{
    unsigned type = symbol->st_info & 0xf;
    return (type == STT_FUNC || type == STT_GNU_IFUNC) && symbol->st_shndx != SHN_UNDEF &&
           address - symbol->st_value < (symbol->st_size ? symbol->st_size : 1);
}

/* The symbol of `section` that covers `address`; `*name` is where its name is in the file. */
static bool find_in(const ElfW(Shdr) * section, uint64_t strings, uint64_t address, uint64_t *name)
{
    static ElfW(Sym) symbols[BLOCK_SYMBOLS];
    uint64_t count = section->sh_size / sizeof symbols[0];
    for (uint64_t done = 0; done < count;) {
        size_t some = count - done < BLOCK_SYMBOLS ? (size_t)(count - done) : BLOCK_SYMBOLS;
        if (ca_clock_ns() >= deadline || !read_at(symbols, some * sizeof symbols[0],
                                                  section->sh_offset + done * sizeof symbols[0]))
            return false;
        for (size_t i = 0; i < some; i++)
            if (is_at(&symbols[i], address)) {
                *name = strings + symbols[i].st_name;
                return true;
            }
        done += some;
    }
    return false;
}

/* In the symbol table of that type: SHT_SYMTAB has all functions, where it was not stripped. */
static bool find_symbol(const ElfW(Ehdr) * header, unsigned type, uint64_t address, uint64_t *name)
{
    for (unsigned i = 0; i < header->e_shnum; i++) {
        ElfW(Shdr) section, strings;
        if (!read_at(&section, sizeof section, header->e_shoff + (uint64_t)i * header->e_shentsize))
            return false;
        if (section.sh_type == type &&
            read_at(&strings, sizeof strings,
                    header->e_shoff + (uint64_t)section.sh_link * header->e_shentsize) &&
            find_in(&section, strings.sh_offset, address, name))
            return true;
    }
    return false;
}

/* Copies a string of the file; empty where it cannot be read. */
static void read_name(uint64_t at, char *name, size_t bytes)
{
    ssize_t got = pread(file, name, bytes - 1, (off_t)at);
    name[got > 0 ? got : 0] = '\0';
}

/* Each table is read from its begin for each name: those of a large program take milliseconds. */
static const char *function_at(const ElfW(Ehdr) * header, uint64_t address)
{
    static char function[NAME_BYTES];
    uint64_t name, begin = ca_clock_ns();
    deadline = begin + left_ns;
    function[0] = '\0';
    if (left_ns != 0 && (find_symbol(header, SHT_SYMTAB, address, &name) ||
                         find_symbol(header, SHT_DYNSYM, address, &name)))
        read_name(name, function, sizeof function);
    uint64_t took = ca_clock_ns() - begin;
    left_ns -= took < left_ns ? took : left_ns;
    return function[0] != '\0' ? function : NULL;
}

ca_plain_name_t ca_plain_names_find(uintptr_t pc)
{
    ElfW(Ehdr) header;
    const ca_mapping_t *mapping = mapping_of(pc);
    ca_plain_name_t found = {.function = NULL};
    if (!mapping)
        return found;
    found.module = mapping->path;
    found.offset = pc - mapping->base;
    if (open_file(mapping, &header) &&
        linked_address(&header, pc - mapping->start + mapping->offset, &found.offset)) {
        found.function = function_at(&header, found.offset);
        found.timed_out = !found.function && left_ns == 0;
    }
    return found;
}
