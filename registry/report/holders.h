/* The stacks that hold most of the memory of a device, or of the pinned memory of the host, now:
 * for a report that must come at once, in mapped memory and with quick names. */
#ifndef CA_REGISTRY_REPORT_HOLDERS_H
#define CA_REGISTRY_REPORT_HOLDERS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/out.h"
#include "registry/table/groups.h"
#include "registry/names/symbols.h"

typedef struct ca_holders {
    ca_groups_t groups;
    uint64_t unpooled; /* bytes that the driver serves */
    bool incomplete;   /* some could not be read */
} ca_holders_t;

/* Fills it with what is live on `device`, or with pinned memory where `host`. Takes no lock for
 * long. */
void ca_holders_read(ca_holders_t *holders, unsigned device, bool host);
void ca_holders_free(ca_holders_t *holders);

/* Lists the `most` largest, each with its stack. */
void ca_holders_write(ca_holders_t *holders, unsigned most, ca_out_t *out, ca_symbols_t *symbols);

/* Writes a stack, a frame a line, indented by four blanks. One user at a time. */
void ca_holders_write_stack(uint32_t stack, ca_out_t *out, ca_symbols_t *symbols);

#endif
