/* Where a word belongs in a small table. Addresses of the objects of one kind lie at even
 * distances: one multiplication alone puts many of them into one place, at some distances. */
#ifndef CA_REGISTRY_STACK_HASH_H
#define CA_REGISTRY_STACK_HASH_H

#include <stdint.h>

/* To be shifted down to as many bits as count. */
static inline uint64_t ca_hash_word(uint64_t word)
{
    return __builtin_bswap64(word * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
}

#endif
