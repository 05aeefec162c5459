/* Where the leak report goes: `leak_report` as a destination. What is in it is report_collect.h's,
 * how it is written registry/report/formats.h's. */
#ifndef CA_SHIM_LIFE_REPORT_DESTINATION_H
#define CA_SHIM_LIFE_REPORT_DESTINATION_H

#include <stdbool.h>
#include <stdint.h>
#include "base/out.h"
#include "base/path.h"
#include "registry/report/model.h"

/* Keeps what the environment says of the destination. Once, with the configuration. */
void ca_report_destination_configure(void);

/* All but one are for the thread that has the report lock (shim/alloc/report_lock.h), make no CUDA
 * call, and let other threads run. */

/* At the end of the process: writes the report where something leaked, through `out`. What cannot
 * go to its destination goes to stderr, whole. `quick`: without libdw, malloc and loader. Returns
 * how many allocations leaked, reported or not. */
uint64_t ca_report_write_at_exit(ca_out_t *out, bool quick);

/* In its place where the report lock cannot be had: says that there is none, and returns the same,
 * leaks that are known included. */
uint64_t ca_report_miss_at_exit(void);

/* While it runs: what is live, to the file that `path`, with the patterns of leak_report, names.
 * NULL: where leak_report says, and to stderr where it says off. 0 or a negative errno: -EINVAL for
 * a bad pattern, otherwise of the file. */
int ca_report_dump(ca_out_t *out, const char *cause, const char *path);

/* The same for a model that is there; NULL: there was no memory for one. `process`: whose it is,
 * and so what the patterns stand for; NULL: this one. */
int ca_report_write_model(ca_out_t *out, const ca_model_t *model, const char *path,
                          const ca_path_process_t *process);

#endif
