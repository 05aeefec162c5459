/* Which functions are a framework's inner ones (fold.def), and names without what makes them long.
 * A pure look at a name: no heap, no lock, no loader. */
#ifndef CA_REGISTRY_NAMES_FOLD_H
#define CA_REGISTRY_NAMES_FOLD_H

#include <stdbool.h>
#include "base/text.h"
#include "registry/names/frame.h"

/* Whether the function is inside a framework. `place` is NULL for a frame that has none. */
bool ca_fold_is_inner(const ca_frame_t *frame, const ca_place_t *place);

/* Appends the function with its scopes, of a demangled or a mangled name of C++: without what it
 * returns and takes, and with `<...>` for what a template is made with. Another name as it is. */
void ca_fold_name(const char *function, ca_text_t *text);

#endif
