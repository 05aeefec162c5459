/* A type is printed in two halves, for what it is the type of stands amid it: `int (*` and
 * `)(int)`. Blanks and parentheses are those of GCC's run-time. */
#include "registry/names/demangle_cxx_nodes.h"

#include <string.h>

#define STEPS_INWARDS 64u /* from a type to what it is made of */

typedef struct printer {
    ca_cxx_t *cxx;
    ca_text_t *shown;
    bool removed; /* just now, a comma and a blank */
    bool in_pack;
    unsigned index; /* of what is expanded, in its pack */
} printer_t;

static void left(printer_t *printer, ca_cxx_ref_t ref);
static void right(printer_t *printer, ca_cxx_ref_t ref);

static const ca_cxx_node_t *node_of(const printer_t *printer, ca_cxx_ref_t ref)
{
    return &printer->cxx->nodes[ref];
}

static void add(printer_t *printer, const char *text, size_t length)
{
    ca_text_add(printer->shown, text, length);
    printer->removed &= length == 0;
    printer->cxx->failed |= printer->shown->length >= printer->shown->bytes;
}

static void print(printer_t *printer, const char *text)
{
    add(printer, text, strlen(text));
}

static void add_number(printer_t *printer, unsigned number)
{
    char digits[16];
    ca_text_t text;
    ca_text_init(&text, digits, sizeof digits);
    ca_text_printf(&text, "%u", number);
    print(printer, digits);
}

static void remove_from(printer_t *printer, size_t length)
{
    printer->removed = length != printer->shown->length;
    printer->shown->length = length;
}

/* The run-time looks at a blank that it has removed, too. */
static char last(const printer_t *printer)
{
    size_t length = printer->shown->length;
    if (printer->removed)
        return ' ';
    return length && length < printer->shown->bytes ? printer->shown->buffer[length - 1] : '\0';
}

static void both(printer_t *printer, ca_cxx_ref_t ref)
{
    left(printer, ref);
    right(printer, ref);
}

/* --- packs ------------------------------------------------------------------------------------ */

static ca_cxx_ref_t nth(const printer_t *printer, ca_cxx_ref_t list, unsigned index)
{
    for (; list && index != 0; index--)
        list = node_of(printer, list)->b;
    return list ? node_of(printer, list)->a : 0;
}

/* What a parameter stands for. */
static ca_cxx_ref_t resolve(const printer_t *printer, ca_cxx_ref_t ref)
{
    bool in_pack = printer->in_pack;
    for (unsigned steps = 0; steps < STEPS_INWARDS; steps++) {
        const ca_cxx_node_t *node = node_of(printer, ref);
        if (node->kind == CA_CXX_PARAMETER && node->a) {
            ref = node->a;
        } else if (node->kind == CA_CXX_PACK && in_pack) {
            ref = nth(printer, node->a, printer->index);
            in_pack = false;
        } else {
            return ref;
        }
    }
    return 0;
}

/* The pack in a pattern; 0 where there is none. */
static ca_cxx_ref_t find_pack(printer_t *printer, ca_cxx_ref_t ref)
{
    const ca_cxx_node_t *node = node_of(printer, ref);
    if (ref == 0 || !ca_cxx_may_go_on(printer->cxx) || node->kind == CA_CXX_EXPANSION ||
        node->kind == CA_CXX_LAMBDA)
        return 0;
    if (node->kind == CA_CXX_PACK)
        return ref;
    ca_cxx_ref_t found = find_pack(printer, node->a);
    return found ? found : find_pack(printer, node->b);
}

static void expand(printer_t *printer, const ca_cxx_node_t *node)
{
    ca_cxx_ref_t pack = find_pack(printer, node->a);
    printer_t within = *printer;
    if (pack == 0) {
        const ca_cxx_node_t *pattern = node_of(printer, node->a);
        bool simple = pattern->kind == CA_CXX_TEXT || pattern->kind == CA_CXX_PARAMETER;
        print(printer, simple ? "" : "(");
        both(printer, node->a);
        print(printer, simple ? "..." : ")...");
        return;
    }
    within.in_pack = true;
    within.index = 0;
    for (ca_cxx_ref_t at = node_of(printer, pack)->a; at && !printer->cxx->failed;
         at = node_of(printer, at)->b) {
        print(&within, within.index ? ", " : "");
        both(&within, node->a);
        within.index++;
    }
    printer->removed = within.removed;
}

/* It may have packs of its own. */
static void one_of_pack(printer_t *printer, const ca_cxx_node_t *pack,
                        void (*half)(printer_t *, ca_cxx_ref_t))
{
    printer->in_pack = false;
    half(printer, nth(printer, pack->a, printer->index));
    printer->in_pack = true;
}

/* --- lists ------------------------------------------------------------------------------------ */

/* An empty pack has no comma. */
static void list(printer_t *printer, ca_cxx_ref_t ref)
{
    bool any = false;
    for (; ref && !printer->cxx->failed; ref = node_of(printer, ref)->b) {
        size_t before = printer->shown->length;
        print(printer, any ? ", " : "");
        size_t begin = printer->shown->length;
        both(printer, node_of(printer, ref)->a);
        if (printer->shown->length != begin)
            any = true;
        else if (!printer->cxx->failed)
            remove_from(printer, before);
    }
}

static void template(printer_t *printer, const ca_cxx_node_t *node)
{
    both(printer, node->a);
    print(printer, last(printer) == '<' ? " <" : "<");
    list(printer, node->b);
    print(printer, last(printer) == '>' ? " >" : ">");
}

static void qualifiers(printer_t *printer, unsigned which)
{
    static const struct {
        unsigned bit;
        const char *text;
    } known[] = {{CA_CXX_CONST, " const"},       {CA_CXX_VOLATILE, " volatile"},
                 {CA_CXX_RESTRICT, " restrict"}, {CA_CXX_NOEXCEPT, " noexcept"},
                 {CA_CXX_LVALUE, " &"},          {CA_CXX_RVALUE, " &&"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (which & known[i].bit)
            print(printer, known[i].text);
}

/* --- types ------------------------------------------------------------------------------------ */

static uint8_t kind_of(const printer_t *printer, ca_cxx_ref_t ref)
{
    return node_of(printer, ref)->kind;
}

/* What a pointer to it needs parentheses for; a qualifier is no matter. */
static bool is_inside_out(const printer_t *printer, ca_cxx_ref_t ref)
{
    ref = resolve(printer, ref);
    for (unsigned steps = 0; kind_of(printer, ref) == CA_CXX_CV && steps < STEPS_INWARDS; steps++)
        ref = resolve(printer, node_of(printer, ref)->a);
    return kind_of(printer, ref) == CA_CXX_FUNCTION || kind_of(printer, ref) == CA_CXX_ARRAY;
}

static void open(printer_t *printer, ca_cxx_ref_t to)
{
    if (is_inside_out(printer, to))
        print(printer, last(printer) == ' ' ? "(" : " (");
}

static void close(printer_t *printer, ca_cxx_ref_t to)
{
    if (is_inside_out(printer, to))
        print(printer, ")");
}

static bool is_reference(const ca_cxx_node_t *node)
{
    return node->kind == CA_CXX_POINTER && node->text[0] == '&';
}

/* A reference to a reference is one, of one ampersand where either has one: the node to be shown
 * as such, and how. */
static ca_cxx_ref_t collapse(const printer_t *printer, ca_cxx_ref_t to, size_t *length)
{
    for (unsigned steps = 0; steps < STEPS_INWARDS; steps++) {
        const ca_cxx_node_t *node = node_of(printer, resolve(printer, to));
        if (!is_reference(node))
            break;
        *length = node->length < *length ? node->length : *length;
        to = node->a;
    }
    return to;
}

static void pointer_left(printer_t *printer, const ca_cxx_node_t *node)
{
    size_t length = node->length;
    ca_cxx_ref_t to = is_reference(node) ? collapse(printer, node->a, &length) : node->a;
    bool in_pack = printer->in_pack;
    printer->in_pack = in_pack && to == node->a; /* else it is one of the pack's */
    left(printer, to);
    open(printer, to);
    add(printer, node->text, length);
    printer->in_pack = in_pack;
}

static void pointer_right(printer_t *printer, const ca_cxx_node_t *node)
{
    size_t length = node->length;
    ca_cxx_ref_t to = is_reference(node) ? collapse(printer, node->a, &length) : node->a;
    bool in_pack = printer->in_pack;
    printer->in_pack = in_pack && to == node->a;
    close(printer, to);
    right(printer, to);
    printer->in_pack = in_pack;
}

static void member_left(printer_t *printer, const ca_cxx_node_t *node)
{
    left(printer, node->b);
    open(printer, node->b);
    print(printer, last(printer) == '(' ? "" : " ");
    both(printer, node->a);
    print(printer, "::*");
}

/* A qualifier counts once, of an array those of its elements. */
static void cv_left(printer_t *printer, const ca_cxx_node_t *node)
{
    left(printer, node->a);
    unsigned which = node->number;
    const ca_cxx_node_t *inner = node_of(printer, resolve(printer, node->a));
    if (inner->kind == CA_CXX_CV)
        which &= ~inner->number;
    if (inner->kind != CA_CXX_FUNCTION)
        qualifiers(printer, which);
}

static void cv_right(printer_t *printer, const ca_cxx_node_t *node)
{
    right(printer, node->a);
    if (kind_of(printer, resolve(printer, node->a)) == CA_CXX_FUNCTION)
        qualifiers(printer, node->number);
}

static void function_right(printer_t *printer, const ca_cxx_node_t *node)
{
    print(printer, "(");
    list(printer, node->b);
    print(printer, ")");
    qualifiers(printer, node->number);
    right(printer, node->a);
}

static void array_right(printer_t *printer, const ca_cxx_node_t *node)
{
    print(printer, last(printer) == ']' ? "[" : " [");
    both(printer, node->b);
    print(printer, "]");
    right(printer, node->a);
}

/* --- functions and expressions ---------------------------------------------------------------- */

static void encoding(printer_t *printer, const ca_cxx_node_t *node)
{
    const ca_cxx_node_t *type = node_of(printer, node->b);
    left(printer, type->a);
    print(printer,
          type->a && !(last(printer) == '*' &&
                       is_inside_out(printer, node_of(printer, resolve(printer, type->a))->a))
              ? " "
              : "");
    both(printer, node->a);
    function_right(printer, type);
}

static void operand(printer_t *printer, ca_cxx_ref_t ref)
{
    ca_cxx_ref_t it = ref;
    uint8_t kind = kind_of(printer, it);
    bool simple = kind == CA_CXX_TEXT || kind == CA_CXX_SCOPED;
    print(printer, simple ? "" : "(");
    both(printer, ref);
    print(printer, simple ? "" : ")");
}

/* The address of a member function is shown without its arguments. */
static void unary(printer_t *printer, const ca_cxx_node_t *node)
{
    const ca_cxx_node_t *of = node_of(printer, node->a);
    bool strips = node->length == 1 && node->text[0] == '&' && of->kind == CA_CXX_ENCODING &&
                  kind_of(printer, of->a) == CA_CXX_SCOPED;
    add(printer, node->text, node->length);
    operand(printer, strips ? of->a : node->a);
}

static void binary(printer_t *printer, const ca_cxx_node_t *node)
{
    bool closes = node->length == 1 && node->text[0] == '>';
    print(printer, closes ? "(" : "");
    operand(printer, node->a);
    add(printer, node->text, node->length);
    operand(printer, node->b);
    print(printer, closes ? ")" : "");
}

static void literal(printer_t *printer, const ca_cxx_node_t *node)
{
    static const struct {
        const char *type, *suffix;
    } known[] = {{"int", ""},         {"unsigned int", "u"},
                 {"long", "l"},       {"unsigned long", "ul"},
                 {"long long", "ll"}, {"unsigned long long", "ull"}};
    const ca_cxx_node_t *type = node_of(printer, resolve(printer, node->a));
    const char *value = node->text;
    size_t length = node->length;
    bool is_plain = type->kind == CA_CXX_TEXT;
    if (is_plain && strcmp(type->text, "bool") == 0 && length == 1 && strchr("01", value[0])) {
        print(printer, value[0] == '1' ? "true" : "false");
        return;
    }
    const char *suffix = NULL;
    for (size_t i = 0; is_plain && !suffix && i < sizeof known / sizeof *known; i++)
        if (strcmp(type->text, known[i].type) == 0)
            suffix = known[i].suffix;
    if (!suffix) {
        print(printer, "(");
        both(printer, node->a);
        print(printer, ")");
    }
    bool is_float =
        is_plain && (strcmp(type->text, "float") == 0 || strcmp(type->text, "double") == 0);
    print(printer, length && value[0] == 'n' ? "-" : "");
    print(printer, is_float ? "[" : "");
    add(printer, value + (length && value[0] == 'n'), length - (length && value[0] == 'n'));
    print(printer, is_float ? "]" : "");
    print(printer, suffix ? suffix : "");
}

static void size_of_pack(printer_t *printer, const ca_cxx_node_t *node)
{
    ca_cxx_ref_t pack = find_pack(printer, node->a);
    unsigned count = 0;
    for (ca_cxx_ref_t at = pack ? node_of(printer, pack)->a : 0; at; at = node_of(printer, at)->b)
        count++;
    printer->cxx->failed |= pack == 0;
    add_number(printer, count);
}

static void lambda(printer_t *printer, const ca_cxx_node_t *node)
{
    print(printer, "{lambda(");
    list(printer, node->a);
    print(printer, ")#");
    add_number(printer, node->number);
    print(printer, "}");
}

static void left(printer_t *printer, ca_cxx_ref_t ref)
{
    const ca_cxx_node_t *node = node_of(printer, ref);
    if (ref == 0 || !ca_cxx_may_go_on(printer->cxx))
        return;
    switch ((ca_cxx_kind_t)node->kind) {
    case CA_CXX_TEXT:
        add(printer, node->text, node->length);
        break;
    case CA_CXX_SCOPED:
        both(printer, node->a);
        print(printer, "::");
        both(printer, node->b);
        break;
    case CA_CXX_TEMPLATE:
        template(printer, node);
        break;
    case CA_CXX_LIST:
        list(printer, ref);
        break;
    case CA_CXX_PARAMETER:
        left(printer, node->a);
        break;
    case CA_CXX_PACK:
        if (printer->in_pack)
            one_of_pack(printer, node, left);
        else
            list(printer, node->a);
        break;
    case CA_CXX_EXPANSION:
        expand(printer, node);
        break;
    case CA_CXX_CV:
        cv_left(printer, node);
        break;
    case CA_CXX_SUFFIXED:
        left(printer, node->a);
        add(printer, node->text, node->length);
        break;
    case CA_CXX_POINTER:
        pointer_left(printer, node);
        break;
    case CA_CXX_MEMBER:
        member_left(printer, node);
        break;
    case CA_CXX_FUNCTION:
        left(printer, node->a);
        print(printer, node->a ? " " : "");
        break;
    case CA_CXX_ARRAY:
        left(printer, node->a);
        break;
    case CA_CXX_VECTOR:
        left(printer, node->a);
        print(printer, " __vector(");
        add(printer, node->text, node->length);
        print(printer, ")");
        break;
    case CA_CXX_ENCODING:
        encoding(printer, node);
        break;
    case CA_CXX_PREFIXED:
        add(printer, node->text, node->length);
        both(printer, node->a);
        break;
    case CA_CXX_DESTRUCTOR:
        print(printer, "~");
        both(printer, node->a);
        break;
    case CA_CXX_CONVERSION:
        print(printer, "operator ");
        both(printer, node->a);
        break;
    case CA_CXX_LAMBDA:
        lambda(printer, node);
        break;
    case CA_CXX_UNNAMED:
        print(printer, "{unnamed type#");
        add_number(printer, node->number);
        print(printer, "}");
        break;
    case CA_CXX_TAGGED:
        both(printer, node->a);
        print(printer, "[abi:");
        add(printer, node->text, node->length);
        print(printer, "]");
        break;
    case CA_CXX_LITERAL:
        literal(printer, node);
        break;
    case CA_CXX_UNARY:
        unary(printer, node);
        break;
    case CA_CXX_BINARY:
        binary(printer, node);
        break;
    case CA_CXX_CALL:
        operand(printer, node->a);
        print(printer, "(");
        list(printer, node->b);
        print(printer, ")");
        break;
    case CA_CXX_CAST:
        print(printer, "(");
        both(printer, node->a);
        print(printer, ")");
        operand(printer, node->b);
        break;
    case CA_CXX_SIZE:
        size_of_pack(printer, node);
        break;
    case CA_CXX_WRAPPED:
        add(printer, node->text, node->length);
        print(printer, "(");
        both(printer, node->a);
        print(printer, ")");
        break;
    default:
        break;
    }
}

static void right(printer_t *printer, ca_cxx_ref_t ref)
{
    const ca_cxx_node_t *node = node_of(printer, ref);
    if (ref == 0 || !ca_cxx_may_go_on(printer->cxx))
        return;
    switch ((ca_cxx_kind_t)node->kind) {
    case CA_CXX_PARAMETER:
        right(printer, node->a);
        break;
    case CA_CXX_PACK:
        if (printer->in_pack)
            one_of_pack(printer, node, right);
        break;
    case CA_CXX_CV:
        cv_right(printer, node);
        break;
    case CA_CXX_SUFFIXED:
        right(printer, node->a);
        break;
    case CA_CXX_POINTER:
        pointer_right(printer, node);
        break;
    case CA_CXX_MEMBER:
        close(printer, node->b);
        right(printer, node->b);
        break;
    case CA_CXX_FUNCTION:
        function_right(printer, node);
        break;
    case CA_CXX_ARRAY:
        array_right(printer, node);
        break;
    default:
        break;
    }
}

void ca_cxx_print(ca_cxx_t *cxx, ca_cxx_ref_t node, ca_text_t *shown)
{
    printer_t printer = {.cxx = cxx, .shown = shown};
    both(&printer, node);
    if (shown->length < shown->bytes)
        shown->buffer[shown->length] = '\0';
}
