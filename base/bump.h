/* Memory for what is built once and goes together: taken piece by piece, given back all at once.
 * Mapped, never the host's heap. Not thread-safe. All zero is an empty one. */
#ifndef CA_BASE_BUMP_H
#define CA_BASE_BUMP_H

#include <stddef.h>

typedef struct ca_bump {
    struct ca_bump_chunk *chunks; /* the newest first */
    size_t used;                  /* bytes of the newest */
} ca_bump_t;

/* Zeroed, aligned to 16 bytes, or NULL (for 0 bytes too). */
void *ca_bump_take(ca_bump_t *bump, size_t bytes);

/* A copy with a NUL behind it, or NULL. */
char *ca_bump_text(ca_bump_t *bump, const char *text, size_t length);

/* Gives everything back; it is then empty. */
void ca_bump_free(ca_bump_t *bump);

#endif
