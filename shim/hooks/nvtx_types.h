/* What NVTX and a tool that listens to it share, as far as shim/hooks/nvtx.c needs it: from the
 * public headers of NVTX 3 (nvToolsExt.h, nvtxDetail/nvtxTypes.h), which CUDA's runtime headers
 * come without. Numbers and layouts are the interface between programs and tools, and stay. */
#ifndef CA_SHIM_HOOKS_NVTX_TYPES_H
#define CA_SHIM_HOOKS_NVTX_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

/* Tables that each copy of NVTX in a process gives a tool, by number. */
enum { CA_NVTX_TABLE_CALLBACKS = 1, CA_NVTX_TABLE_VERSION = 3 };
typedef const void *(*ca_nvtx_get_table_t)(uint32_t number);

typedef void (*ca_nvtx_function_t)(void);
typedef struct ca_nvtx_callbacks {
    size_t bytes;
    /* `places`: where the functions of a module are kept, by number. 1, or 0 where there is none.
     */
    int (*get_module)(int module, ca_nvtx_function_t ***places, unsigned *count);
} ca_nvtx_callbacks_t;

typedef struct ca_nvtx_version {
    size_t bytes;
    uint32_t version, reserved;
    void (*set_version_of_tool)(uint32_t version);
} ca_nvtx_version_t;

/* Modules, and the functions of each. */
enum { CA_NVTX_CORE = 1, CA_NVTX_DOMAINS = 5 };
enum {
    CA_NVTX_MARK_EX = 1,
    CA_NVTX_MARK_A,
    CA_NVTX_MARK_W,
    CA_NVTX_START_EX,
    CA_NVTX_START_A,
    CA_NVTX_START_W,
    CA_NVTX_END,
    CA_NVTX_PUSH_EX,
    CA_NVTX_PUSH_A,
    CA_NVTX_PUSH_W,
    CA_NVTX_POP
};
enum {
    CA_NVTX_DOMAIN_MARK_EX = 1,
    CA_NVTX_DOMAIN_START_EX,
    CA_NVTX_DOMAIN_END,
    CA_NVTX_DOMAIN_PUSH_EX,
    CA_NVTX_DOMAIN_POP,
    CA_NVTX_DOMAIN_REGISTER_A = 10,
    CA_NVTX_DOMAIN_REGISTER_W,
    CA_NVTX_DOMAIN_CREATE_A,
    CA_NVTX_DOMAIN_CREATE_W
};

/* What a push or pop answers where no tool keeps count, and where it went wrong. */
#define CA_NVTX_NOT_COUNTED (-2)
#define CA_NVTX_ERROR (-1)

/* Handles belong to the tool: programs only hand them back. */
typedef const void *ca_nvtx_handle_t;

enum { CA_NVTX_MESSAGE_CHAR = 1, CA_NVTX_MESSAGE_WIDE, CA_NVTX_MESSAGE_REGISTERED };
typedef struct ca_nvtx_attributes {
    uint16_t version;
    uint16_t bytes; /* of this struct, as the program knows it */
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    union {
        const char *text;
        const wchar_t *wide;
        ca_nvtx_handle_t registered;
    } message;
} ca_nvtx_attributes_t;
_Static_assert(offsetof(ca_nvtx_attributes_t, message) == 40 && sizeof(ca_nvtx_attributes_t) == 48,
               "NVTX's layout");

#endif
