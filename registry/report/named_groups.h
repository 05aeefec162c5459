/* Groups of a report: of the groups that were counted (registry/table/groups.h), those that have
 * the same functions' names, device and kind are one, whatever their addresses and threads are. For
 * model.c. */
#ifndef CA_REGISTRY_REPORT_NAMED_GROUPS_H
#define CA_REGISTRY_REPORT_NAMED_GROUPS_H

#include "base/mem.h"
#include "registry/report/classes.h"
#include "registry/report/model.h"
#include "registry/table/groups.h"

/* A counted group and the functions of its stack. */
typedef struct ca_named_part {
    ca_group_t group;
    ca_class_t *class;
    ca_named_t *const *frames; /* at least as many as the class has */
} ca_named_part_t;

/* A group of the model, and the parts that it was made of. */
typedef struct ca_named_group {
    ca_model_group_t group;
    const ca_class_t *class;
    ca_named_part_t *parts;
    size_t part_count;
} ca_named_group_t;

/* Those of one section. */
typedef struct ca_named_groups {
    ca_named_group_t *groups;
    size_t count;
} ca_named_groups_t;

/* Makes them of counted ones, by all of their stacks' frames. `quick`: the largest get their names
 * first, as there may be no time for all. 0 or -ENOMEM. */
int ca_named_groups_make(ca_bump_t *memory, ca_classes_t *classes, bool quick,
                         const ca_groups_t *counted, ca_named_groups_t *made);

/* Makes one group of those that differ beyond `depth` of the classes (leak_depth) alone. After the
 * rules, which are for all of a stack. Without memory they stay as they are. */
void ca_named_groups_cut(ca_bump_t *memory, ca_classes_t *classes, ca_named_groups_t *made);

/* The group of the same functions, device and kind, or NULL; while `made` is in the order in which
 * it was made, which the orders below are not. */
const ca_named_group_t *ca_named_groups_find(const ca_named_groups_t *made,
                                             const ca_named_group_t *like);

/* Orders for ca_sort: parts by their first allocation; groups by device and kind; and by size,
 * where equals are in the order of their names, which two runs of a program share. */
bool ca_named_by_age(const void *a, const void *b);
bool ca_named_by_device(const void *a, const void *b);
bool ca_named_is_larger(const void *a, const void *b);

#endif
