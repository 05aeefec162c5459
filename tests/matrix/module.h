/* A module that uses the runtime (module.c), as the program that opens it sees it. */
#ifndef CA_TESTS_MATRIX_MODULE_H
#define CA_TESTS_MATRIX_MODULE_H

#include <stddef.h>

typedef struct {
    int (*version)(void);      /* of the runtime, 13000 */
    long long (*work)(void);   /* the sum of pattern.h */
    void *(*allocate)(size_t); /* device memory, written to */
    void (*release)(void *);   /* of any module's memory */
    void (*leave_error)(void); /* a failed call leaves its error with this runtime */
    int (*take_error)(void);   /* and this takes it away, 0 where there is none */
} module_t;

#endif
