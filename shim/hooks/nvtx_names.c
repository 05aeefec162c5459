#include "shim/hooks/nvtx_names.h"

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/mem.h"
#include "base/text.h"

#define PYTHON "NVTX" /* the domain of the Python package, where its user names none */
#define UNNAMED "(no name)"
#define CHUNK 1024u /* strings */
#define CHUNKS 64u

/* No program has this one from us otherwise. */
#define NOT_KEPT ((ca_nvtx_handle_t)UINTPTR_MAX)

typedef ca_nvtx_name_t chunk_t[CHUNK];

/* Both only grow: what was counted is read without the lock. Handles are positions, the domains'
 * from 0, which is NULL, and the strings' from 1. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static ca_nvtx_name_t domains[CA_NVTX_DOMAINS_MOST];
static _Atomic unsigned domain_count = 1;
static chunk_t *_Atomic chunks[CHUNKS];
static _Atomic unsigned string_count;

static void add_code(ca_text_t *text, uint32_t code)
{
    char bytes[4];
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        code = 0xfffd;
        length = 3;
    }
    if (length == 1) {
        bytes[0] = (char)code;
    } else {
        for (size_t i = length; i-- > 1; code >>= 6)
            bytes[i] = (char)(0x80 | (code & 0x3f));
        bytes[0] = (char)(0xf0u << (4 - length) | code);
    }
    ca_text_add(text, bytes, length);
}

static const char *find_string(ca_nvtx_handle_t handle)
{
    uintptr_t number = (uintptr_t)handle - 1;
    if (number >= atomic_load_explicit(&string_count, memory_order_acquire))
        return NULL;
    chunk_t *chunk = atomic_load_explicit(&chunks[number / CHUNK], memory_order_relaxed);
    return (*chunk)[number % CHUNK];
}

/* One character more than there is room for shows that the text was cut. */
static void add_message(ca_text_t *text, const ca_nvtx_message_t *message)
{
    const char *plain = message->type == CA_NVTX_MESSAGE_CHAR ? message->text
                        : message->type == CA_NVTX_MESSAGE_REGISTERED
                            ? find_string(message->registered)
                            : NULL;
    if (message->type == CA_NVTX_MESSAGE_WIDE && message->wide) {
        for (size_t i = 0; i < CA_MARK_NAME && message->wide[i] != L'\0'; i++)
            add_code(text, (uint32_t)message->wide[i]);
        return;
    }
    if (!plain)
        plain = UNNAMED;
    ca_text_add(text, plain, strnlen(plain, CA_MARK_NAME));
}

static void write_name(ca_nvtx_name_t name, const char *domain, const ca_nvtx_message_t *message)
{
    ca_text_t text;
    ca_text_init(&text, name, CA_MARK_NAME);
    if (domain)
        ca_text_printf(&text, "%s: ", domain);
    add_message(&text, message);
    ca_text_mark_cut(&text);
}

void ca_nvtx_name(ca_nvtx_name_t name, unsigned domain, const ca_nvtx_message_t *message)
{
    bool program = domain == 0 || strcmp(domains[domain], PYTHON) == 0;
    write_name(name, program ? NULL : domains[domain], message);
}

ca_nvtx_handle_t ca_nvtx_create_domain(const ca_nvtx_message_t *called, bool all)
{
    ca_nvtx_name_t name;
    write_name(name, NULL, called);
    if (!all && strcmp(name, PYTHON) != 0)
        return NOT_KEPT;
    ca_lock_take(&lock);
    unsigned count = atomic_load_explicit(&domain_count, memory_order_relaxed), i = 1;
    while (i < count && strcmp(domains[i], name) != 0)
        i++;
    if (i == count && count < CA_NVTX_DOMAINS_MOST) {
        memcpy(domains[i], name, sizeof name);
        atomic_store_explicit(&domain_count, count + 1, memory_order_release);
    }
    ca_lock_drop(&lock);
    return i < CA_NVTX_DOMAINS_MOST ? (ca_nvtx_handle_t)(uintptr_t)i : NOT_KEPT;
}

unsigned ca_nvtx_find_domain(ca_nvtx_handle_t domain)
{
    uintptr_t number = (uintptr_t)domain;
    unsigned count = atomic_load_explicit(&domain_count, memory_order_acquire);
    return number < count ? (unsigned)number : CA_NVTX_NO_DOMAIN;
}

/* Where the next string goes, or NULL. Under the lock. */
static char *next_string(unsigned number)
{
    if (number >= CHUNK * CHUNKS)
        return NULL;
    chunk_t *chunk = atomic_load_explicit(&chunks[number / CHUNK], memory_order_relaxed);
    if (!chunk) {
        chunk = ca_mem_map(sizeof *chunk);
        atomic_store_explicit(&chunks[number / CHUNK], chunk, memory_order_relaxed);
    }
    return chunk ? (*chunk)[number % CHUNK] : NULL;
}

ca_nvtx_handle_t ca_nvtx_register_string(ca_nvtx_handle_t domain, const ca_nvtx_message_t *string)
{
    ca_nvtx_name_t name;
    if (ca_nvtx_find_domain(domain) == CA_NVTX_NO_DOMAIN)
        return NOT_KEPT;
    write_name(name, NULL, string);
    ca_lock_take(&lock);
    unsigned number = atomic_load_explicit(&string_count, memory_order_relaxed);
    char *place = next_string(number);
    if (place) {
        memcpy(place, name, sizeof name);
        atomic_store_explicit(&string_count, number + 1, memory_order_release);
    }
    ca_lock_drop(&lock);
    return place ? (ca_nvtx_handle_t)(uintptr_t)(number + 1) : NOT_KEPT;
}

ca_nvtx_message_t ca_nvtx_message_of(const ca_nvtx_attributes_t *attributes)
{
    ca_nvtx_message_t message = {.type = 0};
    if (!attributes || attributes->bytes < sizeof *attributes)
        return message;
    message.type = attributes->message_type;
    message.text = attributes->message.text;
    message.wide = attributes->message.wide;
    message.registered = attributes->message.registered;
    return message;
}

void ca_nvtx_names_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_MEMORY);
}
