/* A description's instructions (call frame information) say, row by row, how to unwind from where
 * in its function: they run up to the row that is wanted, which then is one of few forms. */
#include "registry/stack/cfi.h"

#if defined(__x86_64__)

#include "registry/stack/cfi_bytes.h"

/* DWARF's numbers of registers. */
enum { REG_FP = 6, REG_SP = 7, REG_RETURN = 16 };
enum { OP_DEREF = 0x06, OP_FP_OFFSET = 0x76 };
enum { REMEMBERED_MOST = 8 };

typedef struct state {
    uint64_t cfa_register; /* 0: an expression */
    int64_t cfa_offset;
    ca_cfi_bytes_t cfa_expression;
    enum { SAME, AT_CFA, AT_EXPRESSION, LOST } fp, returns;
    int64_t fp_offset, returns_offset;
    ca_cfi_bytes_t fp_expression;
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

/* Of a location, or of the rows that are remembered. False: it is another one. */
static bool moves(machine_t *m, uint8_t code, ca_cfi_bytes_t *from)
{
    switch (code) {
    case CFA_NOP:
        break;
    case CFA_SET_LOC:
        m->location = ca_cfi_encoded(from, m->encoding);
        break;
    case CFA_ADVANCE1:
        advance(m, ca_cfi_fixed(from, 1));
        break;
    case CFA_ADVANCE2:
        advance(m, ca_cfi_fixed(from, 2));
        break;
    case CFA_ADVANCE4:
        advance(m, ca_cfi_fixed(from, 4));
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
    case CFA_ARGS_SIZE:
        ca_cfi_unsigned(from);
        break;
    default:
        return false;
    }
    return true;
}

/* Of the canonical frame address. */
static bool defines_cfa(machine_t *m, uint8_t code, ca_cfi_bytes_t *from)
{
    uint64_t reg;
    switch (code) {
    case CFA_DEF_CFA:
        reg = ca_cfi_unsigned(from);
        set_cfa(m, reg, (int64_t)ca_cfi_unsigned(from));
        break;
    case CFA_DEF_CFA_SF:
        reg = ca_cfi_unsigned(from);
        set_cfa(m, reg, scaled(m, (uint64_t)ca_cfi_signed(from)));
        break;
    case CFA_DEF_CFA_REGISTER:
        m->now.cfa_register = ca_cfi_unsigned(from);
        break;
    case CFA_DEF_CFA_OFFSET:
        m->now.cfa_offset = (int64_t)ca_cfi_unsigned(from);
        break;
    case CFA_DEF_CFA_OFFSET_SF:
        m->now.cfa_offset = scaled(m, (uint64_t)ca_cfi_signed(from));
        break;
    case CFA_DEF_CFA_EXPRESSION:
        m->now.cfa_register = 0;
        m->now.cfa_expression = ca_cfi_block(from);
        break;
    default:
        return false;
    }
    return true;
}

/* Of where a register is saved. */
static bool sets_rule(machine_t *m, uint8_t code, ca_cfi_bytes_t *from)
{
    uint64_t reg;
    ca_cfi_bytes_t expression;
    switch (code) {
    case CFA_OFFSET_EXTENDED:
        reg = ca_cfi_unsigned(from);
        set_rule(m, reg, AT_CFA, scaled(m, ca_cfi_unsigned(from)));
        break;
    case CFA_OFFSET_EXTENDED_SF:
        reg = ca_cfi_unsigned(from);
        set_rule(m, reg, AT_CFA, scaled(m, (uint64_t)ca_cfi_signed(from)));
        break;
    case CFA_RESTORE_EXTENDED:
        restore(m, ca_cfi_unsigned(from));
        break;
    case CFA_UNDEFINED:
        set_rule(m, ca_cfi_unsigned(from), LOST, 0);
        break;
    case CFA_SAME_VALUE:
        set_rule(m, ca_cfi_unsigned(from), SAME, 0);
        break;
    case CFA_EXPRESSION:
        reg = ca_cfi_unsigned(from);
        expression = ca_cfi_block(from);
        set_rule(m, reg, AT_EXPRESSION, 0);
        if (reg == REG_FP)
            m->now.fp_expression = expression;
        break;
    default:
        return false;
    }
    return true;
}

static void one_instruction(machine_t *m, ca_cfi_bytes_t *from)
{
    uint8_t code = (uint8_t)ca_cfi_fixed(from, 1);
    switch (code & ~CFA_OPERAND) {
    case CFA_ADVANCE:
        advance(m, code & CFA_OPERAND);
        return;
    case CFA_OFFSET:
        set_rule(m, code & CFA_OPERAND, AT_CFA, scaled(m, ca_cfi_unsigned(from)));
        return;
    case CFA_RESTORE:
        restore(m, code & CFA_OPERAND);
        return;
    default:
        break;
    }
    /* Else a register saved in another one, or a value that is saved nowhere. */
    m->failed |= !moves(m, code, from) && !defines_cfa(m, code, from) && !sets_rule(m, code, from);
}

static void run(machine_t *m, ca_cfi_bytes_t from)
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
    ca_cfi_bytes_t bytes = {common, common + 4};
    uint64_t length = ca_cfi_fixed(&bytes, 4);
    bytes.end = bytes.at + length;
    bool is_common = ca_cfi_fixed(&bytes, 4) == 0;
    unsigned version = (unsigned)ca_cfi_fixed(&bytes, 1);
    const char *letters = (const char *)bytes.at;
    if (!is_common || (version != 1 && version != 3))
        return false;
    while (bytes.at && ca_cfi_fixed(&bytes, 1) != 0)
        continue;
    m->code_unit = ca_cfi_unsigned(&bytes);
    m->data_unit = ca_cfi_signed(&bytes);
    uint64_t returns = version == 1 ? ca_cfi_fixed(&bytes, 1) : ca_cfi_unsigned(&bytes);
    if (!bytes.at || returns != REG_RETURN)
        return false;
    m->encoding = CA_ENC_POINTER;
    m->address = UINTPTR_MAX; /* all of it */
    *augmented = letters[0] == 'z';
    if (!*augmented)
        return letters[0] == '\0' && (run(m, bytes), !m->failed);
    ca_cfi_bytes_t data = ca_cfi_block(&bytes);
    for (const char *letter = letters + 1; *letter; letter++) {
        if (*letter == 'R') {
            m->encoding = (unsigned)ca_cfi_fixed(&data, 1);
        } else if (*letter == 'L') {
            ca_cfi_skip(&data, 1);
        } else if (*letter == 'P') {
            unsigned encoding = (unsigned)ca_cfi_fixed(&data, 1);
            ca_cfi_encoded(&data, encoding & 0xf);
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
static bool beside_fp(ca_cfi_bytes_t expression, bool deref, int64_t *offset)
{
    if (ca_cfi_fixed(&expression, 1) != OP_FP_OFFSET)
        return false;
    *offset = ca_cfi_signed(&expression);
    if (deref && ca_cfi_fixed(&expression, 1) != OP_DEREF)
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

ca_cfi_answer_t ca_cfi_rule(const uint8_t *description, const uint8_t *common, uintptr_t address,
                            ca_frame_rule_t *rule)
{
    machine_t m = {.code_unit = 1};
    bool augmented = false;
    ca_cfi_bytes_t bytes = {description, description + 4};
    uint64_t length = ca_cfi_fixed(&bytes, 4);
    bytes.end = bytes.at + length;
    ca_cfi_skip(&bytes, 4); /* where the common part is */
    if (!read_common(&m, common, &augmented))
        return CA_CFI_REFUSED;
    uintptr_t begin = ca_cfi_encoded(&bytes, m.encoding);
    uintptr_t range = ca_cfi_encoded(&bytes, m.encoding & 0xf);
    if (augmented)
        ca_cfi_block(&bytes);
    if (!bytes.at)
        return CA_CFI_REFUSED;
    if (address - begin >= range)
        return CA_CFI_NONE;
    *rule = (ca_frame_rule_t){.signal = m.signal};
    if (m.signal)
        return CA_CFI_FOUND;
    m.initial = m.now;
    m.location = begin;
    m.address = address;
    run(&m, bytes);
    return !m.failed && as_rule(&m.now, rule) ? CA_CFI_FOUND : CA_CFI_REFUSED;
}

#endif
