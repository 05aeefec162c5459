/* Names for code addresses where neither the heap, nor the loader, nor libdw may be asked: in a
 * signal handler that interrupted one of them, on the way out of a process, amid an out of memory.
 *
 * What /proc says of the mapped files is read once, and their symbol tables with pread: nothing is
 * waited for, nothing allocated, and a file that changes meanwhile does no harm. Not thread-safe:
 * one user at a time. */
#ifndef CA_REGISTRY_PLAIN_NAMES_H
#define CA_REGISTRY_PLAIN_NAMES_H

#include <stddef.h>
#include <stdint.h>

/* Reads which files are mapped where. Names are those of that moment. */
void ca_plain_names_begin(void);

/* Closes what was opened. */
void ca_plain_names_end(void);

/* Writes the name of the code at `pc` to `text`: "function (module+0x1234)", with the name as the
 * linker knows it; "module+0x1234" where the file has no symbol there or is another one by now;
 * "0x7f0000001234" where no file is mapped. */
void ca_plain_names_write(uintptr_t pc, char *text, size_t bytes);

#endif
