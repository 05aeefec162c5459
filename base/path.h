/* Paths with patterns in them, for files that many processes of one run write.
 *
 *   %p            process id
 *   %r            rank of the process
 *   %l            rank on its host
 *   %h            host name
 *   %e            program name
 *   %t            seconds since 1970, when the file is written
 *   %n            the lowest number, from 1, whose name is free
 *   %q{VARIABLE}  what the environment says
 *   %%            %
 *
 * Ranks are what the first launcher's variable with a number in it says; without one they are the
 * process id, so that names differ all the same. No heap. */
#ifndef CA_BASE_PATH_H
#define CA_BASE_PATH_H

#include "base/text.h"

#include <stdbool.h>

/* 0, or -EINVAL with what is wrong appended to `why` (may be NULL): `has an unknown pattern %z`. A
 * variable that is not set is wrong too. */
int ca_path_check(const char *pattern, size_t length, ca_text_t *why);

/* Puts in what the environment decides and leaves %p, %t, %n and %% as they are. To be called with
 * the configuration: later the program may have changed its environment, or be changing it. */
void ca_path_expand(const char *pattern, ca_text_t *expanded);

/* The same, in an empty text, for a path that is used later: before one that is relative comes the
 * working folder. It stays relative where that is too long, or is deleted. */
void ca_path_expand_here(const char *pattern, ca_text_t *expanded);

/* The process that patterns stand for, where it is not this one: of its rank on its host nothing is
 * known, and variables are this one's all the same. NULL: this one. For a process that makes the
 * files of another, by one thread. */
typedef struct ca_path_process {
    long pid;
    const char *rank, *program, *host; /* `rank` is none where it is no number */
} ca_path_process_t;
void ca_path_set_process(const ca_path_process_t *process);

/* What %p stands for. */
long ca_path_pid(void);

/* Whether the expanded pattern has a %n. */
bool ca_path_is_numbered(const char *expanded);

/* The path that an expanded pattern is for this process now. */
void ca_path_finish(const char *expanded, unsigned number, ca_text_t *path);

/* The rank that %r stands for, at most 10 digits, or NULL where no launcher set one. To be copied:
 * it lives in the environment. */
const char *ca_path_rank(void);

/* False in all ranks of a host but the first: what is the same in each of them need not be said by
 * each. Where ranks on the host are not numbered, the first of the job counts. */
bool ca_path_speaks_for_host(void);

#endif
