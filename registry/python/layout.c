/* What a version has is checked against what its types say of themselves (their members and sizes,
 * which Python programs see), so that a layout that is not this interpreter's is not used. */
#include "registry/python/layout.h"

#include <stddef.h>
#include <string.h>

#include "base/mutation.h"
#include "registry/python/layout_tables.h"
#include "registry/python/reader.h"

#define OLDEST 8u
#define NEWEST 15u
#define OFFSET_MOST (1u << 22) /* of a table: states have some hundreds of kilobytes */

/* A reference without its flags. */
#define UNTAGGED (~(uintptr_t)7)

/* --- the interpreter's own table -------------------------------------------------------------- */

#define TABLE_MAGIC "xdebugpy"
#define TABLE_HEAD 3u                /* words: magic, version, whether free-threaded */
#define VERSION_AFTER_FIRST_LINE 24u /* co_version, which the table leaves out */
#define COMPACT_AFTER_ASCII_OLD 24u  /* what PyCompactUnicodeObject adds, up to 3.11 */
#define COMPACT_AFTER_ASCII 16u      /* and since */
#define NO_WORD 0u

/* Which word of it says what: the table itself grows with each version. */
typedef struct table_words {
    uint8_t number, generation, interpreter, frame, thread;
    uint8_t previous, code, instruction, owner;
    uint8_t file, name, qualname, lines, first_line, bytecode;
    uint8_t type, bytes_length, bytes_data, str_state, str_length, str_ascii;
} table_words_t;

static const table_words_t words_313 = {7,  NO_WORD, 22, 23, 24, 29, 30, 31, 33, 35, 36,
                                        37, 38,      39, 43, 45, 65, 66, 68, 69, 70};
static const table_words_t words_314 = {7,  20, 25, 26, 27, 32, 33, 34, 36, 40, 41,
                                        42, 43, 44, 48, 51, 75, 76, 78, 79, 80};
static const table_words_t words_315 = {7,  20, 25, 26, 30, 40, 41, 42, 44, 48, 49,
                                        50, 51, 52, 56, 59, 87, 88, 90, 91, 92};

static bool read_table(uintptr_t table, const table_words_t *words, ca_py_layout_t *layout)
{
    const struct {
        uint32_t *to;
        uint8_t word;
    } fields[] = {
        {&layout->number, words->number},
        {&layout->generation, words->generation},
        {&layout->state.interpreter, words->interpreter},
        {&layout->state.frame, words->frame},
        {&layout->state.thread, words->thread},
        {&layout->frame.previous, words->previous},
        {&layout->frame.code, words->code},
        {&layout->frame.instruction, words->instruction},
        {&layout->frame.owner, words->owner},
        {&layout->code.file, words->file},
        {&layout->code.name, words->name},
        {&layout->code.qualname, words->qualname},
        {&layout->code.lines, words->lines},
        {&layout->code.first_line, words->first_line},
        {&layout->code.bytecode, words->bytecode},
        {&layout->type, words->type},
        {&layout->bytes.length, words->bytes_length},
        {&layout->bytes.data, words->bytes_data},
        {&layout->str.state, words->str_state},
        {&layout->str.length, words->str_length},
        {&layout->str.ascii, words->str_ascii},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].word == NO_WORD)
            continue;
        uint64_t offset = ca_py_word(table + fields[i].word * sizeof offset);
        if (offset > OFFSET_MOST)
            return false;
        *fields[i].to = (uint32_t)offset;
    }
    layout->code.called = layout->code.qualname;
    layout->code.version = layout->code.first_line + VERSION_AFTER_FIRST_LINE;
    layout->str.compact = layout->str.ascii + COMPACT_AFTER_ASCII;
    return true;
}

static const char *make_by_table(const ca_py_symbols_t *symbols, unsigned version,
                                 ca_py_layout_t *layout)
{
    const table_words_t *words = layout->minor == 13   ? &words_313
                                 : layout->minor == 14 ? &words_314
                                                       : &words_315;
    uint64_t magic, head[TABLE_HEAD];
    memcpy(&magic, TABLE_MAGIC, sizeof magic);
    for (size_t i = 0; symbols->runtime && i < TABLE_HEAD; i++)
        head[i] = ca_py_word(symbols->runtime + i * sizeof head[0]);
    if (!symbols->runtime || head[0] != magic || head[1] != version)
        return "its table of offsets is not there";
    /* Bytecode of a thread's own lies outside of the code. */
    if (head[2] != 0 && layout->minor >= 14)
        return "it is free-threaded";
    layout->places = CA_PY_ENTRY_FRAME;
    layout->lines = CA_PY_LOCATIONS;
    layout->instruction_unit = 2;
    layout->code_mask = layout->minor >= 14 ? UNTAGGED : UINTPTR_MAX;
    layout->instruction_mask = UINT64_MAX;
    return read_table(symbols->runtime, words, layout) ? NULL : "its table of offsets is odd";
}

/* --- what types say of themselves ------------------------------------------------------------- */

/* PyTypeObject behind the head of an object with a size, as it has been since 3.0; and a member. */
enum { TYPE_BASIC_SIZE = 8, TYPE_MEMBERS = 216, MEMBERS_MOST = 64, MEMBER_BYTES = 40 };
enum { MEMBER_NAME = 0, MEMBER_OFFSET = 16 };
#define LASTI_AFTER_TRACE_LINES 12u /* on 3.10, which has no member f_lasti */

static uint64_t of_type(const ca_py_layout_t *layout, uintptr_t type, unsigned field)
{
    return ca_py_word(type + layout->bytes.length + sizeof(uint64_t) + field);
}

static bool is_text(ca_py_reader_t *reader, uintptr_t at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return ca_py_readable(reader, at, bytes) && memcmp((const void *)at, text, bytes) == 0;
}

static bool has_member(const ca_py_layout_t *layout, uintptr_t type, const char *name,
                       uint32_t offset)
{
    ca_py_reader_t reader = {.guarded = true};
    uintptr_t member = of_type(layout, type, TYPE_MEMBERS);
    for (unsigned i = 0; i < MEMBERS_MOST; i++, member += MEMBER_BYTES) {
        if (!ca_py_readable(&reader, member, MEMBER_BYTES))
            return false;
        uintptr_t its_name = ca_py_word(member + MEMBER_NAME);
        if (its_name == 0)
            return false;
        if (is_text(&reader, its_name, name))
            return ca_py_word(member + MEMBER_OFFSET) == offset;
    }
    return false;
}

static bool is_frame_proven(const ca_py_layout_t *layout, uintptr_t frame)
{
    uint32_t instruction = layout->frame.instruction;
    return frame && has_member(layout, frame, "f_back", layout->frame.previous) &&
           has_member(layout, frame, "f_code", layout->frame.code) &&
           (layout->minor == 10
                ? has_member(layout, frame, "f_trace_lines", instruction - LASTI_AFTER_TRACE_LINES)
                : has_member(layout, frame, "f_lasti", instruction));
}

static bool are_texts_proven(const ca_py_symbols_t *symbols, const ca_py_layout_t *layout)
{
    uint32_t more = layout->minor < 12 ? COMPACT_AFTER_ASCII_OLD : COMPACT_AFTER_ASCII;
    return of_type(layout, symbols->bytes_type, TYPE_BASIC_SIZE) == layout->bytes.data + 1 &&
           of_type(layout, symbols->str_type, TYPE_BASIC_SIZE) ==
               layout->str.compact + sizeof(uint64_t) &&
           layout->str.compact - layout->str.ascii == more;
}

bool ca_py_layout_is_proven(const ca_py_symbols_t *symbols, const ca_py_layout_t *layout)
{
    if (CA_MUTATED(python_unproven))
        return true;
    uintptr_t code = symbols->code_type;
    uint32_t called = layout->code.qualname ? layout->code.qualname : layout->code.name;
    bool agrees = are_texts_proven(symbols, layout) && layout->code.called == called &&
                  has_member(layout, code, "co_filename", layout->code.file) &&
                  has_member(layout, code, "co_name", layout->code.name) &&
                  has_member(layout, code, "co_firstlineno", layout->code.first_line) &&
                  has_member(layout, code, layout->minor < 10 ? "co_lnotab" : "co_linetable",
                             layout->code.lines);
    if (layout->minor < 11)
        return agrees && has_member(layout, code, "co_code", layout->code.bytecode) &&
               is_frame_proven(layout, symbols->frame_type);
    return agrees && has_member(layout, code, "co_qualname", layout->code.qualname) &&
           of_type(layout, code, TYPE_BASIC_SIZE) == layout->code.bytecode;
}

/* --- the version ------------------------------------------------------------------------------ */

#define RELEASE 0xfu
#define CANDIDATE 0xcu

static unsigned hex_of(const char *text)
{
    unsigned major = 0, minor = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        major = major * 10 + (unsigned)(*text - '0');
    if (*text++ != '.')
        return 0;
    for (; *text >= '0' && *text <= '9' && minor < 100; text++)
        minor = minor * 10 + (unsigned)(*text - '0');
    return major << 24 | minor << 16 | RELEASE << 4;
}

static unsigned version_of(const ca_py_symbols_t *symbols)
{
    typedef const char *get_version_t(void);
    if (symbols->version)
        return ca_py_half(symbols->version);
    return symbols->get_version ? hex_of(((get_version_t *)symbols->get_version)()) : 0;
}

const char *ca_py_layout_make(const ca_py_symbols_t *symbols, ca_py_layout_t *layout)
{
    unsigned version = version_of(symbols), level = version >> 4 & 0xf;
    unsigned minor = version >> 16 & 0xff;
    const char *wrong = NULL;
    if (version >> 24 != 3 || minor < OLDEST || minor > NEWEST)
        return "its version is not known";
    if (level != RELEASE && level != CANDIDATE)
        return "it is a version before a release";
    *layout = minor < 10    ? ca_py_layout_38
              : minor == 10 ? ca_py_layout_310
              : minor == 11 ? ca_py_layout_311
              : minor == 12 ? ca_py_layout_312
                            : (ca_py_layout_t){0};
    layout->minor = minor;
    if (minor > 12)
        wrong = make_by_table(symbols, version, layout);
    if (layout->instruction_is_index && CA_MUTATED(python_index_single))
        layout->instruction_unit = 1;
    layout->code_type = symbols->code_type;
    layout->str_type = symbols->str_type;
    layout->bytes_type = symbols->bytes_type;
    if (!wrong && !ca_py_layout_is_proven(symbols, layout))
        wrong = "its objects are not as those of its version";
    return wrong;
}
