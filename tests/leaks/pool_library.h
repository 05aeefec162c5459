#ifndef CA_TESTS_LEAKS_POOL_LIBRARY_H
#define CA_TESTS_LEAKS_POOL_LIBRARY_H

#include <stddef.h>

/* Allocates as many bytes and forgets them. Answers 2. */
int pool_take(size_t bytes);

#endif
