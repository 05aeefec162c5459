/* A parser of the Itanium C++ ABI's names, by its published grammar, into nodes that are printed
 * afterwards (demangle_cxx_print.c). Nodes, what may be said again, steps and the stack that is
 * taken are all bounded: what is beyond stays mangled. */
#include "registry/names/demangle_cxx.h"

#include <string.h>

#include "registry/names/demangle_cxx_nodes.h"

#define SHOWN_MOST 4096
#define AGAIN_MOST 512u
#define ARGUMENTS_MOST 64u
#define FORWARD_MOST 8u

typedef struct parser {
    ca_cxx_t *cxx;
    const char *at;
    ca_cxx_ref_t again[AGAIN_MOST]; /* components that S_ and those after it stand for */
    unsigned again_count;
    ca_cxx_ref_t arguments[ARGUMENTS_MOST]; /* of the function's template: T_ and so on */
    unsigned argument_count;
    ca_cxx_ref_t forward[FORWARD_MOST]; /* parameters of conversions, whose arguments come later */
    unsigned forward_count;
    unsigned in_lambda, in_conversion;
    ca_cxx_ref_t last_name; /* what a constructor is called */
} parser_t;

/* What a function's name says of its type. */
typedef struct function {
    bool is_template, has_no_result;
    uint8_t qualifiers;
} function_t;

static ca_cxx_ref_t name(parser_t *parser, function_t *function);
static ca_cxx_ref_t type(parser_t *parser);
static ca_cxx_ref_t encoding(parser_t *parser, bool is_top);
static ca_cxx_ref_t expression(parser_t *parser);
static ca_cxx_ref_t arguments(parser_t *parser, bool tag);

/* --- nodes ------------------------------------------------------------------------------------ */

static ca_cxx_ref_t fail(parser_t *parser)
{
    static const char none[] = "";
    parser->cxx->failed = true;
    parser->at = none; /* every loop ends */
    return 0;
}

static ca_cxx_node_t *node_of(const parser_t *parser, ca_cxx_ref_t ref)
{
    return &parser->cxx->nodes[ref];
}

static ca_cxx_ref_t make(parser_t *parser, ca_cxx_kind_t kind, ca_cxx_ref_t a, ca_cxx_ref_t b)
{
    ca_cxx_t *cxx = parser->cxx;
    if (cxx->failed || cxx->count == CA_CXX_NODES)
        return fail(parser);
    cxx->nodes[cxx->count] = (ca_cxx_node_t){.kind = (uint8_t)kind, .a = a, .b = b, .text = ""};
    return cxx->count++;
}

static ca_cxx_ref_t make_with(parser_t *parser, ca_cxx_kind_t kind, const char *text, size_t length,
                              ca_cxx_ref_t a)
{
    ca_cxx_ref_t made = make(parser, kind, a, 0);
    if (length > UINT16_MAX)
        return fail(parser);
    node_of(parser, made)->text = text;
    node_of(parser, made)->length = (uint16_t)length;
    return made;
}

static ca_cxx_ref_t text(parser_t *parser, const char *text)
{
    return make_with(parser, CA_CXX_TEXT, text, strlen(text), 0);
}

static ca_cxx_ref_t numbered(parser_t *parser, ca_cxx_kind_t kind, ca_cxx_ref_t a, unsigned number)
{
    ca_cxx_ref_t made = make(parser, kind, a, 0);
    if (number > UINT8_MAX)
        return fail(parser);
    node_of(parser, made)->number = (uint8_t)number;
    return made;
}

static ca_cxx_ref_t scoped(parser_t *parser, ca_cxx_ref_t scope, ca_cxx_ref_t inner)
{
    return scope ? make(parser, CA_CXX_SCOPED, scope, inner) : inner;
}

static ca_cxx_ref_t remember(parser_t *parser, ca_cxx_ref_t node)
{
    if (parser->again_count == AGAIN_MOST)
        return fail(parser);
    parser->again[parser->again_count++] = node;
    return node;
}

/* --- characters ------------------------------------------------------------------------------- */

static bool take(parser_t *parser, char c)
{
    if (*parser->at != c)
        return false;
    parser->at++;
    return true;
}

static bool take_text(parser_t *parser, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(parser->at, text, length) != 0)
        return false;
    parser->at += length;
    return true;
}

static void want(parser_t *parser, char c)
{
    if (!take(parser, c))
        fail(parser);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static unsigned number(parser_t *parser)
{
    enum { MOST = 1000000 };
    unsigned value = 0;
    if (!is_digit(*parser->at))
        fail(parser);
    for (; is_digit(*parser->at); parser->at++)
        if ((value = value * 10 + (unsigned)(*parser->at - '0')) > MOST)
            return fail(parser);
    return value;
}

/* `_` is 0, `0_` is 1. */
static unsigned sequence(parser_t *parser, unsigned base)
{
    unsigned value = 0;
    if (take(parser, '_'))
        return 0;
    for (;; parser->at++) {
        char c = *parser->at;
        unsigned digit = is_digit(c)            ? (unsigned)(c - '0')
                         : c >= 'A' && c <= 'Z' ? (unsigned)(c - 'A') + 10
                                                : base;
        if (digit >= base)
            break;
        value = value * base + digit;
        if (value > UINT16_MAX)
            return fail(parser);
    }
    want(parser, '_');
    return value + 1;
}

/* --- plain parts of names --------------------------------------------------------------------- */

static ca_cxx_ref_t source_name(parser_t *parser)
{
    static const char nameless[] = "_GLOBAL_";
    unsigned length = number(parser);
    const char *at = parser->at;
    if (length == 0 || strnlen(at, length) < length)
        return fail(parser);
    parser->at += length;
    bool is_nameless = length >= sizeof nameless + 1 &&
                       strncmp(at, nameless, sizeof nameless - 1) == 0 &&
                       strchr("_.$", at[sizeof nameless - 1]) && at[sizeof nameless] == 'N';
    return is_nameless ? text(parser, "(anonymous namespace)")
                       : make_with(parser, CA_CXX_TEXT, at, length, 0);
}

static ca_cxx_ref_t tags(parser_t *parser, ca_cxx_ref_t of)
{
    while (take(parser, 'B')) {
        unsigned length = number(parser);
        if (strnlen(parser->at, length) < length)
            return fail(parser);
        of = make_with(parser, CA_CXX_TAGGED, parser->at, length, of);
        parser->at += parser->cxx->failed ? 0 : length;
    }
    return of;
}

static const struct {
    char code[3];
    uint8_t operands;
    const char *text;
} operators[] = {
    {"nw", 0, " new"},      {"na", 0, " new[]"}, {"dl", 0, " delete"}, {"da", 0, " delete[]"},
    {"aw", 0, " co_await"}, {"ps", 1, "+"},      {"ng", 1, "-"},       {"ad", 1, "&"},
    {"de", 1, "*"},         {"co", 1, "~"},      {"pl", 2, "+"},       {"mi", 2, "-"},
    {"ml", 2, "*"},         {"dv", 2, "/"},      {"rm", 2, "%"},       {"an", 2, "&"},
    {"or", 2, "|"},         {"eo", 2, "^"},      {"aS", 2, "="},       {"pL", 2, "+="},
    {"mI", 2, "-="},        {"mL", 2, "*="},     {"dV", 2, "/="},      {"rM", 2, "%="},
    {"aN", 2, "&="},        {"oR", 2, "|="},     {"eO", 2, "^="},      {"ls", 2, "<<"},
    {"rs", 2, ">>"},        {"lS", 2, "<<="},    {"rS", 2, ">>="},     {"eq", 2, "=="},
    {"ne", 2, "!="},        {"lt", 2, "<"},      {"gt", 2, ">"},       {"le", 2, "<="},
    {"ge", 2, ">="},        {"ss", 2, "<=>"},    {"nt", 1, "!"},       {"aa", 2, "&&"},
    {"oo", 2, "||"},        {"pp", 0, "++"},     {"mm", 0, "--"},      {"cm", 2, ","},
    {"pm", 2, "->*"},       {"pt", 0, "->"},     {"cl", 0, "()"},      {"ix", 0, "[]"}};

#define OPERATORS (sizeof operators / sizeof *operators)

static size_t find_operator(const parser_t *parser)
{
    size_t i = 0;
    while (i < OPERATORS && strncmp(parser->at, operators[i].code, 2) != 0)
        i++;
    return i;
}

static ca_cxx_ref_t operator_name(parser_t *parser, function_t *function)
{
    if (take_text(parser, "cv")) {
        parser->in_conversion++;
        ca_cxx_ref_t to = type(parser);
        parser->in_conversion--;
        if (function)
            function->has_no_result = true;
        return make(parser, CA_CXX_CONVERSION, to, 0);
    }
    if (take_text(parser, "li"))
        return make_with(parser, CA_CXX_PREFIXED, "operator\"\" ", 11, source_name(parser));
    size_t found = find_operator(parser);
    if (found == OPERATORS)
        return fail(parser);
    parser->at += 2;
    return make_with(parser, CA_CXX_PREFIXED, "operator", 8, text(parser, operators[found].text));
}

static ca_cxx_ref_t lambda(parser_t *parser)
{
    ca_cxx_ref_t first = 0, last = 0;
    parser->in_lambda++;
    for (bool nothing = take_text(parser, "vE"); !nothing && !take(parser, 'E');) {
        ca_cxx_ref_t item = make(parser, CA_CXX_LIST, type(parser), 0);
        if (parser->cxx->failed)
            return 0;
        *(last ? &node_of(parser, last)->b : &first) = item;
        last = item;
    }
    parser->in_lambda--;
    return numbered(parser, CA_CXX_LAMBDA, first, sequence(parser, 10) + 1);
}

static ca_cxx_ref_t constructor(parser_t *parser, function_t *function)
{
    bool is_destructor = *parser->at == 'D';
    parser->at++;
    bool inherits = !is_destructor && take(parser, 'I');
    if (*parser->at < '0' || *parser->at > '9' || !parser->last_name)
        return fail(parser);
    parser->at++;
    if (inherits)
        type(parser);
    if (function)
        function->has_no_result = true;
    return is_destructor ? make(parser, CA_CXX_DESTRUCTOR, parser->last_name, 0)
                         : parser->last_name;
}

/* Of an unnamed part. `function`, or NULL, gets what it says. */
static ca_cxx_ref_t unqualified(parser_t *parser, function_t *function)
{
    ca_cxx_ref_t made;
    if (function)
        function->has_no_result = false;
    take(parser, 'L'); /* of this file alone */
    if (is_digit(*parser->at))
        made = parser->last_name = source_name(parser);
    else if (is_lower(*parser->at))
        made = parser->last_name = operator_name(parser, function);
    else if (take_text(parser, "Ul"))
        made = parser->last_name = lambda(parser);
    else if (take_text(parser, "Ut"))
        made = parser->last_name = numbered(parser, CA_CXX_UNNAMED, 0, sequence(parser, 10) + 1);
    else if ((*parser->at == 'C' || *parser->at == 'D') && parser->at[1] != 'C')
        made = constructor(parser, function);
    else
        return fail(parser);
    return tags(parser, made);
}

/* --- what was said before --------------------------------------------------------------------- */

static ca_cxx_ref_t template_parameter(parser_t *parser)
{
    want(parser, 'T');
    unsigned index = sequence(parser, 10);
    if (parser->in_lambda) {
        static const char *const autos[] = {"auto:1", "auto:2", "auto:3", "auto:4",
                                            "auto:5", "auto:6", "auto:7", "auto:8"};
        return index < sizeof autos / sizeof *autos ? text(parser, autos[index]) : fail(parser);
    }
    if (index < parser->argument_count && !parser->in_conversion)
        return make(parser, CA_CXX_PARAMETER, parser->arguments[index], 0);
    if (!parser->in_conversion || parser->forward_count == FORWARD_MOST)
        return fail(parser);
    ca_cxx_ref_t made = numbered(parser, CA_CXX_PARAMETER, 0, index);
    parser->forward[parser->forward_count++] = made;
    return made;
}

static ca_cxx_ref_t std_name(parser_t *parser, const char *inner)
{
    parser->last_name = text(parser, inner);
    return scoped(parser, text(parser, "std"), parser->last_name);
}

/* A constructor's class is shown in full. */
static ca_cxx_ref_t standard(parser_t *parser, char code)
{
    static const struct {
        char code;
        const char *plain, *whole, *called;
    } known[] = {
        {'a', "allocator", "allocator", "allocator"},
        {'b', "basic_string", "basic_string", "basic_string"},
        {'s', "string", "basic_string<char, std::char_traits<char>, std::allocator<char> >",
         "basic_string"},
        {'i', "istream", "basic_istream<char, std::char_traits<char> >", "basic_istream"},
        {'o', "ostream", "basic_ostream<char, std::char_traits<char> >", "basic_ostream"},
        {'d', "iostream", "basic_iostream<char, std::char_traits<char> >", "basic_iostream"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code) {
            bool whole = *parser->at == 'C' || *parser->at == 'D';
            ca_cxx_ref_t made = std_name(parser, whole ? known[i].whole : known[i].plain);
            parser->last_name = text(parser, known[i].called);
            return tags(parser, made);
        }
    return fail(parser);
}

/* Behind the S; `std` is not among them. */
static ca_cxx_ref_t substitution(parser_t *parser)
{
    char c = *parser->at;
    if (is_lower(c)) {
        parser->at++;
        return standard(parser, c);
    }
    unsigned index = sequence(parser, 36);
    return index < parser->again_count ? parser->again[index] : fail(parser);
}

/* --- names ------------------------------------------------------------------------------------ */

static uint8_t qualifiers(parser_t *parser)
{
    uint8_t found = 0;
    found |= take(parser, 'r') ? CA_CXX_RESTRICT : 0;
    found |= take(parser, 'V') ? CA_CXX_VOLATILE : 0;
    found |= take(parser, 'K') ? CA_CXX_CONST : 0;
    return found;
}

/* One more part of a nested name; `*is_new` is whether it may be said again. */
static ca_cxx_ref_t part(parser_t *parser, ca_cxx_ref_t scope, function_t *function, bool *is_new)
{
    char c = parser->at[0], after = c ? parser->at[1] : '\0';
    *is_new = true;
    if (c == 'I' && scope) {
        if (function)
            function->is_template = true;
        return make(parser, CA_CXX_TEMPLATE, scope, arguments(parser, function));
    }
    if (function)
        function->is_template = false;
    if (c == 'S' && after == 't' && !scope) {
        parser->at += 2;
        *is_new = false;
        return text(parser, "std");
    }
    if (c == 'S' && !scope) {
        parser->at++;
        *is_new = false;
        return substitution(parser);
    }
    if (c == 'T' && !scope)
        return template_parameter(parser);
    if (c == 'D' && (after == 't' || after == 'T') && !scope)
        return type(parser);
    return scoped(parser, scope, unqualified(parser, function));
}

static ca_cxx_ref_t nested_name(parser_t *parser, function_t *function)
{
    ca_cxx_ref_t made = 0;
    bool is_new = false;
    uint8_t found = qualifiers(parser);
    found |= take(parser, 'R') ? CA_CXX_LVALUE : take(parser, 'O') ? CA_CXX_RVALUE : 0;
    if (function)
        function->qualifiers = found;
    while (!take(parser, 'E')) {
        if (!ca_cxx_may_go_on(parser->cxx))
            return fail(parser);
        if (made && is_new)
            remember(parser, made);
        made = part(parser, made, function, &is_new);
        take(parser, 'M'); /* of a member's initializer */
    }
    return made ? made : fail(parser);
}

static void discriminator(parser_t *parser)
{
    if (!take(parser, '_'))
        return;
    bool is_long = take(parser, '_');
    if (is_long)
        number(parser);
    else if (is_digit(*parser->at))
        parser->at++;
    if (is_long)
        want(parser, '_');
}

static ca_cxx_ref_t local_name(parser_t *parser, function_t *function)
{
    ca_cxx_ref_t outer = encoding(parser, false);
    want(parser, 'E');
    if (take(parser, 's')) {
        discriminator(parser);
        return scoped(parser, outer, text(parser, "string literal"));
    }
    ca_cxx_ref_t inner = name(parser, function);
    discriminator(parser);
    return scoped(parser, outer, inner);
}

static ca_cxx_ref_t name(parser_t *parser, function_t *function)
{
    ca_cxx_ref_t made;
    bool is_new = true;
    if (!ca_cxx_may_go_on(parser->cxx))
        return fail(parser);
    if (take(parser, 'N'))
        return nested_name(parser, function);
    if (take(parser, 'Z'))
        return local_name(parser, function);
    if (take_text(parser, "St"))
        made = scoped(parser, text(parser, "std"), unqualified(parser, function));
    else if (*parser->at == 'S') {
        parser->at++;
        made = substitution(parser);
        is_new = false;
    } else
        made = unqualified(parser, function);
    if (*parser->at != 'I')
        return is_new ? made : fail(parser);
    if (is_new)
        remember(parser, made);
    if (function)
        function->is_template = true;
    return make(parser, CA_CXX_TEMPLATE, made, arguments(parser, function));
}

/* --- template arguments ----------------------------------------------------------------------- */

static ca_cxx_ref_t literal(parser_t *parser)
{
    ca_cxx_ref_t made;
    if (take_text(parser, "_Z"))
        made = encoding(parser, true);
    else {
        ca_cxx_ref_t of = type(parser);
        size_t length = strcspn(parser->at, "E");
        made = make_with(parser, CA_CXX_LITERAL, parser->at, length, of);
        parser->at += parser->cxx->failed ? 0 : length;
    }
    want(parser, 'E');
    return made;
}

static ca_cxx_ref_t argument(parser_t *parser)
{
    if (take(parser, 'L'))
        return literal(parser);
    if (take(parser, 'X')) {
        ca_cxx_ref_t made = expression(parser);
        want(parser, 'E');
        return made;
    }
    if (*parser->at == 'J')
        return make(parser, CA_CXX_PACK, arguments(parser, false), 0);
    return type(parser);
}

/* `tag`: they are the function's, which its type says again by their numbers. */
static ca_cxx_ref_t arguments(parser_t *parser, bool tag)
{
    ca_cxx_ref_t first = 0, last = 0, kept = parser->last_name;
    unsigned count = 0, in_lambda = parser->in_lambda;
    if (!ca_cxx_may_go_on(parser->cxx) || (*parser->at != 'I' && *parser->at != 'J'))
        return fail(parser);
    parser->at++;
    parser->argument_count = tag ? 0 : parser->argument_count;
    while (!take(parser, 'E')) {
        ca_cxx_ref_t one = argument(parser), item = make(parser, CA_CXX_LIST, one, 0);
        if (parser->cxx->failed)
            return 0;
        *(last ? &node_of(parser, last)->b : &first) = item;
        last = item;
        if (tag && count == ARGUMENTS_MOST)
            return fail(parser);
        if (tag) {
            parser->arguments[count++] = one;
            parser->argument_count = count;
        }
    }
    parser->last_name = kept;
    parser->in_lambda = in_lambda;
    return first;
}

/* --- types ------------------------------------------------------------------------------------ */

static const char *builtin(char c)
{
    static const char *const names[26] = {
        ['v' - 'a'] = "void",        ['w' - 'a'] = "wchar_t",
        ['b' - 'a'] = "bool",        ['c' - 'a'] = "char",
        ['a' - 'a'] = "signed char", ['h' - 'a'] = "unsigned char",
        ['s' - 'a'] = "short",       ['t' - 'a'] = "unsigned short",
        ['i' - 'a'] = "int",         ['j' - 'a'] = "unsigned int",
        ['l' - 'a'] = "long",        ['m' - 'a'] = "unsigned long",
        ['x' - 'a'] = "long long",   ['y' - 'a'] = "unsigned long long",
        ['n' - 'a'] = "__int128",    ['o' - 'a'] = "unsigned __int128",
        ['f' - 'a'] = "float",       ['d' - 'a'] = "double",
        ['e' - 'a'] = "long double", ['g' - 'a'] = "__float128",
        ['z' - 'a'] = "..."};
    return is_lower(c) ? names[c - 'a'] : NULL;
}

/* Types up to the E, or to the end. */
static ca_cxx_ref_t parameters(parser_t *parser)
{
    ca_cxx_ref_t first = 0, last = 0;
    if (*parser->at == 'v' && (parser->at[1] == 'E' || parser->at[1] == '\0')) {
        parser->at++;
        return 0;
    }
    do {
        ca_cxx_ref_t item = make(parser, CA_CXX_LIST, type(parser), 0);
        if (parser->cxx->failed)
            return 0;
        *(last ? &node_of(parser, last)->b : &first) = item;
        last = item;
    } while (*parser->at != '\0' && *parser->at != 'E' &&
             !((*parser->at == 'R' || *parser->at == 'O') && parser->at[1] == 'E'));
    return first;
}

static ca_cxx_ref_t function_type(parser_t *parser, uint8_t found)
{
    if (take_text(parser, "Do"))
        found |= CA_CXX_NOEXCEPT;
    want(parser, 'F');
    take(parser, 'Y');
    ca_cxx_ref_t result = type(parser);
    ca_cxx_ref_t made = make(parser, CA_CXX_FUNCTION, result, parameters(parser));
    found |= take(parser, 'R') ? CA_CXX_LVALUE : take(parser, 'O') ? CA_CXX_RVALUE : 0;
    want(parser, 'E');
    node_of(parser, made)->number = found;
    return remember(parser, made);
}

static ca_cxx_ref_t qualified_type(parser_t *parser)
{
    uint8_t found = qualifiers(parser);
    if (*parser->at == 'F' || strncmp(parser->at, "DoF", 3) == 0)
        return function_type(parser, found);
    return remember(parser, numbered(parser, CA_CXX_CV, type(parser), found));
}

static ca_cxx_ref_t array_type(parser_t *parser)
{
    ca_cxx_ref_t length = 0;
    const char *at = parser->at;
    if (is_digit(*at)) {
        number(parser);
        length = make_with(parser, CA_CXX_TEXT, at,
                           parser->cxx->failed ? 0 : (size_t)(parser->at - at), 0);
    } else if (*at != '_') {
        length = expression(parser);
    }
    want(parser, '_');
    ca_cxx_ref_t of = type(parser);
    return remember(parser, make(parser, CA_CXX_ARRAY, of, length));
}

static ca_cxx_ref_t decltype_of(parser_t *parser)
{
    ca_cxx_ref_t of = expression(parser);
    want(parser, 'E');
    return remember(parser, make_with(parser, CA_CXX_WRAPPED, "decltype ", 9, of));
}

static ca_cxx_ref_t vector_type(parser_t *parser)
{
    const char *at = parser->at;
    number(parser);
    size_t length = parser->cxx->failed ? 0 : (size_t)(parser->at - at);
    want(parser, '_');
    return remember(parser, make_with(parser, CA_CXX_VECTOR, at, length, type(parser)));
}

/* Behind a D. */
static ca_cxx_ref_t later_type(parser_t *parser)
{
    static const struct {
        char code;
        const char *text;
    } known[] = {
        {'n', "decltype(nullptr)"}, {'a', "auto"},     {'c', "decltype(auto)"}, {'i', "char32_t"},
        {'s', "char16_t"},          {'u', "char8_t"},  {'h', "half"},           {'d', "decimal64"},
        {'e', "decimal128"},        {'f', "decimal32"}};
    char c = *parser->at;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == c) {
            parser->at++;
            return text(parser, known[i].text);
        }
    if (take_text(parser, "F16_"))
        return text(parser, "_Float16");
    if (take_text(parser, "F16b"))
        return text(parser, "std::bfloat16_t");
    if (take(parser, 'p'))
        return remember(parser, make(parser, CA_CXX_EXPANSION, type(parser), 0));
    if (take(parser, 't') || take(parser, 'T'))
        return decltype_of(parser);
    if (take(parser, 'v'))
        return vector_type(parser);
    return fail(parser);
}

/* A component with template arguments of its own. */
static ca_cxx_ref_t with_arguments(parser_t *parser, ca_cxx_ref_t of)
{
    if (*parser->at != 'I')
        return of;
    return remember(parser, make(parser, CA_CXX_TEMPLATE, of, arguments(parser, false)));
}

static ca_cxx_ref_t pointer(parser_t *parser, const char *sign)
{
    parser->at++;
    return remember(parser, make_with(parser, CA_CXX_POINTER, sign, strlen(sign), type(parser)));
}

static ca_cxx_ref_t suffixed(parser_t *parser, const char *suffix)
{
    parser->at++;
    return remember(parser,
                    make_with(parser, CA_CXX_SUFFIXED, suffix, strlen(suffix), type(parser)));
}

static ca_cxx_ref_t member_pointer(parser_t *parser)
{
    ca_cxx_ref_t of = type(parser), member = type(parser);
    return remember(parser, make(parser, CA_CXX_MEMBER, of, member));
}

static ca_cxx_ref_t type(parser_t *parser)
{
    ca_cxx_ref_t made;
    if (!ca_cxx_may_go_on(parser->cxx))
        return fail(parser);
    switch (*parser->at) {
    case 'r':
    case 'V':
    case 'K':
        return qualified_type(parser);
    case 'P':
        return pointer(parser, "*");
    case 'R':
        return pointer(parser, "&");
    case 'O':
        return pointer(parser, "&&");
    case 'C':
        return suffixed(parser, " _Complex");
    case 'G':
        return suffixed(parser, " _Imaginary");
    case 'F':
        return function_type(parser, 0);
    case 'A':
        parser->at++;
        return array_type(parser);
    case 'M':
        parser->at++;
        return member_pointer(parser);
    case 'T':
        made = remember(parser, template_parameter(parser));
        /* What follows a conversion's type are arguments of the operator. */
        return parser->in_conversion ? made : with_arguments(parser, made);
    case 'S':
        if (parser->at[1] == 't')
            return remember(parser, name(parser, NULL));
        parser->at++;
        return with_arguments(parser, substitution(parser));
    case 'D':
        if (parser->at[1] == 'o')
            return function_type(parser, 0);
        parser->at++;
        return later_type(parser);
    case 'u':
        parser->at++;
        return remember(parser, source_name(parser));
    default:
        break;
    }
    const char *plain = builtin(*parser->at);
    if (plain) {
        parser->at++;
        return text(parser, plain);
    }
    return remember(parser, name(parser, NULL));
}

/* --- expressions ------------------------------------------------------------------------------ */

/* What is asked of a type, or of what is in it: `sr`. */
static ca_cxx_ref_t resolved_name(parser_t *parser)
{
    ca_cxx_ref_t of = type(parser), inner = unqualified(parser, NULL);
    if (*parser->at == 'I')
        inner = make(parser, CA_CXX_TEMPLATE, inner, arguments(parser, false));
    return scoped(parser, of, inner);
}

static ca_cxx_ref_t call(parser_t *parser)
{
    ca_cxx_ref_t of = expression(parser), first = 0, last = 0;
    while (!take(parser, 'E')) {
        ca_cxx_ref_t item = make(parser, CA_CXX_LIST, expression(parser), 0);
        if (parser->cxx->failed)
            return 0;
        *(last ? &node_of(parser, last)->b : &first) = item;
        last = item;
    }
    return make(parser, CA_CXX_CALL, of, first);
}

static ca_cxx_ref_t operation(parser_t *parser)
{
    size_t found = find_operator(parser);
    unsigned operands = found < OPERATORS ? operators[found].operands : 0;
    if (operands == 0)
        return fail(parser);
    parser->at += 2;
    const char *sign = operators[found].text;
    ca_cxx_ref_t a = expression(parser), b = operands == 2 ? expression(parser) : 0;
    ca_cxx_ref_t made =
        make_with(parser, operands == 2 ? CA_CXX_BINARY : CA_CXX_UNARY, sign, strlen(sign), a);
    node_of(parser, made)->b = b;
    return made;
}

static ca_cxx_ref_t expression(parser_t *parser)
{
    if (!ca_cxx_may_go_on(parser->cxx))
        return fail(parser);
    if (take(parser, 'L'))
        return literal(parser);
    if (*parser->at == 'T')
        return template_parameter(parser);
    if (take_text(parser, "sr"))
        return resolved_name(parser);
    if (take_text(parser, "sp"))
        return make(parser, CA_CXX_EXPANSION, expression(parser), 0);
    if (take_text(parser, "sZ"))
        return make(parser, CA_CXX_SIZE, template_parameter(parser), 0);
    if (take_text(parser, "st"))
        return make_with(parser, CA_CXX_WRAPPED, "sizeof ", 7, type(parser));
    if (take_text(parser, "cl"))
        return call(parser);
    if (is_digit(*parser->at)) {
        ca_cxx_ref_t made = unqualified(parser, NULL);
        return *parser->at == 'I' ? make(parser, CA_CXX_TEMPLATE, made, arguments(parser, false))
                                  : made;
    }
    return operation(parser);
}

/* --- functions -------------------------------------------------------------------------------- */

/* Parameters of a conversion's type, whose template arguments have come since. */
static void resolve_forward(parser_t *parser, unsigned from)
{
    for (unsigned i = from; i < parser->forward_count; i++) {
        ca_cxx_node_t *node = node_of(parser, parser->forward[i]);
        if (node->number >= parser->argument_count) {
            fail(parser);
            return;
        }
        node->a = parser->arguments[node->number];
    }
    parser->forward_count = from;
}

static bool is_at_end(const parser_t *parser)
{
    return *parser->at == '\0' || *parser->at == 'E';
}

static void offset(parser_t *parser)
{
    take(parser, 'n');
    number(parser);
    want(parser, '_');
}

static ca_cxx_ref_t special(parser_t *parser)
{
    static const struct {
        const char *code, *text;
    } of_types[] = {{"TV", "vtable for "},
                    {"TT", "VTT for "},
                    {"TI", "typeinfo for "},
                    {"TS", "typeinfo name for "}},
      of_names[] = {{"GV", "guard variable for "},
                    {"TW", "TLS wrapper function for "},
                    {"TH", "TLS init function for "}};
    for (size_t i = 0; i < sizeof of_types / sizeof *of_types; i++)
        if (take_text(parser, of_types[i].code))
            return make_with(parser, CA_CXX_PREFIXED, of_types[i].text, strlen(of_types[i].text),
                             type(parser));
    for (size_t i = 0; i < sizeof of_names / sizeof *of_names; i++)
        if (take_text(parser, of_names[i].code))
            return make_with(parser, CA_CXX_PREFIXED, of_names[i].text, strlen(of_names[i].text),
                             name(parser, NULL));
    if (take_text(parser, "GTt"))
        return make_with(parser, CA_CXX_PREFIXED, "transaction clone for ", 22,
                         encoding(parser, true));
    bool is_virtual = strncmp(parser->at, "Tv", 2) == 0;
    if (!is_virtual && strncmp(parser->at, "Th", 2) != 0)
        return fail(parser);
    parser->at += 2;
    offset(parser);
    if (is_virtual)
        offset(parser);
    const char *what = is_virtual ? "virtual thunk to " : "non-virtual thunk to ";
    return make_with(parser, CA_CXX_PREFIXED, what, strlen(what), encoding(parser, true));
}

static ca_cxx_ref_t encoding(parser_t *parser, bool is_top)
{
    function_t function = {.is_template = false};
    unsigned forward = parser->forward_count;
    if (!ca_cxx_may_go_on(parser->cxx))
        return fail(parser);
    if (*parser->at == 'T' || *parser->at == 'G')
        return special(parser);
    ca_cxx_ref_t made = name(parser, &function);
    resolve_forward(parser, forward);
    if (is_at_end(parser) || parser->cxx->failed)
        return made;
    bool has_result = function.is_template && !function.has_no_result;
    ca_cxx_ref_t result = has_result ? type(parser) : 0;
    ca_cxx_ref_t takes = parameters(parser);
    ca_cxx_ref_t of = make(parser, CA_CXX_FUNCTION, is_top ? result : 0, takes);
    node_of(parser, of)->number = function.qualifiers;
    return make(parser, CA_CXX_ENCODING, made, of);
}

const char *ca_demangle_cxx(const char *name, size_t stack)
{
    static ca_cxx_t cxx;
    static parser_t parser;
    static char buffer[SHOWN_MOST];
    ca_text_t shown;
    if (strncmp(name, "_Z", 2) != 0)
        return NULL;
    cxx.count = 1; /* 0 is none */
    cxx.steps = 0;
    cxx.failed = false;
    cxx.stack_low = (uintptr_t)__builtin_frame_address(0) - stack;
    parser.cxx = &cxx;
    parser.at = name + 2;
    parser.again_count = parser.argument_count = parser.forward_count = 0;
    parser.in_lambda = parser.in_conversion = 0;
    parser.last_name = 0;
    ca_cxx_ref_t all = encoding(&parser, true);
    if (cxx.failed || *parser.at != '\0')
        return NULL;
    cxx.steps = 0;
    ca_text_init(&shown, buffer, sizeof buffer);
    ca_cxx_print(&cxx, all, &shown);
    return cxx.failed || shown.length == 0 || shown.length >= sizeof buffer ? NULL : buffer;
}
