#include "registry/report/protobuf.h"

#include <string.h>

#include "base/text.h"

enum { WIRE_VARINT = 0, WIRE_LENGTH = 2 };

static void put(ca_proto_t *proto, const void *data, size_t length)
{
    if (proto->out)
        ca_out_bytes(proto->out, data, length);
    proto->bytes += length;
}

/* Seven bits a byte, the lowest first; the top bit says that more follow. */
static void varint(ca_proto_t *proto, uint64_t value)
{
    unsigned char bytes[10];
    size_t count = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[count++] = (unsigned char)(value | 0x80);
    bytes[count++] = (unsigned char)value;
    put(proto, bytes, count);
}

static void key(ca_proto_t *proto, unsigned field, unsigned wire)
{
    varint(proto, field << 3 | wire);
}

void ca_proto_number(ca_proto_t *proto, unsigned field, uint64_t value)
{
    if (value == 0)
        return;
    key(proto, field, WIRE_VARINT);
    varint(proto, value);
}

void ca_proto_packed(ca_proto_t *proto, uint64_t value)
{
    varint(proto, value);
}

void ca_proto_message(ca_proto_t *proto, unsigned field, ca_proto_fill_t *fill, void *arg)
{
    ca_proto_t counted = {0};
    fill(&counted, arg);
    key(proto, field, WIRE_LENGTH);
    varint(proto, counted.bytes);
    fill(proto, arg);
}

static void fill_text(ca_proto_t *proto, void *arg)
{
    const char *text = arg;
    size_t left = strlen(text);
    while (left > 0) {
        char shown[5];
        size_t consumed = ca_text_escape_next(text, left, shown);
        put(proto, shown, strlen(shown));
        text += consumed;
        left -= consumed;
    }
}

void ca_proto_text(ca_proto_t *proto, unsigned field, const char *text)
{
    ca_proto_message(proto, field, fill_text, (void *)(uintptr_t)text);
}
