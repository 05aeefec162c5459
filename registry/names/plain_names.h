/* Names for code addresses where neither malloc, nor the loader, nor libdw may be asked: in a
 * signal handler that interrupted one of them, on the way out of a process, amid an out of memory.
 *
 * What /proc says of the mapped files is read once, and their symbol tables with pread, for two
 * seconds in all: nothing is waited for, nothing allocated, and a file that changes meanwhile does
 * no harm. Not thread-safe: one user at a time. */
#ifndef CA_REGISTRY_NAMES_PLAIN_NAMES_H
#define CA_REGISTRY_NAMES_PLAIN_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads which files are mapped where. Names are those of that moment. */
void ca_plain_names_begin(void);

/* Closes what was opened. */
void ca_plain_names_end(void);

/* The errno of the first file since the begin that could not be opened, and its path; or 0. */
int ca_plain_names_error(const char **path);

typedef struct ca_plain_name {
    const char *function; /* as the linker knows it; NULL where the file has no symbol there or is
                             another one by now */
    const char *module;   /* path of the file, if it is still there; NULL where none is mapped */
    uint64_t offset;      /* in it, as the linker counts */
    bool timed_out;       /* there was no time left to look for the function */
} ca_plain_name_t;

/* What is known of the code at `pc`: any bytes, until the next call. */
ca_plain_name_t ca_plain_names_find(uintptr_t pc);

#endif
