/* The names that programs give NVTX: domains, registered strings, and the message of an event. What
 * is kept is bounded, and no handle or message that a program hands in is trusted: one that is not
 * known has no name. Thread-safe. */
#ifndef CA_SHIM_HOOKS_NVTX_NAMES_H
#define CA_SHIM_HOOKS_NVTX_NAMES_H

#include <stdbool.h>
#include "registry/table/marks.h"
#include "shim/hooks/nvtx_types.h"

#define CA_NVTX_DOMAINS_MOST 64u /* the default one, 0, included */
#define CA_NVTX_NO_DOMAIN CA_NVTX_DOMAINS_MOST

typedef char ca_nvtx_name_t[CA_MARK_NAME];

/* A message as NVTX's functions take it: the one for which `type` is set. */
typedef struct ca_nvtx_message {
    int type; /* CA_NVTX_MESSAGE_CHAR, ...; any other: none */
    const char *text;
    const wchar_t *wide;
    ca_nvtx_handle_t registered;
} ca_nvtx_message_t;

/* `all`: domains other than the default one and that of the Python package nvtx are kept, too. */
ca_nvtx_handle_t ca_nvtx_create_domain(const ca_nvtx_message_t *name, bool all);
ca_nvtx_handle_t ca_nvtx_register_string(ca_nvtx_handle_t domain, const ca_nvtx_message_t *string);

/* The number of a domain, CA_NVTX_NO_DOMAIN where what happens in it is of no interest. */
unsigned ca_nvtx_find_domain(ca_nvtx_handle_t domain);

/* Writes what an event is called, the name of its domain before it where libraries' are kept. */
void ca_nvtx_name(ca_nvtx_name_t name, unsigned domain, const ca_nvtx_message_t *message);

/* The message in what a program hands in; NULL and unknown layouts have none. */
ca_nvtx_message_t ca_nvtx_message_of(const ca_nvtx_attributes_t *attributes);

void ca_nvtx_names_reset_after_fork(void);

#endif
