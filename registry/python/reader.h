/* Reading an interpreter's memory: words of the calling thread's own frames and of what they hold,
 * which nothing changes meanwhile. Where little is known yet reads are guarded: the kernel says of
 * each page whether it can be read. Never a call of the interpreter's. */
#ifndef CA_REGISTRY_PYTHON_READER_H
#define CA_REGISTRY_PYTHON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CA_PY_PAGES 16u

/* All zero is one that reads plainly. */
typedef struct ca_py_reader {
    bool guarded;
    int (*stop)(void); /* or NULL: where it says so, what is read is going away */
    unsigned next;
    uintptr_t pages[CA_PY_PAGES]; /* that can be read, as far as was asked */
} ca_py_reader_t;

bool ca_py_probe(ca_py_reader_t *reader, uintptr_t address, size_t bytes);

/* Whether `bytes` from `address` on can be read. */
static inline bool ca_py_readable(ca_py_reader_t *reader, uintptr_t address, size_t bytes)
{
    return reader->guarded ? ca_py_probe(reader, address, bytes) : address != 0;
}

/* A word that can be. The interpreter's variables are others' to sanitizers. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static inline uint64_t
ca_py_word(uintptr_t address)
{
    typedef uint64_t __attribute__((may_alias, aligned(1))) word_t;
    return *(const word_t *)address;
}

__attribute__((no_sanitize_address, no_sanitize_thread)) static inline uint32_t
ca_py_half(uintptr_t address)
{
    typedef uint32_t __attribute__((may_alias, aligned(1))) half_t;
    return *(const half_t *)address;
}

__attribute__((no_sanitize_address, no_sanitize_thread)) static inline uint8_t
ca_py_byte(uintptr_t address)
{
    return *(const volatile uint8_t *)address;
}

/* The same, where they can be; else false. */
static inline bool ca_py_get(ca_py_reader_t *reader, uintptr_t address, uint64_t *word)
{
    if (!ca_py_readable(reader, address, sizeof *word))
        return false;
    *word = ca_py_word(address);
    return true;
}

static inline bool ca_py_get_half(ca_py_reader_t *reader, uintptr_t address, uint32_t *half)
{
    if (!ca_py_readable(reader, address, sizeof *half))
        return false;
    *half = ca_py_half(address);
    return true;
}

static inline bool ca_py_get_byte(ca_py_reader_t *reader, uintptr_t address, uint8_t *byte)
{
    if (!ca_py_readable(reader, address, sizeof *byte))
        return false;
    *byte = ca_py_byte(address);
    return true;
}

#endif
