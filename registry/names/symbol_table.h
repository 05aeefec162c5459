/* Function names by the symbol tables of one ELF file, which is read with pread: it may be any
 * file, and one that changes meanwhile does no harm. Needs neither malloc, nor the loader, nor
 * libdw. Not thread-safe: one user at a time. */
#ifndef CA_REGISTRY_NAMES_SYMBOL_TABLE_H
#define CA_REGISTRY_NAMES_SYMBOL_TABLE_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ca_symbol;

/* The functions of one table, by address, where that was put in order. */
typedef struct ca_symbol_index {
    struct ca_symbol *symbols;
    size_t count, mapped_bytes;
    bool tried;
} ca_symbol_index_t;

typedef struct ca_symbol_file {
    int fd;           /* -1: nothing can be asked of it */
    uint64_t bytes;   /* of the file */
    bool has_indexes; /* see ca_symbol_file_index */
    ElfW(Ehdr) header;
    ca_symbol_index_t indexes[2];
} ca_symbol_file_t;

/* From here on there are two seconds for all look-ups together. */
void ca_symbol_files_begin(void);

/* Takes the descriptor, which is closed where that is no regular file in ELF for this machine. */
bool ca_symbol_file_open(ca_symbol_file_t *file, int fd);
void ca_symbol_file_close(ca_symbol_file_t *file);

/* Where many names are asked for: puts each table in order first, in mapped memory. Without that a
 * table is read from its begin for each name. */
void ca_symbol_file_index(ca_symbol_file_t *file);

bool ca_symbol_file_has_build_id(const ca_symbol_file_t *file, const void *build_id, size_t bytes);

/* The address that the linker gave to the code at `offset` of the file. */
bool ca_symbol_file_address(const ca_symbol_file_t *file, uint64_t offset, uint64_t *address);

/* The function at a linker's address, as the linker knows it: any bytes, until the next call. NULL
 * where there is none, or, `*timed_out`, no time to look for it. */
const char *ca_symbol_file_function(ca_symbol_file_t *file, uint64_t address, bool *timed_out);

#endif
