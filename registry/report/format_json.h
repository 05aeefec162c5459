/* The report as JSON, for programs: tests/report.schema.json says how it looks. */
#ifndef CA_REGISTRY_REPORT_FORMAT_JSON_H
#define CA_REGISTRY_REPORT_FORMAT_JSON_H

#include "base/out.h"
#include "registry/report/model.h"

/* Writes one JSON object and a newline. Sizes, counts, sequence numbers and nanoseconds are
 * integers of up to 64 bits; addresses and streams are strings, "0x...". Bytes that are not UTF-8
 * become U+FFFD. Each frame is listed once, groups have positions in that list. Without host memory
 * for the list nothing is written, and `out` remembers ENOMEM. */
void ca_format_json(ca_out_t *out, const ca_model_t *model);

#endif
