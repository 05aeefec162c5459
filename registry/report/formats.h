/* The formats of a report: a table, in which each is a line, and a function that writes it
 * (format_*.c, which describe them). Where a report goes is shim/life/report_destination.h's. */
#ifndef CA_REGISTRY_REPORT_FORMATS_H
#define CA_REGISTRY_REPORT_FORMATS_H

#include "base/out.h"
#include "config/options.h"
#include "registry/report/model.h"

typedef struct ca_format {
    const char *name;   /* as in report_format */
    const char *ending; /* of its file's name; text has none */
    void (*write)(ca_out_t *out, const ca_model_t *model);
} ca_format_t;

extern const ca_format_t ca_formats[CA_FORMATS];

/* The format whose own name `path` is, with its ending, or NULL. */
const ca_format_t *ca_format_of_path(const char *path);

/* Without memory for their tables the output fails with ENOMEM. */
void ca_format_text(ca_out_t *out, const ca_model_t *model);
/* Of a model that was made for an out of memory (ca_model_held_t): the stack of the call, a frame a
 * line, and what is held, as HELD in the place of LEAK SUMMARY. */
void ca_format_asked(ca_out_t *out, const ca_model_t *model);
void ca_format_held(ca_out_t *out, const ca_model_t *model);
void ca_format_json(ca_out_t *out, const ca_model_t *model);
void ca_format_pprof(ca_out_t *out, const ca_model_t *model);
void ca_format_folded(ca_out_t *out, const ca_model_t *model);
void ca_format_pytorch(ca_out_t *out, const ca_model_t *model);

#endif
