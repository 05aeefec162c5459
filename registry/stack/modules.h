/* The modules (program, libraries) that a call stack of this process may lie in, those that were
 * closed since included: the loader forgets a library with its last dlclose, a leak of its stays.
 *
 * A stack whose return addresses are those of an earlier one, all of them, is that one: it keeps
 * the names of the modules that were there then.
 *
 * Thread-safe. Modules are never forgotten, and what is known of one never changes but `until`. */
#ifndef CA_REGISTRY_STACK_MODULES_H
#define CA_REGISTRY_STACK_MODULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CA_BUILD_ID_MAX 32 /* bytes */

typedef struct ca_module {
    struct ca_module *next, *next_there;
    const char *path; /* as the loader has it: "" for the program itself */
    uintptr_t bias;
    uintptr_t low, high; /* addresses of its segments */
    size_t build_id_bytes;
    unsigned char build_id[CA_BUILD_ID_MAX];
    /* It was there in these epochs, `until` not included; 0: it still is, as far as was noted. */
    uint32_t from;
    _Atomic uint32_t until;
    bool seen; /* of the thread that is noting */
} ca_module_t;

/* Looks at what is loaded, and begins an epoch where that has changed. Quick where it has not. May
 * wait for the loader, for as long as an unwinder does: never under a lock of ours. */
void ca_modules_note(void);

/* The latest epoch; 0 before the first. */
uint32_t ca_modules_epoch(void);

/* The module that `address` lay in at `epoch`, or NULL. */
const ca_module_t *ca_modules_find(uintptr_t address, uint32_t epoch);

/* Calls for each module that is noted, and for each that turns out to be closed. The loader's lock
 * is held for the first. NULL: nothing is called. */
typedef struct ca_modules_listener {
    void (*loaded)(const ca_module_t *module), (*closed)(const ca_module_t *module);
} ca_modules_listener_t;
void ca_modules_listen(const ca_modules_listener_t *listener);

/* Calls the listener for all that are known. May wait for the loader, with no lock held. */
void ca_modules_notify_all(void);

/* From another process's journal, for a process whose own modules count for nothing from now on: a
 * copy of `module`, whose `path` may go; and that one was unloaded. Not thread-safe. */
void ca_modules_put_begin(void);
void ca_modules_put(const ca_module_t *module);
void ca_modules_put_unloaded(uintptr_t bias, uint32_t from, uint32_t until);
/* Whether that is so: the loader then knows none of them. */
bool ca_modules_are_foreign(void);

/* In the child of a fork: another thread may have been noting. */
void ca_modules_reset_after_fork(void);

#endif
