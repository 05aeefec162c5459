/* Reading .eh_frame: an object's table of functions leads to a description of each, whose
 * instructions say, row by row, how to unwind from where in it. */
#include "registry/stack/eh_frame.h"

#if defined(__x86_64__)

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#include "registry/stack/readable.h"

/* DWARF's numbers of registers. */
enum { REG_FP = 6, REG_SP = 7, REG_RETURN = 16 };
/* How addresses are written (LSB 5.0, "DWARF Exception Header Encoding"): the lower half says in
 * how many bytes, the upper what they are relative to. */
enum { ENC_POINTER = 0, ENC_UNSIGNED4 = 3, ENC_SIGNED4 = 0xb, ENC_SIGNED8 = 0xc };
enum { ENC_PC_RELATIVE = 0x10, ENC_TABLE_RELATIVE = 0x30 };
enum { OP_DEREF = 0x06, OP_FP_OFFSET = 0x76 };
enum { REMEMBERED_MOST = 8 };

/* --- reading ---------------------------------------------------------------------------------- */

/* Once something is not as it should be, nothing more is read, and all that is asked for is 0. */
typedef struct bytes {
    const uint8_t *at, *end;
} bytes_t;

static bool have(bytes_t *from, size_t count)
{
    if (from->at && (size_t)(from->end - from->at) >= count)
        return true;
    from->at = NULL;
    return false;
}

static uint64_t fixed(bytes_t *from, size_t count)
{
    uint64_t value = 0;
    if (have(from, count)) {
        memcpy(&value, from->at, count);
        from->at += count;
    }
    return value;
}

static uint64_t leb(bytes_t *from, bool is_signed)
{
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte;
    do {
        byte = (uint8_t)fixed(from, 1);
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    if (is_signed && byte & 0x40 && shift < 64)
        value |= UINT64_MAX << shift;
    return value;
}

static uint64_t unsigned_leb(bytes_t *from)
{
    return leb(from, false);
}

static int64_t signed_leb(bytes_t *from)
{
    return (int64_t)leb(from, true);
}

static void skip(bytes_t *from, uint64_t count)
{
    if (have(from, count))
        from->at += count;
}

/* What is of another form is not there. */
static uintptr_t encoded(bytes_t *from, unsigned encoding)
{
    uintptr_t place = (uintptr_t)from->at, base = encoding & ENC_PC_RELATIVE ? place : 0;
    if (encoding & ~(unsigned)(ENC_PC_RELATIVE | 0xf))
        from->at = NULL;
    switch (encoding & 0xf) {
    case ENC_UNSIGNED4:
        return base + (uint32_t)fixed(from, 4);
    case ENC_SIGNED4:
        return base + (uintptr_t)(intptr_t)(int32_t)fixed(from, 4);
    case ENC_POINTER:
    case ENC_SIGNED8:
        return base + fixed(from, 8);
    default:
        from->at = NULL;
        return 0;
    }
}

/* --- finding a function's entry --------------------------------------------------------------- */

/* <dlfcn.h> of glibc 2.35, on which we do not depend to build. */
typedef struct found_object {
    unsigned long long flags;
    void *map_start, *map_end, *link_map;
    void *eh_frame; /* .eh_frame_hdr */
    unsigned long long reserved[7];
} found_object_t;

static int (*find_object)(void *pc, found_object_t *found);

/* At load: a look-up takes the loader's lock, and at the first allocation that may be held by a
 * thread that waits for this one. */
__attribute__((constructor)) static void look_up_at_load(void)
{
    find_object = (int (*)(void *, found_object_t *))dlsym(RTLD_DEFAULT, "_dl_find_object");
    if (!find_object)
        dlerror(); /* not the program's */
}

typedef struct search {
    uintptr_t address;
    ca_unwind_tables_t tables;
} search_t;

#define CHECKED_MOST ((uint64_t)1 << 16) /* bytes, page by page */

static bool has_unknown_part(const ca_unwind_tables_t *tables, uintptr_t from, uint64_t bytes)
{
    uint64_t checked = bytes < CHECKED_MOST ? bytes : CHECKED_MOST;
    return from >= tables->begin && from < tables->end && bytes <= tables->end - from &&
           ca_readable_end(from, checked) >= from + checked;
}

/* What strips a library of .eh_frame may leave the table, and the table may lead anywhere. */
static bool has(const ca_unwind_tables_t *tables, const uint8_t *at, uint64_t bytes)
{
    const ElfW(Phdr) *parts = tables->parts;
    for (size_t i = 0; i < tables->count; i++) {
        uintptr_t from = (uintptr_t)at - tables->base - parts[i].p_vaddr;
        if (parts[i].p_type == PT_LOAD && from < parts[i].p_memsz &&
            bytes <= parts[i].p_memsz - from)
            return true;
    }
    return tables->count == 0 && has_unknown_part(tables, (uintptr_t)at, bytes);
}

static int search_module(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    search_t *search = arg;
    search->tables = (ca_unwind_tables_t){
        .base = info->dlpi_addr,
        .parts = info->dlpi_phdr,
        .count = info->dlpi_phnum,
    };
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME)
            search->tables.header = (const uint8_t *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return info->dlpi_phnum > 0 && has(&search->tables, (const uint8_t *)search->address, 1);
}

/* What is at the beginning of an object tells its parts, as far as linkers are concerned: tools
 * that change an object move that to its end. */
static void find_parts(ca_unwind_tables_t *tables)
{
    ElfW(Ehdr) elf;
    memcpy(&elf, (const void *)tables->begin, sizeof elf);
    if (memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0 && elf.e_phentsize == sizeof(ElfW(Phdr)) &&
        elf.e_phoff <= 4096 && elf.e_phoff + elf.e_phnum * sizeof(ElfW(Phdr)) <= 4096) {
        tables->parts = (const void *)(tables->begin + elf.e_phoff);
        tables->count = elf.e_phnum;
    }
}

/* False where there is no object. */
static bool tables_of(uintptr_t address, ca_unwind_tables_t *tables)
{
    found_object_t found;
    if (!find_object) {
        search_t search = {.address = address};
        bool found_it = dl_iterate_phdr(search_module, &search) == 1;
        *tables = search.tables;
        return found_it;
    }
    if (find_object((void *)address, &found) != 0)
        return false;
    *tables = (ca_unwind_tables_t){
        .header = found.eh_frame,
        .base = ((const struct link_map *)found.link_map)->l_addr,
        .begin = (uintptr_t)found.map_start,
        .end = (uintptr_t)found.map_end,
    };
    find_parts(tables);
    return true;
}

static int32_t number_at(const uint8_t *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

typedef enum answer { NONE, FOUND, REFUSED } answer_t;

/* The table's entry of the last function that begins at or before the address: sorted numbers from
 * the header on, where the function begins and where its description (FDE) is. Refused where the
 * table is of another form than linkers make it, or leads where nothing is, as what strips an
 * object of .eh_frame may leave it. */
static answer_t entry_of(const ca_unwind_tables_t *tables, uintptr_t address, const uint8_t **found)
{
    enum { ENTRY = 2 * sizeof(int32_t), HEAD = 4 + 16 };
    const uint8_t *header = tables->header;
    if (!header)
        return NONE;
    if (!has(tables, header, HEAD))
        return REFUSED;
    bytes_t bytes = {header + 4, header + HEAD};
    if (header[0] != 1 || header[2] != ENC_UNSIGNED4 ||
        header[3] != (ENC_TABLE_RELATIVE | ENC_SIGNED4))
        return REFUSED;
    encoded(&bytes, header[1]); /* where .eh_frame begins */
    uint32_t low = 0, count = (uint32_t)fixed(&bytes, 4);
    const uint8_t *table = bytes.at;
    if (!table || !has(tables, table, (uint64_t)count * ENTRY))
        return REFUSED;
    int64_t offset = (int64_t)(address - (uintptr_t)header);
    while (count > 1) {
        uint32_t half = count / 2;
        const uint8_t *entry = table + (size_t)(low + half) * ENTRY;
        if (!has(tables, entry, ENTRY)) /* of a large one not all was asked for */
            return REFUSED;
        if (number_at(entry) <= offset) {
            low += half;
            count -= half;
        } else {
            count = half;
        }
    }
    const uint8_t *entry = table + (size_t)low * ENTRY;
    if (count != 0 && !has(tables, entry, ENTRY))
        return REFUSED;
    if (count == 0 || number_at(entry) > offset)
        return NONE;
    *found = entry;
    return FOUND;
}

/* A description, or the common part of some; the 64-bit form is refused, and what is longer than
 * any that a compiler writes. */
static bool entry_there(const ca_unwind_tables_t *tables, const uint8_t *entry)
{
    if (!entry || !has(tables, entry, 4))
        return false;
    uint32_t length = (uint32_t)number_at(entry);
    return length <= CHECKED_MOST && has(tables, entry + 4, length);
}

/* --- its instructions ------------------------------------------------------------------------- */

typedef struct state {
    uint64_t cfa_register; /* 0: an expression */
    int64_t cfa_offset;
    bytes_t cfa_expression;
    enum { SAME, AT_CFA, AT_EXPRESSION, LOST } fp, returns;
    int64_t fp_offset, returns_offset;
    bytes_t fp_expression;
} state_t;

typedef struct machine {
    state_t now, initial, remembered[REMEMBERED_MOST];
    unsigned depth;
    uint64_t code_unit;
    int64_t data_unit;
    unsigned encoding;
    uintptr_t location, address; /* where the rows have come to, and which is wanted */
    bool failed;
    bool signal; /* of a frame that the kernel made */
} machine_t;

static bytes_t block(bytes_t *from)
{
    uint64_t count = unsigned_leb(from);
    bytes_t all = {from->at, from->at};
    skip(from, count);
    all.end = from->at ? from->at : all.at; /* of what does not fit, nothing */
    return all;
}

static void set_rule(machine_t *m, uint64_t reg, int rule, int64_t offset)
{
    if (reg == REG_FP) {
        m->now.fp = rule;
        m->now.fp_offset = offset;
    } else if (reg == REG_RETURN) {
        m->now.returns = rule;
        m->now.returns_offset = offset;
    }
}

static void restore(machine_t *m, uint64_t reg)
{
    if (reg == REG_FP) {
        m->now.fp = m->initial.fp;
        m->now.fp_offset = m->initial.fp_offset;
        m->now.fp_expression = m->initial.fp_expression;
    } else if (reg == REG_RETURN) {
        m->now.returns = m->initial.returns;
        m->now.returns_offset = m->initial.returns_offset;
    }
}

static void set_cfa(machine_t *m, uint64_t reg, int64_t offset)
{
    m->now.cfa_register = reg;
    m->now.cfa_offset = offset;
}

/* Those whose number is in the lower bits. */
enum { CFA_ADVANCE = 0x40, CFA_OFFSET = 0x80, CFA_RESTORE = 0xc0, CFA_OPERAND = 0x3f };
enum {
    CFA_NOP,
    CFA_SET_LOC,
    CFA_ADVANCE1,
    CFA_ADVANCE2,
    CFA_ADVANCE4,
    CFA_OFFSET_EXTENDED,
    CFA_RESTORE_EXTENDED,
    CFA_UNDEFINED,
    CFA_SAME_VALUE,
    CFA_REGISTER,
    CFA_REMEMBER_STATE,
    CFA_RESTORE_STATE,
    CFA_DEF_CFA,
    CFA_DEF_CFA_REGISTER,
    CFA_DEF_CFA_OFFSET,
    CFA_DEF_CFA_EXPRESSION,
    CFA_EXPRESSION,
    CFA_OFFSET_EXTENDED_SF,
    CFA_DEF_CFA_SF,
    CFA_DEF_CFA_OFFSET_SF,
    CFA_VAL_OFFSET,
    CFA_VAL_OFFSET_SF,
    CFA_VAL_EXPRESSION,
    CFA_ARGS_SIZE = 0x2e,
};

/* Of numbers that may be any: what overflows is refused in the end, as too large. */
static int64_t scaled(const machine_t *m, uint64_t number)
{
    return (int64_t)(number * (uint64_t)m->data_unit);
}

static void advance(machine_t *m, uint64_t units)
{
    m->location += units * m->code_unit;
}

static void one_instruction(machine_t *m, bytes_t *from)
{
    uint8_t code = (uint8_t)fixed(from, 1);
    uint64_t reg;
    bytes_t expression;
    switch (code & ~CFA_OPERAND) {
    case CFA_ADVANCE:
        advance(m, code & CFA_OPERAND);
        return;
    case CFA_OFFSET:
        set_rule(m, code & CFA_OPERAND, AT_CFA, scaled(m, unsigned_leb(from)));
        return;
    case CFA_RESTORE:
        restore(m, code & CFA_OPERAND);
        return;
    default:
        break;
    }
    switch (code) {
    case CFA_NOP:
        break;
    case CFA_SET_LOC:
        m->location = encoded(from, m->encoding);
        break;
    case CFA_ADVANCE1:
        advance(m, fixed(from, 1));
        break;
    case CFA_ADVANCE2:
        advance(m, fixed(from, 2));
        break;
    case CFA_ADVANCE4:
        advance(m, fixed(from, 4));
        break;
    case CFA_OFFSET_EXTENDED:
        reg = unsigned_leb(from);
        set_rule(m, reg, AT_CFA, scaled(m, unsigned_leb(from)));
        break;
    case CFA_OFFSET_EXTENDED_SF:
        reg = unsigned_leb(from);
        set_rule(m, reg, AT_CFA, scaled(m, (uint64_t)signed_leb(from)));
        break;
    case CFA_RESTORE_EXTENDED:
        restore(m, unsigned_leb(from));
        break;
    case CFA_UNDEFINED:
        set_rule(m, unsigned_leb(from), LOST, 0);
        break;
    case CFA_SAME_VALUE:
        set_rule(m, unsigned_leb(from), SAME, 0);
        break;
    case CFA_REMEMBER_STATE:
        m->failed |= m->depth == REMEMBERED_MOST;
        if (!m->failed)
            m->remembered[m->depth++] = m->now;
        break;
    case CFA_RESTORE_STATE:
        m->failed |= m->depth == 0;
        if (!m->failed)
            m->now = m->remembered[--m->depth];
        break;
    case CFA_DEF_CFA:
        reg = unsigned_leb(from);
        set_cfa(m, reg, (int64_t)unsigned_leb(from));
        break;
    case CFA_DEF_CFA_SF:
        reg = unsigned_leb(from);
        set_cfa(m, reg, scaled(m, (uint64_t)signed_leb(from)));
        break;
    case CFA_DEF_CFA_REGISTER:
        m->now.cfa_register = unsigned_leb(from);
        break;
    case CFA_DEF_CFA_OFFSET:
        m->now.cfa_offset = (int64_t)unsigned_leb(from);
        break;
    case CFA_DEF_CFA_OFFSET_SF:
        m->now.cfa_offset = scaled(m, (uint64_t)signed_leb(from));
        break;
    case CFA_DEF_CFA_EXPRESSION:
        m->now.cfa_register = 0;
        m->now.cfa_expression = block(from);
        break;
    case CFA_EXPRESSION:
        reg = unsigned_leb(from);
        expression = block(from);
        set_rule(m, reg, AT_EXPRESSION, 0);
        if (reg == REG_FP)
            m->now.fp_expression = expression;
        break;
    case CFA_ARGS_SIZE:
        unsigned_leb(from);
        break;
    default: /* a register saved in another one, or a value that is saved nowhere */
        m->failed = true;
    }
}

static void run(machine_t *m, bytes_t from)
{
    while (!m->failed && from.at && from.at < from.end) {
        one_instruction(m, &from);
        if (m->location > m->address) /* what follows is for instructions after ours */
            return;
    }
    m->failed |= !from.at;
}

/* The common part of descriptions (CIE). False for one of another form. */
static bool read_common(machine_t *m, const uint8_t *common, bool *augmented)
{
    bytes_t bytes = {common, common + 4};
    uint64_t length = fixed(&bytes, 4);
    bytes.end = bytes.at + length;
    bool is_common = fixed(&bytes, 4) == 0;
    unsigned version = (unsigned)fixed(&bytes, 1);
    const char *letters = (const char *)bytes.at;
    if (!is_common || (version != 1 && version != 3))
        return false;
    while (bytes.at && fixed(&bytes, 1) != 0)
        continue;
    m->code_unit = unsigned_leb(&bytes);
    m->data_unit = signed_leb(&bytes);
    uint64_t returns = version == 1 ? fixed(&bytes, 1) : unsigned_leb(&bytes);
    if (!bytes.at || returns != REG_RETURN)
        return false;
    m->encoding = ENC_POINTER;
    m->address = UINTPTR_MAX; /* all of it */
    *augmented = letters[0] == 'z';
    if (!*augmented)
        return letters[0] == '\0' && (run(m, bytes), !m->failed);
    bytes_t data = block(&bytes);
    for (const char *letter = letters + 1; *letter; letter++) {
        if (*letter == 'R') {
            m->encoding = (unsigned)fixed(&data, 1);
        } else if (*letter == 'L') {
            skip(&data, 1);
        } else if (*letter == 'P') {
            unsigned encoding = (unsigned)fixed(&data, 1);
            encoded(&data, encoding & 0xf);
        } else if (*letter == 'S') {
            m->signal = true;
        } else {
            return false;
        }
    }
    if (!m->signal)
        run(m, bytes);
    return data.at && !m->failed;
}

/* [fp + number], and with `deref` what is there. */
static bool beside_fp(bytes_t expression, bool deref, int64_t *offset)
{
    if (fixed(&expression, 1) != OP_FP_OFFSET)
        return false;
    *offset = signed_leb(&expression);
    if (deref && fixed(&expression, 1) != OP_DEREF)
        return false;
    return expression.at && expression.at == expression.end;
}

static bool small(int64_t offset)
{
    return offset == (int32_t)offset;
}

/* False where the rule is none of those that there are. */
static bool as_rule(const state_t *state, ca_frame_rule_t *rule)
{
    int64_t cfa = state->cfa_offset, fp = state->fp_offset;
    *rule = (ca_frame_rule_t){.outermost = state->returns == LOST};
    if (rule->outermost)
        return true;
    if (state->returns != AT_CFA || state->returns_offset != -8)
        return false;
    if (state->cfa_register == REG_SP)
        rule->cfa = CA_CFA_OF_SP;
    else if (state->cfa_register == REG_FP)
        rule->cfa = CA_CFA_OF_FP;
    else if (state->cfa_register == 0 && beside_fp(state->cfa_expression, true, &cfa))
        rule->cfa = CA_CFA_IN_WORD;
    else
        return false;
    if (state->fp == SAME)
        rule->fp = CA_FP_SAME;
    else if (state->fp == AT_CFA)
        rule->fp = CA_FP_BELOW_CFA;
    else if (state->fp == AT_EXPRESSION && beside_fp(state->fp_expression, false, &fp))
        rule->fp = CA_FP_BESIDE_FP;
    else
        return false;
    rule->cfa_offset = (int32_t)cfa;
    rule->fp_offset = (int32_t)fp;
    return small(cfa) && small(fp);
}

static answer_t rule_by(const ca_unwind_tables_t *tables, const uint8_t *description,
                        uintptr_t address, ca_frame_rule_t *rule)
{
    machine_t m = {.code_unit = 1};
    bool augmented = false;
    if (!entry_there(tables, description))
        return REFUSED;
    bytes_t bytes = {description, description + 4};
    uint64_t length = fixed(&bytes, 4);
    bytes.end = bytes.at + length;
    const uint8_t *place = bytes.at;
    const uint8_t *common = place - fixed(&bytes, 4);
    if (!entry_there(tables, common) || !read_common(&m, common, &augmented))
        return REFUSED;
    uintptr_t begin = encoded(&bytes, m.encoding);
    uintptr_t range = encoded(&bytes, m.encoding & 0xf);
    if (augmented)
        block(&bytes);
    if (!bytes.at)
        return REFUSED;
    if (address - begin >= range)
        return NONE;
    *rule = (ca_frame_rule_t){.signal = m.signal};
    if (m.signal)
        return FOUND;
    m.initial = m.now;
    m.location = begin;
    m.address = address;
    run(&m, bytes);
    return !m.failed && as_rule(&m.now, rule) ? FOUND : REFUSED;
}

/* What returns to where a function begins was made to: the first function of a coroutine, which has
 * no caller. */
static bool begins_at(const ca_unwind_tables_t *tables, uintptr_t address)
{
    const uint8_t *entry = NULL;
    return entry_of(tables, address, &entry) == FOUND &&
           (uintptr_t)tables->header + (uintptr_t)(intptr_t)number_at(entry) == address;
}

bool ca_frame_rule_of(const ca_unwind_tables_t *tables, uintptr_t address, ca_frame_rule_t *rule)
{
    const uint8_t *entry = NULL;
    answer_t answer = entry_of(tables, address, &entry);
    if (answer == FOUND)
        answer = rule_by(tables, tables->header + number_at(entry + 4), address, rule);
    if (answer == REFUSED || (answer == NONE && begins_at(tables, address + 1))) {
        *rule = (ca_frame_rule_t){.outermost = true};
        return true;
    }
    return answer == FOUND;
}

bool ca_frame_rule(uintptr_t address, ca_frame_rule_t *rule)
{
    ca_unwind_tables_t tables;
    return tables_of(address, &tables) && ca_frame_rule_of(&tables, address, rule);
}

#else

bool ca_frame_rule_of(const ca_unwind_tables_t *tables, uintptr_t address, ca_frame_rule_t *rule)
{
    (void)tables;
    (void)address;
    (void)rule;
    return false;
}

bool ca_frame_rule(uintptr_t address, ca_frame_rule_t *rule)
{
    (void)address;
    (void)rule;
    return false;
}

#endif
