/* A C++ name that is read, before it is printed: what is read first may be printed last. */
#ifndef CA_REGISTRY_NAMES_DEMANGLE_CXX_NODES_H
#define CA_REGISTRY_NAMES_DEMANGLE_CXX_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"

/* `a` and `b` are nodes, `text` with `length` a part of the name or a literal of ours. */
typedef enum {
    CA_CXX_NONE,
    CA_CXX_TEXT,      /* text */
    CA_CXX_SCOPED,    /* a::b */
    CA_CXX_TEMPLATE,  /* a<b> */
    CA_CXX_LIST,      /* a, and the list b */
    CA_CXX_PARAMETER, /* of a template, number `number`: a, once that is known */
    CA_CXX_PACK,      /* the list a, as one argument */
    CA_CXX_EXPANSION, /* a, for each of the pack in it */
    CA_CXX_CV,        /* a with `number` of CA_CXX_CONST ... */
    CA_CXX_SUFFIXED,  /* type a with text behind */
    CA_CXX_POINTER,   /* to a; text is *, & or && */
    CA_CXX_MEMBER,    /* pointer to b, a member of a */
    CA_CXX_FUNCTION,  /* returns a (or nothing that is shown), takes list b; `number`: its CV */
    CA_CXX_ARRAY,     /* of a, b long (or not known) */
    CA_CXX_VECTOR,    /* of a, text long */
    CA_CXX_ENCODING,  /* function a of type b */
    CA_CXX_PREFIXED,  /* text a */
    CA_CXX_DESTRUCTOR,
    CA_CXX_CONVERSION, /* operator a */
    CA_CXX_LAMBDA,     /* takes list a, `number` */
    CA_CXX_UNNAMED,    /* `number` */
    CA_CXX_TAGGED,     /* a[abi:text] */
    CA_CXX_LITERAL,    /* text of type a */
    CA_CXX_UNARY,      /* operator text, a */
    CA_CXX_BINARY,     /* operator text, a, b */
    CA_CXX_CALL,       /* a with the list b */
    CA_CXX_CAST,       /* (a)b */
    CA_CXX_SIZE,       /* sizeof... a: how many they are */
    CA_CXX_WRAPPED,    /* text (a) */
} ca_cxx_kind_t;

enum {
    CA_CXX_RESTRICT = 1,
    CA_CXX_VOLATILE = 2,
    CA_CXX_CONST = 4,
    CA_CXX_LVALUE = 8,
    CA_CXX_RVALUE = 16,
    CA_CXX_NOEXCEPT = 32,
};

typedef uint16_t ca_cxx_ref_t; /* of a node; 0 is none */

typedef struct ca_cxx_node {
    uint8_t kind, number;
    ca_cxx_ref_t a, b;
    uint16_t length;
    const char *text;
} ca_cxx_node_t;

#define CA_CXX_NODES 2048u

typedef struct ca_cxx {
    ca_cxx_node_t nodes[CA_CXX_NODES];
    ca_cxx_ref_t count;
    uintptr_t stack_low; /* a frame below it fails */
    unsigned steps;
    bool failed;
} ca_cxx_t;

#define CA_CXX_STEPS_MOST 20000u

/* Called by whatever calls itself; false where it has to end. */
static inline bool ca_cxx_may_go_on(ca_cxx_t *cxx)
{
    cxx->failed |=
        (uintptr_t)__builtin_frame_address(0) < cxx->stack_low || ++cxx->steps > CA_CXX_STEPS_MOST;
    return !cxx->failed;
}

/* Prints a node; sets `failed` where there is no room. */
void ca_cxx_print(ca_cxx_t *cxx, ca_cxx_ref_t node, ca_text_t *shown);

#endif
