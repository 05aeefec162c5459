/* A report as folded stacks, a line for each group: names from the outermost function to the
 * innermost, joined with `;`, and the bytes:
 *
 *   device 0, pinned memory;main;start_tile;load_tile_halo 4096
 *
 * for flamegraph.pl, speedscope and what else reads them. What leaked, and, with `, context
 * destroyed` in the first name, what contexts held that were destroyed; the sum is the model's:
 * groups that are not listed are a line `(not listed)`, groups of no bytes are none. A `;` in a
 * name becomes `:`, a control character, and what is not UTF-8, \xNN. */
#ifndef CA_REGISTRY_REPORT_FORMAT_FOLDED_H
#define CA_REGISTRY_REPORT_FORMAT_FOLDED_H

#include "base/out.h"
#include "registry/report/model.h"

void ca_format_folded(ca_out_t *out, const ca_model_t *model);

#endif
