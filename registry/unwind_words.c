/* The generic unwinder of libunwind, with accessors that read this thread's own memory and note it.
 *
 * libunwind's unw_backtrace reads memory by itself. The generic form (libunwind-x86_64.so.8, made
 * for other processes) asks accessors for every word. It takes unwind information from the loaded
 * objects as the local one does; what is read there never changes while they are loaded.
 *
 * Its headers are not needed to build: what follows is the part of its binary interface that is
 * used. Larger than it is today where that is cheap, as it may grow at its end. */
#include "registry/unwind_words.h"

#if defined(__x86_64__)

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#define CURSOR_WORDS 256  /* 127 */
#define ACCESSORS_ROOM 16 /* 8 */
#define CACHE_GLOBAL 1    /* UNW_CACHE_GLOBAL */
#define NO_INFORMATION 10 /* UNW_ENOINFO */
#define INVALID 8         /* UNW_EINVAL */
#define REG_FRAME_POINTER 6
#define REG_STACK_POINTER 7
#define REG_INSTRUCTION 16

typedef struct ca_space ca_space_t; /* an address space of libunwind */

typedef struct accessors {
    int (*find_proc_info)(ca_space_t *, uintptr_t, void *, int, void *);
    void (*put_unwind_info)(ca_space_t *, void *, void *);
    int (*get_dyn_info_list_addr)(ca_space_t *, uintptr_t *, void *);
    int (*access_mem)(ca_space_t *, uintptr_t, uintptr_t *, int, void *);
    int (*access_reg)(ca_space_t *, int, uintptr_t *, int, void *);
    int (*access_fpreg)(ca_space_t *, int, void *, int, void *);
    int (*resume)(ca_space_t *, void *, void *);
    int (*get_proc_name)(ca_space_t *, uintptr_t, char *, size_t, uintptr_t *, void *);
    void *more[ACCESSORS_ROOM - 8];
} accessors_t;

static struct {
    ca_space_t *(*create)(accessors_t *, int);
    accessors_t *(*accessors)(ca_space_t *);
    int (*init)(void *cursor, ca_space_t *, void *);
    int (*step)(void *cursor);
    int (*get)(void *cursor, int, uintptr_t *);
    int (*set_caching)(ca_space_t *, int);
    void (*flush)(ca_space_t *, uintptr_t, uintptr_t);
} generic;

static ca_space_t *space, *local_space;
static int (*find_local)(ca_space_t *, uintptr_t, void *, int, void *);
static void (*put_local)(ca_space_t *, void *, void *);

/* A frame without unwind information is guessed at, by what need not be the frame pointer. */
static int find_proc_info(ca_space_t *in, uintptr_t address, void *info, int need, void *arg)
{
    (void)in;
    int result = find_local(local_space, address, info, need, NULL);
    if (result < 0)
        ((ca_words_t *)arg)->inexact = true;
    return result;
}

static void put_unwind_info(ca_space_t *in, void *info, void *arg)
{
    (void)in;
    (void)arg;
    put_local(local_space, info, NULL);
}

/* Code made at run time has no entry that is known to stay. */
static int no_dynamic_information(ca_space_t *in, uintptr_t *list, void *arg)
{
    (void)in;
    (void)list;
    (void)arg;
    return -NO_INFORMATION;
}

static int find_constant(struct dl_phdr_info *object, size_t size, void *arg)
{
    (void)size;
    ca_words_t *log = arg;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t low = object->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD || part->p_flags & PF_W || !(part->p_flags & PF_R) ||
            log->constant_low - low >= part->p_memsz)
            continue;
        log->constant_low = low;
        log->constant_high = low + part->p_memsz;
        return 1;
    }
    return 0;
}

/* Whether an address lies in what a loaded object has of constants and code. */
static bool constant(ca_words_t *log, uintptr_t address)
{
    if (address >= log->constant_low && address + sizeof(uintptr_t) <= log->constant_high)
        return true;
    log->constant_low = address;
    log->constant_high = 0;
    return dl_iterate_phdr(find_constant, log) == 1 &&
           address + sizeof(uintptr_t) <= log->constant_high;
}

static bool note(ca_words_t *log, uintptr_t address, uintptr_t value)
{
    for (size_t i = 0; i < log->count; i++)
        if (log->words[i].address == address)
            return true;
    if (log->count == CA_WORDS_MAX)
        return false;
    log->words[log->count++] = (ca_word_t){address, value};
    return true;
}

/* The frames' words are others' variables to AddressSanitizer. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static uintptr_t word_at(uintptr_t address)
{
    return *(const volatile uintptr_t *)address;
}

static int access_mem(ca_space_t *in, uintptr_t address, uintptr_t *value, int write, void *arg)
{
    (void)in;
    ca_words_t *log = arg;
    bool aligned = address % sizeof(uintptr_t) == 0;
    if (!write && aligned && address >= log->frame && address < log->stack_high) {
        *value = word_at(address);
        if (note(log, address, *value))
            return 0;
    } else if (!write && constant(log, address)) {
        memcpy(value, (const void *)address, sizeof *value);
        return 0;
    }
    log->inexact = true;
    return -INVALID;
}

/* As they were for the caller: before the call, at which an unwinder looks for its information. */
static int access_reg(ca_space_t *in, int number, uintptr_t *value, int write, void *arg)
{
    ca_words_t *log = arg;
    if (!write && number == REG_INSTRUCTION)
        *value = log->caller - 1;
    else if (!write && number == REG_STACK_POINTER)
        *value = log->frame + 2 * sizeof(uintptr_t);
    else if (!write && number == REG_FRAME_POINTER)
        return access_mem(in, log->frame, value, 0, arg);
    else {
        log->inexact = true;
        return -INVALID;
    }
    return 0;
}

static int no_fpreg(ca_space_t *in, int number, void *value, int write, void *arg)
{
    (void)in;
    (void)number;
    (void)value;
    (void)write;
    ((ca_words_t *)arg)->inexact = true;
    return -INVALID;
}

static bool load(void *library)
{
    struct {
        void **function;
        const char *name;
    } needed[] = {
        {(void **)&generic.create, "_Ux86_64_create_addr_space"},
        {(void **)&generic.accessors, "_Ux86_64_get_accessors"},
        {(void **)&generic.init, "_Ux86_64_init_remote"},
        {(void **)&generic.step, "_Ux86_64_step"},
        {(void **)&generic.get, "_Ux86_64_get_reg"},
        {(void **)&generic.set_caching, "_Ux86_64_set_caching_policy"},
        {(void **)&generic.flush, "_Ux86_64_flush_cache"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!(*needed[i].function = dlsym(library, needed[i].name)))
            return false;
    ca_space_t **local = dlsym(library, "_Ux86_64_local_addr_space");
    if (!local || !*local)
        return false;
    local_space = *local;
    const accessors_t *theirs = generic.accessors(local_space);
    find_local = theirs->find_proc_info;
    put_local = theirs->put_unwind_info;
    return find_local && put_local;
}

void ca_words_start(void)
{
    static accessors_t ours = {
        .find_proc_info = find_proc_info,
        .put_unwind_info = put_unwind_info,
        .get_dyn_info_list_addr = no_dynamic_information,
        .access_mem = access_mem,
        .access_reg = access_reg,
        .access_fpreg = no_fpreg,
    };
    void *library = dlopen("libunwind-x86_64.so.8", RTLD_NOW | RTLD_LOCAL);
    if (!library || space)
        return;
    if (load(library))
        space = generic.create(&ours, 0);
    if (space)
        generic.set_caching(space, CACHE_GLOBAL);
    else
        dlclose(library);
}

bool ca_words_usable(void)
{
    return space != NULL;
}

static int count_loads(struct dl_phdr_info *object, size_t size, void *arg)
{
    (void)size;
    *(uint64_t *)arg = object->dlpi_adds;
    return 1;
}

/* The unwinder's cache knows code by its address. What is on this thread's stack now stays loaded,
 * so that looking once, before, is enough. */
uint64_t ca_words_refresh(void)
{
    static _Atomic uint64_t before;
    uint64_t loads = 0;
    dl_iterate_phdr(count_loads, &loads);
    if (space && loads != atomic_load(&before)) {
        generic.flush(space, 0, 0);
        atomic_store(&before, loads);
    }
    return loads;
}

bool ca_words_unwind(ca_words_t *log, void *const *frames, size_t count, bool whole)
{
    uintptr_t cursor[CURSOR_WORDS];
    log->count = 0;
    log->inexact = false;
    log->constant_low = log->constant_high = 0;
    if (!space || count == 0 || (uintptr_t)frames[0] != log->caller ||
        generic.init(cursor, space, log) < 0)
        return false;
    for (size_t i = 1; i < count; i++) {
        uintptr_t address;
        if (generic.step(cursor) <= 0 || log->inexact ||
            generic.get(cursor, REG_INSTRUCTION, &address) < 0 || address != (uintptr_t)frames[i])
            return false;
    }
    return (!whole || generic.step(cursor) == 0) && !log->inexact;
}

#else

void ca_words_start(void)
{
}

bool ca_words_usable(void)
{
    return false;
}

uint64_t ca_words_refresh(void)
{
    return 0;
}

bool ca_words_unwind(ca_words_t *log, void *const *frames, size_t count, bool whole)
{
    (void)log;
    (void)frames;
    (void)count;
    (void)whole;
    return false;
}

#endif
