/* The encoding of protocol buffers, as far as writing needs it: fields of numbers, strings and
 * messages, written one after the other. Fields of the value 0 may be left out, and are.
 *
 * The length of a message comes before it: a message is a function that writes its fields, called
 * once to count and once to write, and must do the same both times. No memory is needed. */
#ifndef CA_REGISTRY_REPORT_PROTOBUF_H
#define CA_REGISTRY_REPORT_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>
#include "base/out.h"

typedef struct ca_proto {
    ca_out_t *out;  /* NULL: only counted */
    uint64_t bytes; /* of what was written */
} ca_proto_t;

typedef void ca_proto_fill_t(ca_proto_t *proto, void *arg);

/* Field numbers are below 16, as all of profile.proto that we write are. */
void ca_proto_number(ca_proto_t *proto, unsigned field, uint64_t value);
void ca_proto_message(ca_proto_t *proto, unsigned field, ca_proto_fill_t *fill, void *arg);

/* A string, the empty one too. Must be UTF-8 there: what is not, and control characters, become
 * \xNN. */
void ca_proto_text(ca_proto_t *proto, unsigned field, const char *text);

/* A number of a packed field, which `fill` of ca_proto_message writes as its content. */
void ca_proto_packed(ca_proto_t *proto, uint64_t value);

#endif
