/* Reads the numbers of .eh_frame and .eh_frame_hdr, as DWARF has them. */
#ifndef CA_REGISTRY_STACK_CFI_BYTES_H
#define CA_REGISTRY_STACK_CFI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* How addresses are written (LSB 5.0, "DWARF Exception Header Encoding"): the lower half says in
 * how many bytes, the upper what they are relative to. */
enum { CA_ENC_POINTER = 0, CA_ENC_UNSIGNED4 = 3, CA_ENC_SIGNED4 = 0xb, CA_ENC_SIGNED8 = 0xc };
enum { CA_ENC_PC_RELATIVE = 0x10, CA_ENC_TABLE_RELATIVE = 0x30 };

/* Once something is not as it should be, nothing more is read, and all that is asked for is 0. */
typedef struct ca_cfi_bytes {
    const uint8_t *at, *end;
} ca_cfi_bytes_t;

static inline bool ca_cfi_have(ca_cfi_bytes_t *from, size_t count)
{
    if (from->at && (size_t)(from->end - from->at) >= count)
        return true;
    from->at = NULL;
    return false;
}

static inline uint64_t ca_cfi_fixed(ca_cfi_bytes_t *from, size_t count)
{
    uint64_t value = 0;
    if (ca_cfi_have(from, count)) {
        memcpy(&value, from->at, count);
        from->at += count;
    }
    return value;
}

static inline uint64_t ca_cfi_leb(ca_cfi_bytes_t *from, bool is_signed)
{
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte;
    do {
        byte = (uint8_t)ca_cfi_fixed(from, 1);
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    if (is_signed && byte & 0x40 && shift < 64)
        value |= UINT64_MAX << shift;
    return value;
}

static inline uint64_t ca_cfi_unsigned(ca_cfi_bytes_t *from)
{
    return ca_cfi_leb(from, false);
}

static inline int64_t ca_cfi_signed(ca_cfi_bytes_t *from)
{
    return (int64_t)ca_cfi_leb(from, true);
}

static inline void ca_cfi_skip(ca_cfi_bytes_t *from, uint64_t count)
{
    if (ca_cfi_have(from, count))
        from->at += count;
}

/* What is of another form is not there. */
static inline uintptr_t ca_cfi_encoded(ca_cfi_bytes_t *from, unsigned encoding)
{
    uintptr_t place = (uintptr_t)from->at, base = encoding & CA_ENC_PC_RELATIVE ? place : 0;
    if (encoding & ~(unsigned)(CA_ENC_PC_RELATIVE | 0xf))
        from->at = NULL;
    switch (encoding & 0xf) {
    case CA_ENC_UNSIGNED4:
        return base + (uint32_t)ca_cfi_fixed(from, 4);
    case CA_ENC_SIGNED4:
        return base + (uintptr_t)(intptr_t)(int32_t)ca_cfi_fixed(from, 4);
    case CA_ENC_POINTER:
    case CA_ENC_SIGNED8:
        return base + ca_cfi_fixed(from, 8);
    default:
        from->at = NULL;
        return 0;
    }
}

static inline ca_cfi_bytes_t ca_cfi_block(ca_cfi_bytes_t *from)
{
    uint64_t count = ca_cfi_unsigned(from);
    ca_cfi_bytes_t all = {from->at, from->at};
    ca_cfi_skip(from, count);
    all.end = from->at ? from->at : all.at; /* of what does not fit, nothing */
    return all;
}

#endif
