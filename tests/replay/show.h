/* How figures are shown: as lines, as a table that compares, as JSON. */
#ifndef REPLAY_SHOW_H
#define REPLAY_SHOW_H

#include "tests/replay/policy.h"

typedef struct row {
    char *path;
    policy_t policy;
    figures_t figures;
    size_t least; /* smallest device memory with which it finishes, in bytes; 0: nobody asked */
} row_t;

const char *policy_name(policy_t policy);
double row_efficiency(const row_t *row);

void show_lines(const row_t *row);
void show_json(const row_t *rows, size_t count);
/* Ours beside the reference: two rows for each trace, one after the other. */
void show_table(const row_t *rows, size_t count);

#endif
