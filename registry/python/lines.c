#include "registry/python/lines.h"

#define UNIT 2u /* bytes of an instruction, since 3.6 */

/* One step through a table: up to which byte of the code, and the line there. */
typedef struct step {
    const ca_py_table_t *table;
    size_t at;
    size_t end;    /* of the code, as far as the steps have come */
    long computed; /* line that the next one counts from */
    bool has_line;
} step_t;

static bool next_lnotab(step_t *step)
{
    const uint8_t *bytes = step->table->bytes + step->at;
    if (step->table->count - step->at < 2)
        return false;
    step->end += bytes[0];
    step->computed += (int8_t)bytes[1];
    step->at += 2;
    return true;
}

static bool next_310(step_t *step)
{
    const uint8_t *bytes = step->table->bytes + step->at;
    if (step->table->count - step->at < 2)
        return false;
    step->has_line = bytes[1] != 0x80;
    step->end += bytes[0];
    step->computed += step->has_line ? (int8_t)bytes[1] : 0;
    step->at += 2;
    return true;
}

static long read_signed(step_t *step)
{
    unsigned long value = 0;
    for (unsigned shift = 0; step->at < step->table->count && shift < 32; shift += 6) {
        uint8_t byte = step->table->bytes[step->at++];
        value |= (unsigned long)(byte & 0x3f) << shift;
        if (!(byte & 0x40))
            break;
    }
    return value & 1 ? -(long)(value >> 1) : (long)(value >> 1);
}

/* The first byte of an entry alone has its upper bit set. */
static bool next_location(step_t *step)
{
    enum { ONE_LINE = 10, NO_COLUMNS = 13, LONG = 14, NONE = 15 };
    if (step->at >= step->table->count)
        return false;
    uint8_t head = step->table->bytes[step->at++];
    unsigned code = head >> 3 & 15;
    if (!(head & 0x80))
        return false;
    step->has_line = code != NONE;
    if (code >= ONE_LINE && code < NO_COLUMNS)
        step->computed += code - ONE_LINE;
    else if (code == NO_COLUMNS || code == LONG)
        step->computed += read_signed(step);
    step->end += ((head & 7) + 1u) * UNIT;
    while (step->at < step->table->count && !(step->table->bytes[step->at] & 0x80))
        step->at++;
    return true;
}

static bool next(step_t *step)
{
    switch (step->table->form) {
    case CA_PY_LINES_310:
        return next_310(step);
    case CA_PY_LOCATIONS:
        return next_location(step);
    default:
        return false;
    }
}

static unsigned as_line(long line)
{
    return line > 0 && line <= INT32_MAX ? (unsigned)line : 0;
}

unsigned ca_py_line(const ca_py_table_t *table, uint32_t offset)
{
    step_t step = {.table = table, .computed = table->first_line};
    long line = table->first_line;
    if (table->form == CA_PY_LNOTAB) {
        while (next_lnotab(&step) && step.end <= offset)
            line = step.computed;
        return as_line(line);
    }
    while (next(&step)) {
        if (step.has_line)
            line = step.computed;
        if (offset < step.end)
            break;
    }
    return as_line(line);
}

bool ca_py_lines_cover(const ca_py_table_t *table, size_t code_bytes)
{
    step_t step = {.table = table};
    if (table->form == CA_PY_LNOTAB) {
        while (next_lnotab(&step))
            ;
        return table->count % 2 == 0 && step.end <= code_bytes;
    }
    while (next(&step))
        ;
    return step.at == table->count && step.end == code_bytes;
}
