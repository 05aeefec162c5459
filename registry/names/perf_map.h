/* Names of code that a compiler in the process made: /tmp/perf-PID.map, which Python (-X perf),
 * node
 * (--perf-basic-prof), Julia and agents of Java write for Linux perf. A line has begin and size in
 * hexadecimal and a name; of lines about the same code the last is right.
 *
 * /tmp is anyone's: the file must be a regular one of this user, under that name itself, written
 * since the process began, of bounded size. Reads files and maps memory, and needs neither malloc
 * nor the loader. Not thread-safe: one user at a time. */
#ifndef CA_REGISTRY_NAMES_PERF_MAP_H
#define CA_REGISTRY_NAMES_PERF_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is known of the code at `pc`, any bytes but NUL and a newline, until the end; NULL where
 * that is nothing. The file is read at the first call. */
const char *ca_perf_map_find(uintptr_t pc);
void ca_perf_map_end(void);

/* Reads such a file from a descriptor, which stays open, for the calls until the end. */
void ca_perf_map_read(int fd);

#endif
