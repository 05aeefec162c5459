/* NVTX is a header in the program, once in each of its modules. At a module's first call it opens
 * the library that the environment names and calls what that exports, which puts functions in the
 * place of the module's empty ones. Without the option the environment stays as it is, and so do
 * they.
 *
 * The variable is set while the library is loaded, rather than by the launcher: so it is there
 * however the library came into the process, and it follows that process's own options. It is set
 * by the only thread there is: others may read the environment, or change it. Its value is the
 * library's soname: the loader knows the one that is loaded by it and opens no file, whatever
 * became of its path. A child without the library in LD_PRELOAD finds none of that name, as a rule,
 * and has empty functions.
 *
 * NVTX has a weak symbol for tools that are linked in, too. An executable does not export it, and a
 * value there would come before a tool of the program's own, so it is left alone. */
#include "shim/hooks/nvtx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "config/options.h"
#include "shim/cuda/life_state.h"
#include "shim/hooks/api_struct.h"
#include "shim/hooks/nvtx_names.h"
#include "shim/hooks/nvtx_ranges.h"
#include "shim/hooks/nvtx_types.h"

#define VARIABLE "NVTX_INJECTION64_PATH"
#define SONAME "libcachealloc.so"
#define VERSION 3

static bool looked;        /* at the configuration; while the library is loaded, as the rest */
static int wanted;         /* CA_NVTX_... */
static bool other_tool;    /* is named */
static bool other_threads; /* ran then, and nothing is named */

/* --- what programs call ----------------------------------------------------------------------- */

#define CHAR(message) (&(ca_nvtx_message_t){.type = CA_NVTX_MESSAGE_CHAR, .text = (message)})
#define WIDE(message_) (&(ca_nvtx_message_t){.type = CA_NVTX_MESSAGE_WIDE, .wide = (message_)})

static void set_mark(ca_nvtx_handle_t domain, const ca_nvtx_message_t *message)
{
    ca_nvtx_name_t name;
    unsigned number = ca_nvtx_find_domain(domain);
    if (number == CA_NVTX_NO_DOMAIN)
        return;
    ca_nvtx_name(name, number, message);
    ca_nvtx_mark(name);
}

static int push(ca_nvtx_handle_t domain, const ca_nvtx_message_t *message)
{
    ca_nvtx_name_t name;
    unsigned number = ca_nvtx_find_domain(domain);
    if (number == CA_NVTX_NO_DOMAIN)
        return CA_NVTX_NOT_COUNTED;
    ca_nvtx_name(name, number, message);
    return ca_nvtx_push(number, name);
}

static uint64_t start(ca_nvtx_handle_t domain, const ca_nvtx_message_t *message)
{
    ca_nvtx_name_t name;
    unsigned number = ca_nvtx_find_domain(domain);
    if (number == CA_NVTX_NO_DOMAIN)
        return 0;
    ca_nvtx_name(name, number, message);
    return ca_nvtx_start(name);
}

static void mark_ex(const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = ca_nvtx_message_of(attributes);
    set_mark(NULL, &message);
}

static void mark_a(const char *message)
{
    set_mark(NULL, CHAR(message));
}

static void mark_w(const wchar_t *message)
{
    set_mark(NULL, WIDE(message));
}

static uint64_t start_ex(const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = ca_nvtx_message_of(attributes);
    return start(NULL, &message);
}

static uint64_t start_a(const char *message)
{
    return start(NULL, CHAR(message));
}

static uint64_t start_w(const wchar_t *message)
{
    return start(NULL, WIDE(message));
}

static int push_ex(const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = ca_nvtx_message_of(attributes);
    return push(NULL, &message);
}

static int push_a(const char *message)
{
    return push(NULL, CHAR(message));
}

static int push_w(const wchar_t *message)
{
    return push(NULL, WIDE(message));
}

static int pop(void)
{
    return ca_nvtx_pop(0);
}

static void domain_mark_ex(ca_nvtx_handle_t domain, const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = ca_nvtx_message_of(attributes);
    set_mark(domain, &message);
}

static uint64_t domain_start_ex(ca_nvtx_handle_t domain, const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = ca_nvtx_message_of(attributes);
    return start(domain, &message);
}

static void domain_end(ca_nvtx_handle_t domain, uint64_t range)
{
    (void)domain;
    ca_nvtx_end(range);
}

static int domain_push_ex(ca_nvtx_handle_t domain, const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = ca_nvtx_message_of(attributes);
    return push(domain, &message);
}

static int domain_pop(ca_nvtx_handle_t domain)
{
    unsigned number = ca_nvtx_find_domain(domain);
    return number == CA_NVTX_NO_DOMAIN ? CA_NVTX_NOT_COUNTED : ca_nvtx_pop(number);
}

static ca_nvtx_handle_t register_a(ca_nvtx_handle_t domain, const char *string)
{
    return ca_nvtx_register_string(domain, CHAR(string));
}

static ca_nvtx_handle_t register_w(ca_nvtx_handle_t domain, const wchar_t *string)
{
    return ca_nvtx_register_string(domain, WIDE(string));
}

static ca_nvtx_handle_t create_a(const char *name)
{
    return ca_nvtx_create_domain(CHAR(name), wanted == CA_NVTX_ALL);
}

static ca_nvtx_handle_t create_w(const wchar_t *name)
{
    return ca_nvtx_create_domain(WIDE(name), wanted == CA_NVTX_ALL);
}

/* --- how they get there ----------------------------------------------------------------------- */

typedef struct entry {
    int module;
    unsigned number;
    ca_nvtx_function_t function;
} entry_t;

#define ENTRY(module, number, function)                                                            \
    {                                                                                              \
        module, number, (ca_nvtx_function_t)(function)                                             \
    }
static const entry_t entries[] = {
    ENTRY(CA_NVTX_CORE, CA_NVTX_MARK_EX, mark_ex),
    ENTRY(CA_NVTX_CORE, CA_NVTX_MARK_A, mark_a),
    ENTRY(CA_NVTX_CORE, CA_NVTX_MARK_W, mark_w),
    ENTRY(CA_NVTX_CORE, CA_NVTX_START_EX, start_ex),
    ENTRY(CA_NVTX_CORE, CA_NVTX_START_A, start_a),
    ENTRY(CA_NVTX_CORE, CA_NVTX_START_W, start_w),
    ENTRY(CA_NVTX_CORE, CA_NVTX_END, ca_nvtx_end),
    ENTRY(CA_NVTX_CORE, CA_NVTX_PUSH_EX, push_ex),
    ENTRY(CA_NVTX_CORE, CA_NVTX_PUSH_A, push_a),
    ENTRY(CA_NVTX_CORE, CA_NVTX_PUSH_W, push_w),
    ENTRY(CA_NVTX_CORE, CA_NVTX_POP, pop),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_MARK_EX, domain_mark_ex),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_START_EX, domain_start_ex),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_END, domain_end),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_PUSH_EX, domain_push_ex),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_POP, domain_pop),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_REGISTER_A, register_a),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_REGISTER_W, register_w),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_CREATE_A, create_a),
    ENTRY(CA_NVTX_DOMAINS, CA_NVTX_DOMAIN_CREATE_W, create_w),
};

/* Of a module that an older header has shorter, or not at all, what there is. Whether there was a
 * place for any of ours. */
static bool fill(const ca_nvtx_callbacks_t *callbacks)
{
    bool any = false;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        ca_nvtx_function_t **places = NULL;
        unsigned count = 0;
        if (!callbacks->get_module(entries[i].module, &places, &count) || !places ||
            entries[i].number >= count || !places[entries[i].number])
            continue;
        *places[entries[i].number] = entries[i].function;
        any = true;
    }
    return any;
}

/* NVTX's name for what a tool exports. 1: the module's functions are ours now; 0: it has none. */
CA_PUBLIC int InitializeInjectionNvtx2(ca_nvtx_get_table_t get_table);
CA_PUBLIC int InitializeInjectionNvtx2(ca_nvtx_get_table_t get_table)
{
    ca_nvtx_at_load(); /* a constructor of the program may come before ours */
    if (wanted == CA_NVTX_FALSE || !get_table)
        return 0;
    const ca_nvtx_callbacks_t *callbacks = get_table(CA_NVTX_TABLE_CALLBACKS);
    if (!callbacks || callbacks->bytes < sizeof *callbacks || !callbacks->get_module ||
        !fill(callbacks))
        return 0;
    const ca_nvtx_version_t *version = get_table(CA_NVTX_TABLE_VERSION);
    if (version && version->bytes >= sizeof *version && version->set_version_of_tool)
        version->set_version_of_tool(VERSION);
    return 1;
}

/* --- the environment -------------------------------------------------------------------------- */

static bool is_ours(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, SONAME) == 0;
}

/* A folder's links are itself, its name, and the folders in it: here one for each thread. Where
 * /proc does not say there may be any number. */
static bool is_only_thread(void)
{
    struct stat found;
    return stat("/proc/self/task", &found) == 0 && found.st_nlink == 3;
}

/* Not by setenv: some programs have one of their own (bash), which is not ready before their main,
 * and that of libc asks the program's malloc. */
static void name_ourselves(void)
{
    static char setting[] = VARIABLE "=" SONAME;
    size_t count = 0;
    while (environ && environ[count])
        count++;
    char **larger = ca_mem_map((count + 2) * sizeof *larger);
    if (!larger)
        return;
    if (count)
        memcpy(larger, environ, count * sizeof *larger);
    larger[count] = setting;
    environ = larger;
}

void ca_nvtx_at_load(void)
{
    if (looked)
        return;
    looked = true;
    wanted = ca_life_peek_nvtx();
    if (wanted == CA_NVTX_FALSE)
        return;
    const char *named = getenv(VARIABLE);
    if (named && !is_ours(named)) {
        other_tool = true;
        wanted = CA_NVTX_FALSE;
        return;
    }
    if (!named && !is_only_thread()) {
        other_threads = true;
        wanted = CA_NVTX_FALSE;
        return;
    }
    ca_nvtx_ranges_prepare();
    if (!named)
        name_ourselves();
}

void ca_nvtx_configure(void)
{
    if (ca_options.nvtx == CA_NVTX_FALSE || wanted != CA_NVTX_FALSE)
        return;
    if (other_tool)
        ca_info("nvtx: " VARIABLE " names another library, which has the program's ranges: they "
                "are no phases here");
    else if (other_threads)
        ca_warn("nvtx: other threads ran when the library was opened, so " VARIABLE " is not set, "
                "and no range is heard: preload the library, or start the program "
                "with " VARIABLE "=" SONAME);
    else
        ca_warn("nvtx: was not in " CA_OPTIONS_NAME " when the program began, and is not heard "
                "later");
}

void ca_nvtx_reset_after_fork(void)
{
    ca_nvtx_names_reset_after_fork();
    ca_nvtx_ranges_reset_after_fork();
}

void ca_nvtx_context_in_use(void)
{
    if (wanted != CA_NVTX_FALSE)
        ca_nvtx_ranges_begun();
}
