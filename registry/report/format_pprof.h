/* A report as a profile that pprof reads (perftools.profiles.Profile, not compressed):
 *
 *   go tool pprof -http=: leaks.pprof
 *
 * Sample types, each with a count and bytes: inuse_objects and inuse_space are what leaked,
 * destroyed_objects and destroyed_space what contexts held that were destroyed, peak_objects and
 * peak_space what was live when most was; the latter two where the model has them. What is
 * suppressed is left out. Labels of a sample: `device` and `kind`, `thread` for each name of one,
 * and `thread` "others" where there may be more names. All are strings: a number 0 is no label for
 * pprof.
 *
 * Totals are the model's: groups that are not listed are one sample in a function "(not listed)",
 * allocations without a call stack lie in "(no call stack)". Each mapping begins where the module
 * was loaded; its limit is that of the last address that is known in it. The time is that of the
 * start, the duration until the report. */
#ifndef CA_REGISTRY_REPORT_FORMAT_PPROF_H
#define CA_REGISTRY_REPORT_FORMAT_PPROF_H

#include "base/out.h"
#include "registry/report/model.h"

/* Without memory for its tables the output fails with ENOMEM. */
void ca_format_pprof(ca_out_t *out, const ca_model_t *model);

#endif
