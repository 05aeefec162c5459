/* Rust's names as they stand in the source: those of the present scheme (RFC 2603, `_R...`) and of
 * the one before (`_ZN...17h<hash>E`), without the hash. By the bytes of the name alone, which may
 * be any: no malloc, bounded time and depth. Not thread-safe: one user at a time. */
#ifndef CA_REGISTRY_NAMES_DEMANGLE_RUST_H
#define CA_REGISTRY_NAMES_DEMANGLE_RUST_H

/* Until the next call; NULL where it is no such name, or one that is too long, or nested in more
 * than `deepest` levels, of which each takes some 200 bytes of the stack. */
const char *ca_demangle_rust(const char *name, unsigned deepest);

#endif
